"""Connections lent by lease: none is lost, none is lent that is not good, none comes back that is not clean."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from trioproxy import Code, ProxyError
from trioproxy.net import Address
from trioproxy.transport import Buffer, ReceiveTarget, Transport
from trioproxy.upstream.endpoint import Endpoint
from trioproxy.upstream.pool import LeaseState, Pool


class Line:
    """A connection that does nothing, and tells what was done to it."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.closed = False
        self.vanished = False
        self.watched: list[float] = []
        self.was_reset = False
        self.readable = False

    def __repr__(self) -> str:
        return f"<Line {self.name}{' closed' if self.closed else ''}>"

    async def receive(self) -> bytes:
        raise AssertionError("the pool does not read")

    async def receive_into(self, target: ReceiveTarget) -> int:
        raise AssertionError("the pool does not read")

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        raise AssertionError("the pool does not write")

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        raise AssertionError("the pool does not write")

    async def wait_hangup(self, *, half_close: bool) -> None:
        raise AssertionError("the pool does not wait for its connections")

    def readable_nowait(self) -> bool:
        return self.readable or self.closed

    def watch_peer(self, patience: float) -> None:
        self.watched.append(patience)

    async def send_end(self) -> None:
        raise AssertionError("the pool closes or resets")

    def close(self) -> None:
        self.closed = True

    def reset(self) -> None:
        self.was_reset = self.closed = True

    async def aclose(self) -> None:
        raise AssertionError("the pool does not await when it closes")


class Lines:
    """A network of such connections."""

    def __init__(self) -> None:
        self.opened: list[Line] = []
        self.refusing: set[object] = set()
        self.dialled: list[object] = []
        self.slow = False

    async def connect(self, address: Address) -> Transport:
        self.dialled.append(address.sockaddr[0])
        await trio.lowlevel.checkpoint()
        if self.slow:
            await trio.sleep_forever()
        if address.sockaddr[0] in self.refusing:
            raise ConnectionRefusedError(111, f"{address.sockaddr[0]!s} refused")
        line = Line(str(len(self.opened)))
        self.opened.append(line)
        return line


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def pool(lines: Lines) -> Pool:
    return Pool(Endpoint("http://10.0.0.1:80"), keep_alive=4, connector=lines.connect)


async def returned(pool: Pool, lines: Lines, count: int = 1) -> list[Line]:
    """Connections that have been used and came back clean, the oldest first."""
    leases = [pool.lease() for _ in range(count)]
    for lease in leases:
        await lease.open()
    for lease in leases:
        lease.mark_clean()
        lease.end()
    return lines.opened[-count:]


# Check-out


async def test_the_connection_that_was_used_last_is_used_next(
    pool: Pool, lines: Lines, autojump_clock: MockClock
) -> None:
    one, two, three = await returned(pool, lines, 3)
    assert [pool.pop_idle_nowait() for _ in range(4)] == [three, two, one, None]
    assert not any(line.closed for line in lines.opened)


@pytest.mark.parametrize("flaw", ["readable", "closed", "expired"])
async def test_an_idle_connection_that_is_not_good_is_closed_and_not_lent(
    flaw: str, pool: Pool, lines: Lines, autojump_clock: MockClock
) -> None:
    """Readable before anything was asked: it has ended, or has somebody else's answer on it."""
    if flaw == "expired":
        (old,) = await returned(pool, lines)
        await trio.sleep(4)
        (good,) = (None,)
    else:
        good, old = await returned(pool, lines, 2)
        old.readable = flaw == "readable"
        old.closed = flaw == "closed"
    with pool.lease() as lease:
        assert lease.take_idle_nowait() is good
        assert old.closed
        assert not old.was_reset
        assert pool.idle == 0


async def test_without_an_idle_connection_a_lease_is_as_before(  # noqa: ASYNC124 - it asks Trio for the time
    pool: Pool, autojump_clock: MockClock
) -> None:
    with pool.lease() as lease:
        assert lease.take_idle_nowait() is None
        assert (lease.state, lease.transport, lease.reused) == (LeaseState.EMPTY, None, False)
        assert (pool.held, pool.reused) == (0, 0)


