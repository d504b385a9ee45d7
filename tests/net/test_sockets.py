"""What only sockets have: bounds and fairness, hanging up, numbers that are used again, connecting, accepting."""

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
from trio.testing import wait_all_tasks_blocked

from transports import Target, receive_exactly, tcp_pair
from trioproxy import net
from trioproxy.net import RECEIVE_SIZE, Address, SocketTransport

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a hang-up without reading")


@pytest.fixture
def sockets() -> Iterator[tuple[SocketTransport, socket.socket]]:
    """A transport on a socket, and the socket of its peer."""
    near, far = tcp_pair()
    yield SocketTransport(near), far
    near.close()
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
    assert listener.accept_nowait() is None
    near = await net.connect(Address(socket.AF_INET, listener.address))
    await listener.wait_readable()
    accepted = listener.accept_nowait()
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
                waiting.sendall(b"GET /v1/models HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
                await trio.sleep(0.1)
                print(waiting.recv(12))
                nursery.cancel_scope.cancel()

        trio.run(main)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == "b'HTTP/1.1 503'\n", done
