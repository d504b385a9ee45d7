"""The probe's sockets: one epoll loop and the non-blocking connections in it.

Lives here: readiness, reading, writing with a queue for what the kernel does not take, listening. Nothing here knows
HTTP. Callbacks rather than Trio tasks, because the probe shares the machine with the proxy that it measures and has
to stay well below the cost of the cheapest one. It is an instrument, so it never recovers: whatever should not happen
raises `ProbeError` through `Loop.poll`, and the measurement is void.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, final

RECV_SIZE: Final = 65536
POLL_LIMIT: Final = 0.05
"""Seconds in one poll at most, so that conditions that no socket announces are looked at again."""


@final
class ProbeError(Exception):
    """What was seen on a socket is not what a correct proxy shows: the measurement is void."""


class Wire:
    """One non-blocking connection in a loop; subclasses say what its bytes mean.

    It reads while it is not paused and writes at once what the kernel takes, the rest when it can.
    """

    __slots__ = ("_loop", "_mask", "_paused", "_pending", "_socket")

    def __init__(self, loop: Loop, sock: socket.socket, *, paused: bool = False) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = loop
        self._socket = sock
        self._pending: deque[memoryview] = deque()
        self._paused = paused
        self._mask = 0 if paused else select.EPOLLIN
        loop.add(sock.fileno(), self._mask, self._ready)

    # For subclasses to fill in.

    def received(self, data: bytes) -> None:
        """Bytes have arrived."""
        raise NotImplementedError

    def ended(self) -> None:
        """The peer has closed or reset the connection; it is closed here too when this returns."""
        raise ProbeError(f"{type(self).__name__}: the connection was closed")

    # For subclasses to use.

    @property
    def pending(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return sum(map(len, self._pending))

    def send(self, data: bytes | memoryview) -> None:
        """Send now what the kernel takes, the rest as soon as it does."""
        if self._pending:
            self._pending.append(memoryview(data))
            return
        sent = self._try_send(data)
        if sent < len(data):
            self._pending.append(memoryview(data)[sent:])
            self._arm()

    def pause(self) -> None:
        """Stop reading: what arrives stays in the kernel, and in whoever sends it."""
        self._paused = True
        self._arm()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        self._arm()

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._socket.fileno() >= 0:
            self._loop.remove(self._socket.fileno())
            self._socket.close()
            self._pending.clear()

    # What the loop drives.

    def _try_send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ProbeError(f"{type(self).__name__}: sending failed: {error}") from error

    def _arm(self) -> None:
        mask = (0 if self._paused else select.EPOLLIN) | (select.EPOLLOUT if self._pending else 0)
        if mask != self._mask:
            self._mask = mask
            self._loop.change(self._socket.fileno(), mask)

    def _ready(self, mask: int) -> None:
        if mask & select.EPOLLOUT and self._pending:
            self._flush()
        if mask & ~select.EPOLLOUT and not (self._paused and mask & select.EPOLLIN):
            self._read()

    def _flush(self) -> None:
        while self._pending:
            data = self._pending[0]
            sent = self._try_send(data)
            if sent < len(data):
                self._pending[0] = data[sent:]
                return
            self._pending.popleft()
        self._arm()

    def _read(self) -> None:
        try:
            data = self._socket.recv(RECV_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.received(data)
        else:
            self.ended()
            self.close()


@final
class _Timer:
    """A timer that epoll can wait for: its own timeout counts in milliseconds, which would bundle many streams' events.

    (`os.timerfd_create` comes with Python 3.13.)
    """

    __slots__ = ("_libc", "fd")

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    def set(self, seconds: float) -> None:
        """Become readable in `seconds`, once."""
        whole, part = divmod(max(1, int(seconds * 1e9)), 1_000_000_000)
        self._libc.timerfd_settime(self.fd, 0, (ctypes.c_long * 4)(0, 0, whole, part), None)

    def clear(self, _: int = 0) -> None:
        """Be readable no more."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)


@final
class Loop:
    """One epoll and the callbacks of the file descriptors in it; a context manager that closes it."""

    __slots__ = ("_callbacks", "_epoll", "_timer")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timer = _Timer()
        self.add(self._timer.fd, select.EPOLLIN, self._timer.clear)

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        self._timer.close()

    def add(self, fd: int, mask: int, callback: Callable[[int], None]) -> None:
        """Call `callback(mask)` whenever `fd` is ready for something in `mask`."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        """Watch `fd` for something else."""
        self._epoll.modify(fd, mask)

    def remove(self, fd: int) -> None:
        """Forget `fd`, which is still open."""
        del self._callbacks[fd]
        self._epoll.unregister(fd)

    def poll(self, timeout: float) -> None:
        """Wait up to `timeout` seconds (rounded up to milliseconds) and run what is ready."""
        for fd, mask in self._epoll.poll(timeout):
            callback = self._callbacks.get(fd)
            if callback is not None:  # else closed by an earlier one of this batch
                callback(mask)

    def run_until(self, deadline: float) -> None:
        """Run what is ready until `deadline` (on `time.perf_counter`), to within some microseconds."""
        self.poll(0)
        left = deadline - time.perf_counter()
        if left > 0:
            self._timer.set(left)
        while left > 0:
            self.poll(POLL_LIMIT)
            left = deadline - time.perf_counter()

    def run_while(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        """Run while `condition()` holds; `ProbeError` naming `what` if it still does after `timeout` seconds."""
        deadline = time.perf_counter() + timeout
        while condition():
            if time.perf_counter() > deadline:
                raise ProbeError(f"{what}: not done after {timeout:g} s")
            self.poll(POLL_LIMIT)


@contextlib.contextmanager
def listening(loop: Loop, accepted: Callable[[socket.socket], None]) -> Generator[int]:
    """Listen on a free port of 127.0.0.1, which is yielded; `accepted` gets each new connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        listener.setblocking(False)

        def ready(_: int) -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    accepted(listener.accept()[0])

        loop.add(listener.fileno(), select.EPOLLIN, ready)
        try:
            yield listener.getsockname()[1]
        finally:
            loop.remove(listener.fileno())


def connect(port: int) -> socket.socket:
    """A connection to `port` of 127.0.0.1."""
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=5)
    except OSError as error:
        raise ProbeError(f"connecting to port {port} failed: {error}") from error
