"""What the kernel is told about a connection, and when; that it then does as told, scenarios/test_vanished.py tests."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final, final

import pytest
import trio

from transports import tcp_pair
from trioproxy.net import SocketTransport, StreamTransport, interval_for
from trioproxy.net.liveness import LivenessWatch

linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is read on Linux only")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = tcp_pair()
    yield near, far
    near.close()
    far.close()


def tcp(sock: socket.socket, name: str) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))


@linux
@pytest.mark.parametrize(
    ("patience", "idle", "interval"),
    [(30, 15, 5), (60, 30, 10), (4, 1, 1), (5.4, 2, 1), (7, 4, 1), (32767, 16384, 5461)],
)
def test_the_times_add_up(patience: float, idle: int, interval: int, pair: tuple[socket.socket, socket.socket]) -> None:
    sock, _ = pair
    LivenessWatch(sock, patience).check()
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    times = [tcp(sock, name) for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")]
    assert times == [idle, interval, 3]
    assert interval_for(patience) == interval
    assert idle + 3 * interval == round(patience)
    assert tcp(sock, "TCP_USER_TIMEOUT") == 0


@final
class Kernel:
    """A socket that says what it is told to about its connection."""

    family = socket.AF_INET

    def __init__(self) -> None:
        self.retransmitted = self.probed = self.since_answer = 0
        self.options: dict[int, int] = {}
        self.told = 0

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """As a socket's."""
        assert (level, option, size) == (socket.IPPROTO_TCP, socket.TCP_INFO, 60)
        return struct.pack("=BBBB52xI", 1, 0, self.retransmitted, self.probed, self.since_answer)

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """As a socket's."""
        self.told += 1
        self.options[option] = value


UNANSWERED: Final = [(2, 0, 5000), (0, 2, 5000), (9, 0, 29_000), (0, 3, 20_000)]
FINE: Final = [
    (0, 0, 0),
    (0, 0, 90_000),  # nothing was sent: the probes of keep-alive see to it
    (1, 1, 90_000),  # that may still be answered
    (5, 0, 4999),  # a bad network, but answers come
    (0, 5, 100),
]


@linux
@pytest.mark.parametrize("before", FINE)
@pytest.mark.parametrize("after", UNANSWERED)
def test_the_timeout_is_on_while_nothing_is_answered(before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    kernel = Kernel()
    watch = LivenessWatch(kernel, 30)
    told = kernel.told
    for state, timeout, calls in ((before, None, 0), (after, 30_000, 1), (after, 30_000, 1), (before, 0, 2)):
        kernel.retransmitted, kernel.probed, kernel.since_answer = state
        watch.check()
        assert kernel.options.get(socket.TCP_USER_TIMEOUT) == timeout
        assert kernel.told - told == calls


def test_what_is_no_tcp_is_left_alone() -> None:
    near, far = socket.socketpair()
    with near, far:
        watch = LivenessWatch(near, 30)
        watch.check()
        assert near.family is not socket.AF_UNIX or not near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_socket_that_was_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    watch = LivenessWatch(near, 30)
    near.close()
    watch.check()
    watch.check()
    LivenessWatch(near, 30).check()


async def test_a_transport_has_its_peer_watched(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    transport = SocketTransport(near)
    assert not near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    transport.watch_peer(30)
    transport.watch_peer(30)
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert not transport.vanished
    await transport.aclose()
    transport.watch_peer(30)


async def test_so_has_a_stream_on_a_socket(pair: tuple[socket.socket, socket.socket]) -> None:
    sock = trio.socket.from_stdlib_socket(pair[0])
    transport = StreamTransport(trio.SocketStream(sock))
    transport.watch_peer(30)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    await transport.aclose()
    transport.watch_peer(30)


async def test_a_stream_without_one_cannot() -> None:
    near, far = trio.testing.memory_stream_pair()
    transport = StreamTransport(near)
    transport.watch_peer(30)
    await transport.aclose()
    await far.aclose()


async def test_what_broke_it_is_not_forgotten(pair: tuple[socket.socket, socket.socket]) -> None:
    """The kernel tells an error once: told to the one who sends, it would be a proper end for the one who receives."""
    near, far = pair
    transport = SocketTransport(near)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    with pytest.raises(trio.BrokenResourceError):
        await transport.send_some([b"x"])
    for _ in range(2):
        with pytest.raises(trio.BrokenResourceError):
            await transport.receive()
    assert not transport.vanished
    transport.close()
