"""A connection on any Trio stream.

Lives here: :class:`StreamTransport`, and closing the streams that Trio has without awaiting. Does not live here: a
plain socket, which is used directly (sockets.py).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias, cast, final, runtime_checkable

import trio

from ..transport import Buffer, ReceiveTarget, Transport
from .liveness import LivenessWatch
from .sockets import LINGER_ZERO, RECEIVE_SIZE, HangupWatch, adopt

_SEND_SIZE: Final = 16384
_CLOSE_GRACE: Final = 1.0


@final
class StreamTransport:
    """A transport on any :class:`trio.abc.Stream`, which it owns: memory streams, a pipe, somebody's own TLS.

    Where there is a socket below it, that is watched and reset as a plain one would be.
    """

    __slots__ = ("_hangup", "_liveness", "_socket", "_stream", "closed", "vanished")

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._socket = _socket_below(stream)
        self._hangup = HangupWatch()
        self._liveness: LivenessWatch | None = None
        self.closed = False
        self.vanished = False  # Trio tells only that it broke

    def __repr__(self) -> str:
        return f"<StreamTransport {self._stream!r}{' closed' if self.closed else ''}>"

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(RECEIVE_SIZE))

    async def receive_into(self, target: ReceiveTarget) -> int:
        return await copy_into(target, self._stream.receive_some)

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        del buffers
        return 0

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        return await send_piece(self._stream, buffers)

    async def wait_hangup(self, *, half_close: bool) -> None:
        if self._socket is None:
            await trio.sleep_forever()
        await self._hangup.wait(self._socket.fileno(), half_close=half_close)

    def readable_nowait(self) -> bool:
        return False

    def watch_peer(self, patience: float) -> None:
        if self._socket is None or self.closed:
            return
        if self._liveness is None:
            self._liveness = LivenessWatch(self._socket, patience)
        self._liveness.check()

    async def send_end(self) -> None:
        _close_sending_side(self._stream)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._hangup.closing()
            _close_now(self._stream)

    def reset(self) -> None:
        if self._socket is not None and not self.closed:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.close()

    async def aclose(self) -> None:
        self.closed = True
        self._hangup.closing()
        with trio.move_on_after(_CLOSE_GRACE, shield=True):
            await self._stream.aclose()


async def copy_into(target: ReceiveTarget, receive: Callable[[int], Awaitable[bytes | bytearray]]) -> int:
    """Receive into a target what cannot be received in place; how many bytes came."""
    with target.window() as window:
        size = min(len(window), RECEIVE_SIZE)
    data = await receive(size)
    count = len(data)
    if count:
        with target.window() as window:
            count = min(count, len(window))  # less if the target was given up meanwhile
            window[:count] = data[:count]
    target.filled(count)
    return count


async def send_piece(stream: trio.abc.SendStream, buffers: Sequence[Buffer]) -> int:
    """Send the first bytes of the buffers; how many they were.

    A record of TLS at most. OpenSSL's buffer keeps the largest size that it had for the life of the connection: one
    send of 16 MiB kept 16.5 MiB (and stalled the loop for 58 ms), sends of 64 KiB 70 KB.
    """
    if not buffers:
        return 0
    if len(buffers) > 1 and sum(map(len, buffers)) <= _SEND_SIZE:
        data = b"".join(buffers)
        await stream.send_all(data)
        return len(data)
    with memoryview(buffers[0])[:_SEND_SIZE] as piece:
        await stream.send_all(piece)
        return len(piece)


_Stapled: TypeAlias = "trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]"


@runtime_checkable
class _ClosesNow(Protocol):
    def close(self) -> None: ...


def _socket_below(stream: object) -> trio.socket.SocketType | None:
    while isinstance(stream, trio.SSLStream):
        stream = cast("trio.SSLStream[trio.abc.Stream]", stream).transport_stream
    return stream.socket if isinstance(stream, trio.SocketStream) else None


def _close_sending_side(stream: trio.abc.Stream) -> None:
    if isinstance(stream, trio.StapledStream):
        _close_now(cast("_Stapled", stream).send_stream)
    elif isinstance(stream, trio.SocketStream):
        with contextlib.suppress(OSError, trio.ClosedResourceError):
            stream.socket.shutdown(socket.SHUT_WR)


def _close_now(stream: object) -> None:
    """Close a stream without awaiting, down to the layer that can be closed so."""
    if isinstance(stream, trio.StapledStream):
        _close_now(cast("_Stapled", stream).send_stream)
        _close_now(cast("_Stapled", stream).receive_stream)
    elif isinstance(stream, trio.SSLStream):
        _close_now(cast("trio.SSLStream[trio.abc.Stream]", stream).transport_stream)
    elif isinstance(stream, trio.SocketStream):
        stream.socket.close()
    elif isinstance(stream, _ClosesNow):  # such as a memory stream
        stream.close()


def transport_for(stream: trio.abc.Stream) -> Transport:
    """The transport for a Trio stream: its socket directly if it is a plain TCP stream, else the stream."""
    if isinstance(stream, trio.SocketStream):
        sock = stream.socket
        return adopt(socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach()))
    return StreamTransport(stream)
