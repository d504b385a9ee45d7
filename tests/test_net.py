"""Sockets and streams behind one interface: the same behaviour, and what only sockets have."""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from trioproxy import net
from trioproxy.body import Storage
from trioproxy.net import RECEIVE_SIZE, Address, Buffer, SocketTransport, StreamTransport, Transport, rest_of, send_all

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a hang-up without reading")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    for sock in (near, far):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


class BareStream(trio.abc.Stream):
    """A stream with nothing but what a stream must have: it cannot be closed without awaiting."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


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


@pytest.fixture
def sockets() -> Iterator[tuple[SocketTransport, socket.socket]]:
    """A transport on a socket, and the socket of its peer."""
    near, far = tcp_pair()
    yield SocketTransport(near), far
    near.close()
    far.close()


class Target:
    """Storage with windows of a fixed size."""

    def __init__(self, window: int) -> None:
        self.data = bytearray()
        self._window = window
        self._room = bytearray(window)

    def window(self) -> memoryview:
        return memoryview(self._room)

    def filled(self, count: int) -> None:
        assert count <= self._window
        self.data += self._room[:count]


async def receive_exactly(transport: Transport, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = await transport.receive()
        assert piece
        assert len(piece) <= net.RECEIVE_SIZE
        data += piece
    return bytes(data)


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
            near.shutdown_write()

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


# Sockets: bounds, fairness


async def test_one_send_is_bounded(sockets: tuple[SocketTransport, socket.socket]) -> None:
    near, far = sockets
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    near._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)  # pyright: ignore[reportPrivateUsage] - to have room
    for buffers in ([bytes(1 << 20)], [bytes(100_000)] * 10, [b"x"] * 100_000):
        await trio.lowlevel.checkpoint()
        assert 0 < near.send_nowait(buffers) <= 262_144
        while True:
            try:
                far.recv(1 << 20)
            except BlockingIOError:
                break


async def test_sending_without_waiting_stops_at_a_full_socket(sockets: tuple[SocketTransport, socket.socket]) -> None:
    near, far = sockets
    while near.send_nowait([bytes(65536)]):
        pass
    assert near.send_nowait([bytes(10)]) == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.send_some, [b"x"])
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            near.send_nowait([b"y"])
        with pytest.raises(trio.BusyResourceError):
            await near.send_some([b"y"])
        while not (await SocketTransport(far).receive()).endswith(b"x"):
            pass


async def test_closing_wakes_a_sender(sockets: tuple[SocketTransport, socket.socket]) -> None:
    near, _ = sockets
    while near.send_nowait([bytes(65536)]):
        pass

    async def send() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await near.send_some([b"x"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        near.close()


@pytest.mark.parametrize("how", ["receive", "receive_into", "send"])
@pytest.mark.parametrize("size", [1, RECEIVE_SIZE])
async def test_a_transport_that_never_waits_lets_others_run(
    how: str, size: int, sockets: tuple[SocketTransport, socket.socket]
) -> None:
    """Between two yields: at most 16 calls, and at most 128 KiB and one call. Others run between two of these."""
    near, far = sockets
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    target = Target(65536)
    since, most, total, seen = 0, 0, 0, 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.lowlevel.checkpoint()
        for _ in range(100):
            if how == "send":
                await near.send_some([bytes(size)])
                far.recv(size)
                count = size
            else:
                far.send(bytes(size))
                count = len(await near.receive()) if how == "receive" else await near.receive_into(target)
            if turns > seen:
                seen, since, total = turns, 0, 0
            since += 1
            total += count
            most = max(most, since)
            assert since <= 2 * 16 + 1
            assert total <= 2 * (131_072 + 65_536) + size
        nursery.cancel_scope.cancel()
    assert most >= (16 if size == 1 else 2), "it may go on for a while: a checkpoint costs as much as a receive"


# Sockets: hanging up


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@linux
@pytest.mark.parametrize("unread", [0, 100_000])
@pytest.mark.parametrize("way", ["end", "close", "reset"])
@pytest.mark.parametrize("half_close", [True, False])
async def test_a_hang_up_is_noticed_without_reading(
    half_close: bool, way: str, unread: int, sockets: tuple[SocketTransport, socket.socket]
) -> None:
    near, far = sockets
    sent = 0
    far.setblocking(True)
    while sent < unread:
        sent += far.send(bytes(unread - sent))
    hung_up = trio.Event()

    async def wait() -> None:
        await near.wait_hangup(half_close=half_close)
        hung_up.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not hung_up.is_set()
        if way == "end":
            far.shutdown(socket.SHUT_WR)
        elif way == "close":
            far.close()
        else:
            reset(far)
        noticed = half_close or way == "reset"
        with trio.move_on_after(2 if noticed else 0.05):
            await hung_up.wait()
        assert hung_up.is_set() == noticed
        nursery.cancel_scope.cancel()
    if way != "reset" and unread:
        assert await receive_exactly(near, unread) == bytes(unread)


@linux
@pytest.mark.parametrize("reset_it", [False, True])
async def test_closing_wakes_whoever_waits_for_a_hang_up(
    reset_it: bool, sockets: tuple[SocketTransport, socket.socket]
) -> None:
    near, _ = sockets

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await near.wait_hangup(half_close=True)

    with trio.fail_after(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            near.reset() if reset_it else near.close()
    with pytest.raises(trio.ClosedResourceError):
        await near.wait_hangup(half_close=True)


@linux
async def test_waiting_for_a_hang_up_leaves_no_file_open(sockets: tuple[SocketTransport, socket.socket]) -> None:
    near, far = sockets
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with trio.move_on_after(0.001):
            await near.wait_hangup(half_close=True)
    far.close()
    await near.wait_hangup(half_close=True)
    assert len(os.listdir("/proc/self/fd")) == len(before) - 1


@linux
async def test_without_a_file_for_it_a_hang_up_is_not_noticed(
    sockets: tuple[SocketTransport, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the system cannot tell: the connection goes on, and its deadlines do the work."""

    def no_file() -> select.epoll:
        raise OSError(errno.EMFILE, "Too many open files")

    near, _ = sockets
    monkeypatch.setattr(select, "epoll", no_file)
    with trio.move_on_after(0.01) as scope:
        await near.wait_hangup(half_close=True)
    assert scope.cancelled_caught


