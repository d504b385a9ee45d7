"""Bodies that are streamed through: bounded, in order, and never more whole than they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trioproxy import Code, ProxyError
from trioproxy.body import READ_AHEAD, BodyStage, StreamedBody
from trioproxy.ledger import BodyLedger

MIB = 1 << 20


def streamed(ledger: BodyLedger, resume: Callable[[], None] = lambda: None, limit: int = 10 * MIB) -> StreamedBody:
    return StreamedBody(ledger, limit=limit, expected=None, resume=resume)


async def test_a_pipe_hands_on_what_came_in_order_and_then_ends(autojump_clock: MockClock) -> None:
    ledger = BodyLedger(MIB)
    body = streamed(ledger)
    passed: list[bytes] = []
    ended = trio.Event()

    async def send() -> None:
        while pieces := await body.next_pieces():
            passed.extend(pieces)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        for number in range(5):
            body.push(b"%d" % number)
            body.push(b"%d" % number)
            await wait_all_tasks_blocked()
            assert ledger.held == body.held == 0
            assert passed == [b"%d" % n for n in range(number + 1) for _ in range(2)]
        assert not ended.is_set()
        body.push(b"last")
        body.complete()
    assert passed[-1] == b"last"
    assert body.arrived
    assert len(body) == 14
    assert await body.next_pieces() == []


async def test_a_full_pipe_resumes_its_reader_when_it_has_room(autojump_clock: MockClock) -> None:
    ledger = BodyLedger(1)  # bounded by itself, the pipe needs no room on the ledger
    resumed: list[int] = []
    body = streamed(ledger, lambda: resumed.append(body.held))
    body.push(bytes(READ_AHEAD - 1000))
    assert not body.full
    await body.next_pieces()
    assert resumed == []
    body.push(bytes(READ_AHEAD - 1))
    body.push(b"x")
    assert body.full
    assert ledger.held == body.held == READ_AHEAD
    assert sum(map(len, await body.next_pieces())) == READ_AHEAD
    assert resumed == [0]
    assert not body.full
    assert ledger.held == 0


async def test_many_small_pieces_fill_a_pipe_by_the_memory_that_they_take(autojump_clock: MockClock) -> None:
    body = streamed(BodyLedger(MIB))
    pushed = 0
    while not body.full:
        body.push(b"x")
        pushed += 1
    assert pushed < READ_AHEAD / 50
    assert await body.next_pieces() == [b"x" * pushed]


async def test_a_pipe_that_fails_passes_the_failure_on_and_not_what_it_holds(autojump_clock: MockClock) -> None:
    ledger = BodyLedger(MIB)
    body = streamed(ledger)
    body.push(b"abc")
    error = ProxyError(Code.BAD_REQUEST, "broken")
    body.fail(error)
    body.push(b"dropped")
    with pytest.raises(ProxyError) as caught:
        await body.next_pieces()
    assert caught.value is error
    body.release()
    assert ledger.held == 0


def test_a_pipe_that_is_released_drops_what_comes_and_resumes_its_reader() -> None:
    ledger = BodyLedger(MIB)
    resumed: list[bool] = []
    body = streamed(ledger, lambda: resumed.append(True))
    body.push(bytes(READ_AHEAD))
    body.release()
    assert resumed == [True]
    body.push(bytes(READ_AHEAD))
    assert not body.full
    assert ledger.held == 0
    body.release()
    body.complete()
    assert body.arrived
    assert body.stage is BodyStage.RELEASED
