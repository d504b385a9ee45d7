"""Bodies: who holds their bytes, how many, until when."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from trioproxy import Code, ProxyError
from trioproxy.body import BodyStage, BufferedBody, LeaseExpired, Storage, StreamedBody
from trioproxy.ledger import BodyLedger

MIB = 1 << 20


def buffered(ledger: BodyLedger | None = None, *, limit: int = 10 * MIB, expected: int | None = None) -> BufferedBody:
    return BufferedBody(ledger or BodyLedger(100 * MIB), limit=limit, expected=expected)


def holding(data: bytes, ledger: BodyLedger | None = None) -> BufferedBody:
    body = buffered(ledger)
    body.push(data)
    body.complete()
    return body


def receive_in_place(body: BufferedBody, data: bytes) -> None:
    """What a transport does."""
    while data:
        assert body.reserve()
        with body.window() as window:
            assert len(window) > 0
            count = min(len(window), len(data))
            window[:count] = data[:count]
        body.filled(count)
        assert bytes(body.last(count)) == data[:count]
        data = data[count:]


@pytest.mark.parametrize(("begin", "end", "text"), [(1, 1, b"xx"), (1, 4, b"y"), (0, 6, b""), (2, 4, b"zz")])
def test_bytes_of_a_complete_body_can_be_replaced(begin: int, end: int, text: bytes) -> None:
    ledger = BodyLedger(10)
    body = holding(b"prompt", ledger)
    assert body.replace(begin, end, text)
    expected = b"prompt"[:begin] + text + b"prompt"[end:]
    with body.lease("forwarding") as lease:
        assert bytes(lease.view) == expected
        assert not body.replace(0, 0, b"x")
    assert (len(body), body.held, ledger.held) == (len(expected), len(expected), len(expected))
    body.release()
    assert ledger.held == 0
    assert not body.replace(0, 0, b"x")


def test_nothing_is_replaced_without_room_or_before_all_is_there() -> None:
    ledger = BodyLedger(7)
    body = holding(b"prompt", ledger)
    assert not body.replace(0, 0, b"xx")
    assert (len(body), ledger.held) == (6, 6)
    coming = buffered()
    coming.push(b"pro")
    assert not coming.replace(0, 0, b"x")
    assert len(coming) == 3


# Leases and release


def test_a_lease_lends_a_read_only_view_that_ends_with_it() -> None:
    body = holding(b"prompt")
    with body.lease("a tokenizer") as lease:
        assert bytes(lease.view) == b"prompt"
        assert lease.view.readonly
        view = lease.view
    with pytest.raises(LeaseExpired, match="a tokenizer read the body of a request after its lease had ended"):
        _ = lease.view
    with pytest.raises(ValueError):
        bytes(view)


def test_a_lease_that_was_not_entered_lends_nothing() -> None:
    lease = holding(b"prompt").lease("somebody")
    with pytest.raises(LeaseExpired):
        _ = lease.view


def test_a_body_that_was_released_is_not_lent() -> None:
    body = holding(b"prompt")
    body.release()
    with pytest.raises(LeaseExpired, match="released"), body.lease("somebody"):
        pass
    assert len(body.last(3)) == 0


def test_release_empties_the_storage_whoever_has_a_name_for_it() -> None:
    ledger = BodyLedger(MIB)
    body = holding(b"x" * 1000, ledger)
    storage = body._storage  # pyright: ignore[reportPrivateUsage] - another name for it
    assert storage is not None
    assert ledger.held == body.held == 1000
    body.release()
    body.release()
    assert len(storage) == 0
    assert (ledger.held, body.held, ledger.violations) == (0, 0, 0)
    assert body.stage is BodyStage.RELEASED


def test_storage_can_be_watched() -> None:
    body = holding(b"x")
    watched = weakref.ref(body._storage or Storage())  # pyright: ignore[reportPrivateUsage]
    body.release()
    gc.collect()
    assert watched() is None


def test_release_waits_for_the_last_lease_and_blocks_new_ones() -> None:
    ledger = BodyLedger(MIB)
    body = holding(b"prompt", ledger)
    first, second = body.lease("one"), body.lease("two")
    with first:
        with second:
            body.release()
            with pytest.raises(LeaseExpired), body.lease("late"):
                pass
            assert bytes(second.view) == b"prompt"
        assert bytes(first.view) == b"prompt"
        assert ledger.held == 6
    assert (ledger.held, ledger.violations) == (0, 0)


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt()])
def test_a_lease_ends_however_its_block_ends(error: BaseException) -> None:
    ledger = BodyLedger(MIB)
    body = holding(b"prompt", ledger)
    with pytest.raises(type(error)), body.lease("somebody"):
        raise error
    body.release()
    assert (ledger.held, ledger.violations) == (0, 0)


def slice_of(view: memoryview) -> memoryview:
    return view[1:3]


@pytest.mark.parametrize("escape", [slice_of, memoryview])
def test_a_view_that_escaped_its_lease_is_counted(escape: Callable[[memoryview], memoryview]) -> None:
    ledger = BodyLedger(MIB)
    body = holding(b"prompt", ledger)
    with body.lease("somebody") as lease:
        escaped = escape(lease.view)
    body.release()
    assert ledger.violations == 1
    assert ledger.held == 0
    assert len(escaped) > 0


def test_a_view_that_escaped_and_ended_in_time_is_none() -> None:
    ledger = BodyLedger(MIB)
    body = holding(b"prompt", ledger)
    with body.lease("somebody") as lease, lease.view[1:3] as part:
        assert bytes(part) == b"ro"
    body.release()
    assert ledger.violations == 0


# Receiving


@given(st.lists(st.binary(max_size=200_000), max_size=5), st.sampled_from(["push", "in place", "both"]))
@settings(deadline=None, max_examples=60)
def test_what_was_received_is_what_is_lent(pieces: list[bytes], how: str) -> None:
    whole = b"".join(pieces)
    ledger = BodyLedger(100 * MIB)
    body = buffered(ledger, expected=len(whole) if whole else None)
    for number, piece in enumerate(pieces):
        if how == "push" or (how == "both" and number % 2 == 0):
            body.push(piece)
        else:
            receive_in_place(body, piece)
        assert ledger.held == body.held >= len(body)
    body.complete()
    assert body.arrived
    assert body.stage is BodyStage.COMPLETE
    with body.lease("test") as lease:
        assert lease.view == whole
    assert len(body) == len(whole)
    body.release()
    assert (ledger.held, ledger.violations) == (0, 0)


def test_a_body_of_known_length_takes_no_more_memory_than_that() -> None:
    ledger = BodyLedger(100 * MIB)
    body = buffered(ledger, expected=3 * MIB + 1)
    most = 0
    remaining = 3 * MIB + 1
    while remaining:
        count = min(65536, remaining)
        receive_in_place(body, bytes(count))
        remaining -= count
        most = max(most, ledger.held)
    assert ledger.held == most == 3 * MIB + 1


def test_room_grows_with_what_has_come_and_by_a_mebibyte_at_most() -> None:
    """A length that is claimed takes no memory before its bytes come."""
    ledger = BodyLedger(100 * MIB)
    body = buffered(ledger, expected=10 * MIB)
    assert body.reserve()
    assert ledger.held == 65536
    before = ledger.held
    for _ in range(100):
        receive_in_place(body, bytes(65536))
        assert body.reserve()
        assert ledger.held - before <= MIB
        assert ledger.held <= 2 * max(len(body), 65536)
        before = ledger.held


@pytest.mark.parametrize("sizes", [[1000], [999, 1], [1] * 1000, [0, 1000, 0]])
def test_the_limit_is_exact_by_count(sizes: list[int]) -> None:
    for body in (
        buffered(limit=1000),
        StreamedBody(BodyLedger(MIB), limit=1000, expected=None, resume=lambda: None),
    ):
        for size in sizes:
            body.push(bytes(size))
        with pytest.raises(ProxyError, match="limit of 1000 bytes") as caught:
            body.push(b"x")
        assert caught.value.code is Code.BODY_TOO_LARGE


def test_without_room_on_the_ledger_nothing_is_reserved() -> None:
    ledger = BodyLedger(100_000)
    other = holding(bytes(60_000), ledger)
    body = buffered(ledger, expected=50_000)
    assert not body.reserve()
    assert body.held == 0
    with pytest.raises(ProxyError) as caught:
        body.push(bytes(40_001))
    assert (caught.value.code, caught.value.retry_after) == (Code.OVERLOADED, 1)
    assert ledger.held == 60_000
    body.push(bytes(40_000))
    assert ledger.held == 100_000
    other.release()
    assert body.reserve()


def test_what_comes_after_the_release_is_dropped() -> None:
    ledger = BodyLedger(MIB)
    body = buffered(ledger, expected=10)
    receive_in_place(body, b"abc")
    body.release()
    body.push(b"def")
    with body.window() as window:
        assert len(window) > 0
    body.filled(3)
    assert body.reserve()
    body.complete()
    body.fail(ProxyError(Code.BAD_REQUEST, "late"))
    assert (body.stage, ledger.held) == (BodyStage.RELEASED, 0)
    assert body.arrived


# Waiting


async def test_waiting_for_a_body(autojump_clock: MockClock) -> None:
    body = buffered()
    waited: list[str] = []

    async def wait() -> None:
        await body.wait_complete()
        waited.append("complete")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        body.push(b"abc")
        await wait_all_tasks_blocked()
        assert waited == []
        body.complete()
    assert waited == ["complete"]
    await body.wait_complete()  # at once


@pytest.mark.parametrize("before", [False, True])
async def test_a_body_that_fails_to_come(before: bool, autojump_clock: MockClock) -> None:
    """Whoever waits hears of it, whether it waits already or not; the first failure counts."""
    body = buffered()
    error = ProxyError(Code.REQUEST_TIMEOUT, "stalled")
    async with trio.open_nursery() as nursery:
        if not before:
            nursery.start_soon(wait_all_tasks_blocked)

            async def wait() -> None:
                with pytest.raises(ProxyError) as caught:
                    await body.wait_complete()
                assert caught.value is error

            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
        body.fail(error)
        body.fail(ProxyError(Code.BAD_REQUEST, "later"))
    with pytest.raises(ProxyError) as caught:
        await body.wait_complete()
    assert caught.value is error
    assert body.stage is BodyStage.FAILED
    assert not body.arrived


# The ledger


def test_the_ledger_wakes_those_who_wait_once_and_in_order() -> None:
    ledger = BodyLedger(100)
    woken: list[int] = []
    waiters = [lambda n=n: woken.append(n) for n in range(4)]
    assert ledger.try_reserve(100)
    assert not ledger.try_reserve(1)
    for waiter in waiters:
        ledger.call_when_freed(waiter)
    ledger.forget(waiters[1])
    ledger.forget(waiters[1])
    ledger.free(0)
    assert woken == []
    ledger.free(10)
    assert woken == [0, 2, 3]
    ledger.free(10)
    assert woken == [0, 2, 3]
    assert ledger.held == 80


def test_who_waits_again_while_being_woken_is_woken_the_next_time() -> None:
    ledger = BodyLedger(100)
    woken: list[int] = []

    def again() -> None:
        woken.append(1)
        ledger.call_when_freed(again)

    ledger.call_when_freed(again)
    assert ledger.try_reserve(2)
    ledger.free(1)
    assert woken == [1]
    ledger.free(1)
    assert woken == [1, 1]
