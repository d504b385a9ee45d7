"""A request on its way up: how far it got, and how it ended."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from transports import Script
from trioproxy import Code, ProxyError
from trioproxy.body import BufferedBody, StreamedBody
from trioproxy.ledger import BodyLedger
from trioproxy.upload import Upload

HEAD = b"POST / HTTP/1.1\r\n\r\n"


def buffered(data: bytes, ledger: BodyLedger | None = None) -> BufferedBody:
    body = BufferedBody(ledger or BodyLedger(1 << 20), limit=1 << 20, expected=None)
    body.push(data)
    body.complete()
    return body


def streamed(expected: int | None, ledger: BodyLedger | None = None) -> StreamedBody:
    return StreamedBody(ledger or BodyLedger(1 << 20), limit=1 << 20, expected=expected, resume=lambda: None)


@given(st.binary(max_size=40), st.lists(st.integers(0, 30), max_size=6))
def test_a_buffered_request_arrives_whole_however_it_is_taken(data: bytes, takes: list[int]) -> None:
    async def run() -> None:
        ledger = BodyLedger(1 << 20)
        body = buffered(data, ledger)
        transport = Script(takes=takes)
        upload = Upload(transport, HEAD, body, stall=60)
        upload.start_nowait()
        assert upload.sent == len(transport.taken)
        assert upload.complete == (transport.taken == HEAD + data)
        if not upload.complete:
            await upload.run()
        assert (upload.complete, upload.broken, upload.failure) == (True, False, None)
        assert transport.taken == HEAD + data
        assert upload.sent == len(HEAD) + len(data)
        body.release()
        assert (ledger.held, ledger.violations) == (0, 0)

    trio.run(run, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("expected", [9, None])
async def test_a_streamed_request_is_passed_on_as_it_comes(expected: int | None, autojump_clock: MockClock) -> None:
    body = streamed(expected)
    transport = Script(takes=[len(HEAD) - 3])
    upload = Upload(transport, HEAD, body, stall=60)
    upload.start_nowait()
    assert not upload.complete
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upload.run)
        await wait_all_tasks_blocked()
        assert transport.taken == HEAD
        for pieces, framed in (
            ([b"ab", b"c"], b"3\r\nabc\r\n"),
            ([b"def"], b"3\r\ndef\r\n"),
            ([b"ghi"], b"3\r\nghi\r\n"),
        ):
            before = len(transport.taken)
            for piece in pieces:
                body.push(piece)
            await wait_all_tasks_blocked()
            assert transport.taken[before:] == (framed if expected is None else b"".join(pieces))
        assert not upload.complete
        body.complete()
    assert upload.complete
    assert transport.taken.endswith(b"0\r\n\r\n" if expected is None else b"ghi")
    assert upload.sent == len(transport.taken)


@pytest.mark.parametrize("takes", [[None], [5, None], [len(HEAD), None], [len(HEAD) + 1, None]])
async def test_an_upstream_that_takes_no_more(takes: list[int | None], autojump_clock: MockClock) -> None:
    """It may have answered before, so that this is no failure yet."""
    ledger = BodyLedger(1 << 20)
    body = buffered(b"abc", ledger)
    upload = Upload(Script(takes=takes), HEAD, body, stall=60)
    upload.start_nowait()
    if not upload.broken:
        await upload.run()
    assert (upload.complete, upload.broken, upload.failure) == (False, True, None)
    assert upload.sent == (takes[0] or 0)
    body.release()
    assert (ledger.held, ledger.violations) == (0, 0)


@pytest.mark.parametrize("takes", [[], [5], [len(HEAD)], [len(HEAD) + 1]])
async def test_an_upstream_that_takes_nothing_for_too_long(takes: list[int], autojump_clock: MockClock) -> None:
    ledger = BodyLedger(1 << 20)
    body = buffered(b"abc", ledger)
    upload = Upload(Script(takes=[*(takes or [0]), *[0] * 100]), HEAD, body, stall=60)
    upload.start_nowait()
    await upload.run()
    assert not upload.complete
    assert upload.failure is not None
    assert upload.failure.code is Code.SEND_TIMEOUT
    assert 59 <= trio.current_time() <= 61
    body.release()
    assert (ledger.held, ledger.violations) == (0, 0)


@pytest.mark.parametrize("expected", [9, None])
async def test_a_body_that_fails_to_come_is_never_made_whole(expected: int | None, autojump_clock: MockClock) -> None:
    body = streamed(expected)
    transport = Script()
    upload = Upload(transport, HEAD, body, stall=60)
    upload.start_nowait()
    error = ProxyError(Code.REQUEST_TIMEOUT, "stalled")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upload.run)
        body.push(b"abc")
        await wait_all_tasks_blocked()
        body.push(b"def")
        body.fail(error)
    assert upload.failure is error
    assert not upload.complete
    assert transport.taken == HEAD + (b"3\r\nabc\r\n" if expected is None else b"abc")


async def test_a_cancelled_upload_lets_go_of_the_body(autojump_clock: MockClock) -> None:
    ledger = BodyLedger(1 << 20)
    body = buffered(b"abc", ledger)
    upload = Upload(Script(takes=[len(HEAD) + 1, *[0] * 100]), HEAD, body, stall=60)
    upload.start_nowait()
    with trio.move_on_after(5) as scope:
        await upload.run()
    assert scope.cancelled_caught
    body.release()
    assert (ledger.held, ledger.violations) == (0, 0)
