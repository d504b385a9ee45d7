"""Sockets and streams behind one interface: the same behaviour, and what only sockets have."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from transports import BareStream, Target, receive_exactly, tcp_pair
from trioproxy.body import Storage
from trioproxy.net import SocketTransport, StreamTransport
from trioproxy.transport import Buffer, Transport, rest_of, send_all

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a hang-up without reading")


@pytest.fixture(params=["socket", "memory", "bare"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Transport, Transport]]:
    """Two ends of a connection; both are closed in the end."""
    if request.param == "socket":
        near, far = tcp_pair()
        yield SocketTransport(near), SocketTransport(far)
        near.close()
        far.close()
    else:
        one, other = memory_stream_pair()
        yield StreamTransport(BareStream(one) if request.param == "bare" else one), StreamTransport(other)


async def send_much(transport: Transport) -> None:
    """More than the kernel takes before it hears of anything."""
    for _ in range(1000):
        await transport.send_some([b"x" * 65536])
        await trio.lowlevel.checkpoint()


# The same for every transport


async def test_bytes_arrive_in_order_and_then_the_end(pair: tuple[Transport, Transport]) -> None:
    near, far = pair
    payload = os.urandom(1 << 20)
    buffers: list[Buffer] = [payload[:1], bytearray(payload[1:70_000]), b"", memoryview(payload)[70_000:]]
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            await send_all(near, buffers, stall=5)
            await near.send_end()

        nursery.start_soon(send)
        assert await receive_exactly(far, len(payload)) == payload
        if isinstance(near, SocketTransport):
            assert await far.receive() == b""
            assert await far.receive() == b""


@pytest.mark.parametrize("window", [1, 1000, 65536])
async def test_receiving_in_place(window: int, pair: tuple[Transport, Transport]) -> None:
    near, far = pair
    payload = os.urandom(5000)
    target = Target(window)
    await send_all(near, [payload], stall=5)
    while len(target.data) < len(payload):
        count = await far.receive_into(target)
        assert 0 < count <= window
    assert bytes(target.data) == payload
    near.close()
    if not isinstance(near, StreamTransport):
        assert await far.receive_into(target) == 0


async def test_while_bytes_are_awaited_no_window_is_held(pair: tuple[Transport, Transport]) -> None:
    """A body can be released while its reader waits."""
    near, far = pair

    class Windows:
        def __init__(self) -> None:
            self.storage = Storage(100)

        def window(self) -> memoryview:
            return memoryview(self.storage if self.storage else bytearray(100))

        def filled(self, count: int) -> None:
            assert count == 3

    target = Windows()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(far.receive_into, target)
        await wait_all_tasks_blocked()
        target.storage.clear()  # raises BufferError if there is a view of it
        await send_all(near, [b"abc"], stall=5)


@pytest.mark.parametrize("buffers", [[], [b""], [b"", b""]])
async def test_sending_nothing_returns(buffers: list[Buffer], pair: tuple[Transport, Transport]) -> None:
    near, _ = pair
    assert near.send_nowait(buffers) == 0
    with trio.fail_after(1):
        assert await near.send_some(buffers) == 0
    await send_all(near, buffers, stall=1)


async def test_a_second_receiver_is_refused_and_the_first_is_not_disturbed(pair: tuple[Transport, Transport]) -> None:
    near, far = pair
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await far.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await far.receive()
        with pytest.raises(trio.BusyResourceError):
            await far.receive_into(Target(10))
        await send_all(near, [b"x"], stall=5)
    assert received == [b"x"]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("into", [False, True])
async def test_closing_wakes_a_receiver(into: bool, reset: bool, pair: tuple[Transport, Transport]) -> None:
    _, far = pair
    if isinstance(far, StreamTransport) and reset:
        reset = False  # the same for a stream

    async def receive() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await (far.receive_into(Target(10)) if into else far.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        far.reset() if reset else far.close()
    assert far.closed


async def test_what_this_side_closed_is_closed_and_what_the_peer_closed_is_broken(
    pair: tuple[Transport, Transport],
) -> None:
    near, far = pair
    near.close()
    assert near.closed
    near.close()  # idempotent
    near.reset()
    await near.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await near.receive()
    with pytest.raises(trio.ClosedResourceError):
        await near.receive_into(Target(10))
    with pytest.raises(trio.ClosedResourceError):
        await near.send_some([b"x"])
    assert not far.closed
    with pytest.raises(trio.BrokenResourceError):
        await send_much(far)


async def test_closing_under_a_cancel_closes(pair: tuple[Transport, Transport]) -> None:
    near, far = pair
    with trio.CancelScope() as scope:
        scope.cancel()
        await near.aclose()
    assert near.closed
    if isinstance(far, SocketTransport):
        assert await far.receive() == b""
    with pytest.raises(trio.BrokenResourceError):
        await send_much(far)


async def test_a_cancelled_receive_has_taken_nothing(pair: tuple[Transport, Transport]) -> None:
    near, far = pair
    for _ in range(3):
        with trio.move_on_after(0.001):
            await far.receive()
    await send_all(near, [b"abc"], stall=5)
    assert await far.receive() == b"abc"


@given(st.lists(st.binary(max_size=20), max_size=6), st.data())
def test_rest_of_is_what_is_left(buffers: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(buffers)
    sent = data.draw(st.integers(0, len(whole)))
    rest = rest_of(buffers, sent)
    assert b"".join(rest) == whole[sent:]
    assert all(len(buffer) for buffer in rest[:1])  # so that a send makes progress
    assert b"".join(buffers) == whole


async def test_sending_everything_gives_up_on_a_peer_that_takes_nothing() -> None:
    """By stalls, not by the time that all of it takes."""
    near, far = tcp_pair()
    transport = SocketTransport(near)
    with pytest.raises(trio.TooSlowError):
        await send_all(transport, [bytes(16 << 20)], stall=0.05)
    transport.reset()
    far.close()
