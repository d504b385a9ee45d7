"""A connection on a socket.

Lives here: :class:`SocketTransport`, and how a socket is made ready for it. Does not live here: connecting, accepting,
or any other kind of stream.

A socket is read and written directly and awaited only when it would block: a relay through ``trio.SocketStream``
cost 65 µs of CPU an event, this 38. That skips Trio's checkpoints and its conflict detection, so both are done
here: a transport yields after a bounded amount of work, and a second reader or writer is refused. Closing is
synchronous and wakes whoever waits on the socket before its number can be used again.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final, final

import trio

from ..transport import Buffer, ReceiveTarget
from .liveness import VANISHED, LivenessWatch

RECEIVE_SIZE: Final = 16384
"""The most that one receive returns, in bytes: a block of this size is made whatever comes, and one that is above the
allocator's threshold for large blocks (process.py) costs 10 µs each time."""
_SEND_SIZE: Final = 262144
"""The most handed to the kernel in one call, in bytes: copying a whole 16 MiB body at once stalls the loop."""
_JOIN_SIZE: Final = 16384
"""Buffers of up to this many bytes together are joined and sent plainly, which is cheaper than a vectored send."""
_BYTES_BEFORE_YIELD: Final = 131072
_CALLS_BEFORE_YIELD: Final = 16
LINGER_ZERO: Final = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close a reset."""
_HAS_POLL: Final = hasattr(select, "poll")
_EPOLLRDHUP: Final[int] = getattr(select, "EPOLLRDHUP", 0)


@final
class HangupWatch:
    """Waits for the peer of a socket to be gone, without reading: Trio cannot, but it can wait for an epoll object that
    does. One task at a time."""

    __slots__ = ("_poll",)

    def __init__(self) -> None:
        self._poll: int | None = None

    async def wait(self, fileno: int, *, half_close: bool) -> None:
        """Wait; never returns where the system cannot tell, or has no file left for it."""
        if self._poll is not None:
            raise trio.BusyResourceError("another task is already waiting for this transport to hang up")
        if sys.platform != "linux":
            await trio.sleep_forever()
        try:
            epoll = select.epoll()
        except OSError:
            await trio.sleep_forever()
        with contextlib.closing(epoll) as poll:
            poll.register(fileno, _EPOLLRDHUP if half_close else 0)
            self._poll = poll.fileno()
            try:
                await trio.lowlevel.wait_readable(self._poll)
            finally:
                self._poll = None

    def closing(self) -> None:
        """Wake who waits, since the socket is about to be closed."""
        if self._poll is not None:
            trio.lowlevel.notify_closing(self._poll)


@final
class SocketTransport:
    """A transport on a connected, non-blocking TCP socket, which it owns.

    :param patient: wait after a read that took all there was, instead of trying first: right for a stream of events,
        wrong for a client, whose leaving must be seen before its request is forwarded.
    """

    __slots__ = (
        "_calls",
        "_drained",
        "_error",
        "_hangup",
        "_liveness",
        "_patient",
        "_receiving",
        "_sending",
        "_sock",
        "_spent",
        "closed",
    )

    def __init__(self, sock: socket.socket, *, patient: bool = False) -> None:
        self._sock = sock
        self._patient = patient
        self._receiving = False
        self._sending = False
        self._calls = 0
        self._spent = 0
        self._drained = False
        self._hangup = HangupWatch()
        self._liveness: LivenessWatch | None = None
        self._error: OSError | None = None
        """What broke it. The kernel tells it once, to whoever comes first; after that it is an end like any other."""
        self.closed = False

    def __repr__(self) -> str:
        return f"<SocketTransport fd={self._sock.fileno()}{' closed' if self.closed else ''}>"

    async def receive(self) -> bytes:
        if self._receiving:
            raise trio.BusyResourceError("another task is already receiving from this transport")
        self._receiving = True
        try:
            wait = self._drained
            if not wait and (self._calls >= _CALLS_BEFORE_YIELD or self._spent >= _BYTES_BEFORE_YIELD):
                await self._yield()
            while True:  # noqa: ASYNC913 - it yields after a bounded amount of work
                if wait:
                    await self._wait_readable()
                try:
                    data = self._sock.recv(RECEIVE_SIZE)
                    if not data and self._error is not None:
                        raise self._error
                except BlockingIOError:
                    wait = True
                except OSError as error:
                    raise self._failure(error) from None
                else:
                    self._drained = self._patient and 0 < len(data) < RECEIVE_SIZE
                    self._calls += 1
                    self._spent += len(data)
                    return data
        finally:
            self._receiving = False

    async def receive_into(self, target: ReceiveTarget) -> int:
        if self._receiving:
            raise trio.BusyResourceError("another task is already receiving from this transport")
        self._receiving = True
        try:
            if self._calls >= _CALLS_BEFORE_YIELD or self._spent >= _BYTES_BEFORE_YIELD:
                await self._yield()
            while True:  # noqa: ASYNC913 - it yields after a bounded amount of work
                # The window is an export of the body's storage: held over an await, it would stop its release.
                try:
                    with target.window() as window:
                        count = self._sock.recv_into(window)
                    if not count and self._error is not None:
                        raise self._error
                except BlockingIOError:
                    await self._wait_readable()
                except OSError as error:
                    raise self._failure(error) from None
                else:
                    target.filled(count)
                    self._drained = False
                    self._calls += 1
                    self._spent += count
                    return count
        finally:
            self._receiving = False

    async def _wait_readable(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("this transport was closed")
        await trio.lowlevel.wait_readable(self._sock)
        self._calls = self._spent = 0

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        if self._sending:
            raise trio.BusyResourceError("another task is already sending on this transport")
        try:
            if len(buffers) == 1 and len(buffers[0]) <= _SEND_SIZE:
                return self._sock.send(buffers[0])
            if sum(map(len, buffers)) <= _JOIN_SIZE:
                return self._sock.send(b"".join(buffers))
            return self._send_bounded(buffers)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._failure(error) from None

    def _send_bounded(self, buffers: Sequence[Buffer]) -> int:
        room = _SEND_SIZE
        batch: list[Buffer] = []
        for buffer in buffers[:64]:
            if len(buffer) > room:
                with memoryview(buffer)[:room] as piece:
                    return self._sock.sendmsg([*batch, piece])
            batch.append(buffer)
            room -= len(buffer)
        return self._sock.sendmsg(batch)

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        if self._calls >= _CALLS_BEFORE_YIELD or self._spent >= _BYTES_BEFORE_YIELD:
            await self._yield()
        while True:
            sent = self.send_nowait(buffers)
            if sent or not any(map(len, buffers)):
                self._calls += 1
                self._spent += sent
                return sent
            self._sending = True
            try:
                await trio.lowlevel.wait_writable(self._sock)
                self._calls = self._spent = 0
            finally:
                self._sending = False

    async def _yield(self) -> None:
        self._calls = self._spent = 0
        await trio.lowlevel.checkpoint()

    async def wait_hangup(self, *, half_close: bool) -> None:
        if self.closed:
            raise trio.ClosedResourceError("this transport was closed")
        await self._hangup.wait(self._sock.fileno(), half_close=half_close)

    def readable_nowait(self) -> bool:
        if self.closed:
            return True
        if _HAS_POLL:  # half as expensive as a failing recv
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            return bool(poll.poll(0))
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def watch_peer(self, patience: float) -> None:
        if self.closed:
            return
        if self._liveness is None:
            self._liveness = LivenessWatch(self._sock, patience)
        self._liveness.check()

    @property
    def vanished(self) -> bool:
        """As ``Transport.vanished``."""
        return self._error is not None and self._error.errno in VANISHED

    async def send_end(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def extra_info(self, name: str) -> object:
        """See :func:`trioproxy.net.extra_info`."""
        if self.closed:
            return None
        if name == "socket":
            return self._sock
        with contextlib.suppress(OSError):  # not connected any more
            if name == "server_addr":
                return self._sock.getpeername()
            if name == "client_addr":
                return self._sock.getsockname()
        return self.readable_nowait() if name == "is_readable" else None

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        # Out of Trio's epoll, and its waiters woken, before the number can belong to another socket.
        trio.lowlevel.notify_closing(self._sock)
        self._hangup.closing()
        self._sock.close()

    def reset(self) -> None:
        if self.closed:
            return
        # An ordinary close first delivers what is queued: a slow server noticed after 848 ms instead of 31.
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def _failure(self, error: OSError) -> Exception:
        if self.closed:
            return trio.ClosedResourceError("this transport was closed")
        self._error = error.with_traceback(None)
        return trio.BrokenResourceError(f"the connection broke: {error.strerror or error}")


def adopt(sock: socket.socket, *, patient: bool = False) -> SocketTransport:
    """A transport on a connected socket, which it owns from here on."""
    sock.setblocking(False)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            # Each event of a stream leaves when it came (RFC 9293 3.7.4 allows holding small segments back).
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return SocketTransport(sock, patient=patient)