async def test_a_reset_reaches_the_peer_as_one(  # noqa: ASYNC124 - closing tells Trio
    sockets: tuple[SocketTransport, socket.socket],
) -> None:
    near, far = sockets
    while near.send_nowait([bytes(65536)]):
        pass
    near.reset()
    assert near.closed
    far.setblocking(True)
    far.settimeout(5)
    with pytest.raises(ConnectionResetError):
        b"".join(iter(lambda: far.recv(1 << 20), b""))


async def test_an_error_of_the_connection_is_broken(sockets: tuple[SocketTransport, socket.socket]) -> None:
    near, far = sockets
    reset(far)
    with pytest.raises(trio.BrokenResourceError, match="reset by peer"):
        await near.receive()
    with pytest.raises(trio.BrokenResourceError):
        await near.send_some([b"x"])


async def test_what_is_readable(sockets: tuple[SocketTransport, socket.socket]) -> None:
    near, far = sockets
    assert not near.readable_nowait()
    far.send(b"x")
    assert near.readable_nowait()
    assert await near.receive() == b"x"
    assert not near.readable_nowait()
    reset(far)
    assert near.readable_nowait()
    near.close()
    assert near.readable_nowait()


async def test_a_number_used_again_after_closing_is_nobody_elses(
    sockets: tuple[SocketTransport, socket.socket],
) -> None:
    near, _ = sockets
    number = near._sock.fileno()  # pyright: ignore[reportPrivateUsage] - the number is the point
    results: list[str] = []

    async def receive(transport: SocketTransport) -> None:
        try:
            results.append((await transport.receive()).decode())
        except trio.ClosedResourceError:
            results.append("closed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive, near)
        await wait_all_tasks_blocked()
        near.close()
        one, other = socket.socketpair()
        one.setblocking(False)
        other.setblocking(False)
        assert number in (one.fileno(), other.fileno())
        stranger, peer = (one, other) if one.fileno() == number else (other, one)
        nursery.start_soon(receive, SocketTransport(stranger))
        await wait_all_tasks_blocked()
        near.close()
        assert near.readable_nowait()
        peer.send(b"mine")
    assert results == ["closed", "mine"]
    one.close()
    other.close()


# Connecting and accepting


@linux
async def test_a_connect_that_is_cancelled_leaves_no_file() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = Address(socket.AF_INET, listener.getsockname())
        # Fill the backlog, so that the next attempt gets no answer.
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        before = len(os.listdir("/proc/self/fd"))
        with trio.move_on_after(0.05) as scope:
            await net.connect(address)
        assert scope.cancelled_caught
        assert len(os.listdir("/proc/self/fd")) == before
        for filler in fillers:
            filler.close()


async def test_a_connect_that_is_refused_says_so_and_leaves_no_file() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = Address(socket.AF_INET, unused.getsockname())
        with pytest.raises(ConnectionRefusedError):
            await net.connect(address)
    gc.collect()  # an open socket would be a ResourceWarning, hence an error


async def test_listening_accepting_and_connecting() -> None:
    (listener,) = await net.listen("127.0.0.1", 0)
    assert net.accept_nowait(listener) is None
    near = await net.connect(Address(socket.AF_INET, listener.getsockname()))
    await trio.lowlevel.wait_readable(listener)
    accepted = net.accept_nowait(listener)
    assert accepted is not None
    far, peer = accepted
    assert peer == "127.0.0.1"
    for transport in (near, far):
        assert isinstance(transport, SocketTransport)
        assert transport._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # pyright: ignore[reportPrivateUsage]
        assert not transport._sock.getblocking()  # pyright: ignore[reportPrivateUsage]
    await near.send_some([b"x"])
    assert await far.receive() == b"x"
    near.close()
    far.close()
    listener.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b", "x" * 64 + ".test"])
async def test_an_address_that_cannot_be_listened_on_is_an_oserror(host: str) -> None:
    with pytest.raises(OSError):
        await net.listen(host, 0)


async def test_a_stream_on_a_socket_is_used_directly() -> None:
    near, far = tcp_pair()
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(near))
    transport = net.transport_for(stream)
    assert isinstance(transport, SocketTransport)
    assert stream.socket.fileno() == -1
    far.send(b"x")
    assert await transport.receive() == b"x"
    transport.close()
    far.close()


@linux
def test_without_files_left_accepting_goes_on_and_recovers() -> None:
    """In a process of its own, since it has no files left."""
    script = textwrap.dedent("""
        import os, resource, socket, logging
        import trio, trioproxy

        async def main():
            logging.disable()
            proxy = trioproxy.Proxy(["http://127.0.0.1:1"])
            async with trio.open_nursery() as nursery:
                (address,) = await nursery.start(proxy.serve)
                clients = [socket.create_connection(address) for _ in range(20)]
                await trio.sleep(0.05)
                held = proxy.statistics().connections
                waiting = socket.socket()
                resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
                waiting.connect(address)
                await trio.sleep(0.25)
                assert proxy.statistics().connections == held == 20, proxy.statistics()
                for client in clients[:5]:
                    client.close()
                with trio.fail_after(1):
                    while proxy.statistics().connections != 16:
                        await trio.sleep(0.01)
                waiting.sendall(b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
                await trio.sleep(0.1)
                print(waiting.recv(12))
                nursery.cancel_scope.cancel()

        trio.run(main)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == "b'HTTP/1.1 503'\n", done
