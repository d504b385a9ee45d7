"""Connections for tests of what reads and writes them: scripted ones, the least of streams, a pair of sockets.

Does not live here: a network; see script.py for conversations.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import final

import trio

from trioproxy import net
from trioproxy.transport import Buffer, ReceiveTarget, Transport


@final
class Script:
    """Takes bytes in the portions of ``takes``, and has those of ``gives`` to be received.

    :param takes: how many bytes each attempt to send may hand over: 0 would block, None breaks; after the last,
        everything.
    :param gives: what each receive returns; None breaks.
    :param log: gets a note of each send and receive.
    """

    def __init__(
        self,
        takes: Sequence[int | None] = (),
        gives: Sequence[bytes | None] = (),
        log: Callable[[str], None] = lambda note: None,
    ) -> None:
        self.closed = False
        self.vanished = False
        self.taken = bytearray()
        self._takes = list(takes)
        self._gives = list(gives)
        self._log = log

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        data = self._gives.pop(0)
        self._log(f"received {data!r}")
        if data is None:
            raise trio.BrokenResourceError("broken by the script")
        return data

    async def receive_into(self, target: ReceiveTarget) -> int:
        raise NotImplementedError

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        room = self._takes.pop(0) if self._takes else len(data)
        if room is None:
            self._log("broke")
            raise trio.BrokenResourceError("broken by the script")
        self.taken += data[:room]
        self._log(f"sent {data[:room]!r}")
        return min(room, len(data))

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        await trio.lowlevel.checkpoint()
        sent = self.send_nowait(buffers)
        while not sent:  # noqa: ASYNC110 - the script says how often it would block, a second each time
            await trio.sleep(1)
            sent = self.send_nowait(buffers)
        return sent

    async def wait_hangup(self, *, half_close: bool) -> None:
        await trio.sleep_forever()

    def readable_nowait(self) -> bool:
        return bool(self._gives)

    def watch_peer(self, patience: float) -> None:
        self._log(f"watched for {patience:g} s")

    async def send_end(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True

    def reset(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        raise NotImplementedError


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


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    for sock in (near, far):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far