# Check-in


async def test_a_clean_connection_comes_back_and_is_used_again(
    pool: Pool, lines: Lines, autojump_clock: MockClock
) -> None:
    await returned(pool, lines)
    with pool.lease() as lease:
        assert lease.take_idle_nowait() is lines.opened[0]
        assert lease.reused
        lease.mark_clean()
    assert (pool.idle, pool.held, pool.opened, pool.reused) == (1, 0, 1, 1)


@pytest.mark.parametrize("keep_alive", [0.0, 4.0])
async def test_what_is_not_kept_alive_is_closed_at_once(
    keep_alive: float, lines: Lines, autojump_clock: MockClock
) -> None:
    pool = Pool(Endpoint("http://10.0.0.1:80"), keep_alive=keep_alive, connector=lines.connect)
    with pool.lease() as lease:
        await lease.open()
        lease.mark_clean()
        if keep_alive:
            lines.opened[0].closed = True  # by somebody
    assert pool.idle == 0
    assert lines.opened[0].closed


async def test_idle_connections_expire_by_themselves_each_at_its_time(
    pool: Pool, lines: Lines, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.close_expired)
        for _ in range(2):  # and again, after there were none
            begin = trio.current_time()
            leases = [pool.lease() for _ in range(3)]
            for lease in leases:
                await lease.open()
            for number, lease in enumerate(leases):
                lease.mark_clean()
                await trio.sleep_until(begin + number)
                lease.end()
            for number in range(3):
                await trio.sleep_until(begin + 4 + number - 0.01)
                assert pool.idle == 3 - number
                await trio.sleep(0.02)
                assert pool.idle == 2 - number
            assert all(line.closed for line in lines.opened)
            await trio.sleep(10)
        nursery.cancel_scope.cancel()


async def test_idle_connections_can_be_closed_together(pool: Pool, lines: Lines, autojump_clock: MockClock) -> None:
    await returned(pool, lines, 3)
    pool.close_idle()
    assert pool.idle == 0
    assert all(line.closed for line in lines.opened)


# Opening


async def test_the_addresses_of_a_name_are_tried_in_order(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    endpoint = Endpoint("http://model:80")

    def look_up(host: str, port: int) -> list[Address]:
        assert host == "model"
        return [Address(socket.AF_INET, (f"10.0.0.{number}", port)) for number in (1, 2, 3)]

    monkeypatch.setattr("trioproxy.upstream.endpoint.look_up", look_up)
    await endpoint.resolve(trio.CapacityLimiter(1))
    pool = Pool(endpoint, keep_alive=4, connector=lines.connect)
    lines.refusing = {"10.0.0.1", "10.0.0.2"}
    with pool.lease() as lease:
        await lease.open()
    assert lines.dialled == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    lines.refusing.add("10.0.0.3")
    with pool.lease() as lease, pytest.raises(ProxyError, match="cannot connect to the model server") as caught:
        await lease.open()
    assert caught.value.code is Code.CONNECT_FAILED
    assert caught.value.detail == "http://model:80: 10.0.0.3 refused"
    assert (pool.connecting, pool.held, pool.opened) == (0, 0, 1)


async def test_a_connect_that_is_cancelled_leaves_nothing(pool: Pool, lines: Lines, autojump_clock: MockClock) -> None:
    lines.slow = True
    with pool.lease() as lease:
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lease.open)
                await wait_all_tasks_blocked()
                assert lease.state is LeaseState.CONNECTING
                assert pool.connecting == 1
        assert lease.state is LeaseState.EMPTY
        assert pool.connecting == 0
    assert (pool.held, pool.idle, pool.opened) == (0, 0, 0)


async def test_the_first_address_is_waited_for(lines: Lines, autojump_clock: MockClock) -> None:
    pool = Pool(Endpoint("http://model:80"), keep_alive=4, connector=lines.connect)
    with trio.move_on_after(1) as scope:
        await pool.open()
    assert scope.cancelled_caught
    assert pool.connecting == 0
    assert lines.dialled == []


# Leases


