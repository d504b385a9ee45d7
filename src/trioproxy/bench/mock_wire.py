"""The byte streams below the mock model server: a plain socket used directly, or any Trio stream.

Lives here: receiving, sending, and the two ways to close. Does not live here: HTTP.

Sockets are driven by hand because ``trio.SocketStream`` passes through a checkpoint after each send: a client that
takes the last byte and leaves could be seen leaving before the sender knew that it had sent everything. It is
also a third cheaper, and the referee shares its processor with what it judges. Callers bring their own checkpoints.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import Final, Protocol, final

import trio

NO_LINGER: Final = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 s: close() resets the connection and drops what the kernel has queued."""


class Wire(Protocol):
    """One connection's bytes, both ways. One task may receive while another sends."""

    async def receive(self, limit: int) -> bytes:
        """At most ``limit`` bytes; none when the peer is gone, by FIN or reset alike."""
        ...

    async def send(self, data: bytes) -> None:
        """Hand all of ``data`` over. Raises ``trio.BrokenResourceError`` if the peer is gone.

        Returns without a checkpoint where it can. When cancelled, an unknown part has been handed over.
        """
        ...

    async def send_eof(self) -> None:
        """Announce the end of what is sent, where the stream can; go on receiving."""
        ...

    def reset_on_close(self) -> None:
        """Make the coming ``close`` abrupt: the peer gets a reset where the stream knows one."""
        ...

    async def close(self) -> None:
        """Close, without flushing."""
        ...


@final
class SocketWire:
    """A connected, non-blocking TCP socket; ``close`` closes it."""

    __slots__ = ("_socket",)

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        connected.setblocking(False)
        with contextlib.suppress(OSError):  # some systems refuse it once the peer is gone, which is found out soon
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def receive(self, limit: int) -> bytes:
        while True:
            # Waiting before each read, not only when it would block, is what keeps a fast uploader from
            # starving the others.
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(limit)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    async def send(self, data: bytes) -> None:
        # Nothing more goes out once the client was seen to leave. Not a full checkpoint, as the top of this file says.
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            sent = self._send_nowait(data)
            if sent == len(data):
                return
            with memoryview(data) as rest:
                while sent < len(data):
                    await trio.lowlevel.wait_writable(self._socket)
                    sent += self._send_nowait(rest[sent:])
        except OSError as error:
            raise trio.BrokenResourceError from error

    def _send_nowait(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # the peer has reset it: nobody to tell
                raise

    def reset_on_close(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)

    async def close(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        await trio.lowlevel.checkpoint()


@final
class StreamWire:
    """Any Trio stream: memory streams in tests, TLS; ``close`` closes it."""

    __slots__ = ("_stream",)

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self, limit: int) -> bytes:
        try:
            return bytes(await self._stream.receive_some(limit))
        except trio.BrokenResourceError:
            await trio.lowlevel.checkpoint()
            return b""

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            with contextlib.suppress(trio.BrokenResourceError):
                await self._stream.send_eof()

    def reset_on_close(self) -> None:
        if isinstance(self._stream, trio.SocketStream):
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)