async def test_the_states_of_a_lease(pool: Pool, lines: Lines, autojump_clock: MockClock) -> None:
    lease = pool.lease()

    def now() -> tuple[LeaseState, bool, int]:
        return lease.state, lease.transport is not None, pool.held

    assert now() == (LeaseState.EMPTY, False, 0)
    with lease:
        transport = await lease.open()
        assert lease.transport is transport
        assert now() == (LeaseState.HELD, True, 1)
        lease.mark_clean()
        assert now() == (LeaseState.CLEAN, True, 1)
        lease.spoil()
        lease.mark_clean()
        assert now() == (LeaseState.SPOILED, True, 1)
        lease.reset()
        lease.mark_clean()
        lease.spoil()
        assert now() == (LeaseState.EMPTY, False, 0)
        assert await lease.open() is not transport
        assert now() == (LeaseState.HELD, True, 1)
    assert [line.was_reset for line in lines.opened] == [True, True]
    lease.end()
    lease.reset()
    assert now() == (LeaseState.ENDED, False, 0)
    assert pool.idle == 0


async def test_opening_anew_resets_what_is_held(pool: Pool, lines: Lines, autojump_clock: MockClock) -> None:
    with pool.lease() as lease:
        await lease.open()
        lease.mark_clean()
        await lease.open()
        assert lines.opened[0].was_reset
        assert not lease.reused
        assert pool.held == 1


@pytest.mark.parametrize("clean", [False, True])
async def test_a_lease_that_is_aborted_is_never_pooled(
    clean: bool, pool: Pool, lines: Lines, autojump_clock: MockClock
) -> None:
    with pool.lease() as lease:
        await lease.open()
        if clean:
            lease.mark_clean()
        lease.reset()
        lease.mark_clean()
    assert (pool.idle, pool.held) == (0, 0)
    assert lines.opened[0].was_reset


@pytest.mark.parametrize("error", [None, RuntimeError(), KeyboardInterrupt()])
async def test_however_a_block_ends_its_connection_is_given_back(
    error: BaseException | None, pool: Pool, lines: Lines, autojump_clock: MockClock
) -> None:
    with pytest.raises(type(error)) if error else trio.CancelScope() as scope, pool.lease() as lease:
        await lease.open()
        if error is not None:
            raise error
        assert isinstance(scope, trio.CancelScope)
        scope.cancel()
        await trio.lowlevel.checkpoint()
    assert lease.state is LeaseState.ENDED
    assert pool.held == 0
    assert lines.opened[0].was_reset


@given(st.lists(st.sampled_from(["take", "open", "clean", "spoil", "reset", "end", "expire"]), max_size=30))
def test_no_sequence_of_steps_loses_a_connection_or_keeps_one_that_is_not_clean(steps: list[str]) -> None:
    """Each is open and held, open and idle, or closed; what was ever spoiled or reset is not idle."""

    async def run() -> None:
        lines = Lines()
        pool = Pool(Endpoint("http://10.0.0.1:80"), keep_alive=4, connector=lines.connect)
        lease = pool.lease()
        bad: set[Line] = set()
        for step in steps:
            held = lease.transport
            match step:
                case "take":
                    if lease.state is LeaseState.EMPTY:
                        lease.take_idle_nowait()
                case "open":
                    if lease.state is not LeaseState.ENDED:
                        await lease.open()
                case "clean":
                    lease.mark_clean()
                case "spoil":
                    lease.spoil()
                    bad |= {held} if isinstance(held, Line) else set()
                case "reset":
                    lease.reset()
                    bad |= {held} if isinstance(held, Line) else set()
                case "end":
                    lease.end()
                    lease = pool.lease()
                case _:
                    await trio.sleep(1.5)
            open_lines = [line for line in lines.opened if not line.closed]
            assert len(open_lines) == pool.idle + pool.held
            assert pool.held == (lease.transport is not None)
        lease.end()
        pool_lines = {pool.pop_idle_nowait() for _ in range(pool.idle)}
        assert not bad & pool_lines
        assert pool.held == 0

    trio.run(run, clock=MockClock(autojump_threshold=0))
