"""What a connection is to the rest of the proxy: a duplex of bytes with synchronous closing.

Lives here: the interface, and what can be said in its terms alone. Does not live here: any socket (net/).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import trio

Buffer: TypeAlias = bytes | bytearray | memoryview


class ReceiveTarget(Protocol):
    """Storage that bytes are received into in place."""

    def window(self) -> memoryview:
        """Room for the next bytes, never empty. The caller releases it before it awaits anything."""
        ...

    def filled(self, count: int) -> None:
        """Take note that the first ``count`` bytes of the window are there."""
        ...


class Transport(Protocol):
    """One connection: a duplex of bytes with synchronous closing.

    Receiving and sending raise :class:`trio.BrokenResourceError` when the peer or the network ended it and
    :class:`trio.ClosedResourceError` when this side closed it, in another task too. A cancelled receive has
    taken nothing; after a cancelled send the connection is of no use but to be reset.
    """

    async def receive(self) -> bytes:
        """The next bytes, at most ``RECEIVE_SIZE``; empty at the end of the stream."""
        ...

    async def receive_into(self, target: ReceiveTarget) -> int:
        """Receive into the target's window; how many bytes came, 0 at the end of the stream."""
        ...

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Hand over what can be without waiting, at most 256 KiB; how many bytes that was."""
        ...

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        """Wait until some bytes can be handed over, and do; how many that was, at least 1 unless there are none."""
        ...

    async def wait_hangup(self, *, half_close: bool) -> None:
        """Wait until the peer is gone, without reading.

        :param half_close: whether a peer that shut down only its sending side counts as gone.
            Never returns where the system or the stream cannot tell.
        """
        ...

    def readable_nowait(self) -> bool:
        """Whether bytes, the end or an error are waiting to be read."""
        ...

    async def send_end(self) -> None:
        """Send the end of our side, as far as the transport can, in bounded time; errors are the next receive's to
        report. What the peer still sends can be received."""
        ...

    def close(self) -> None:
        """Close now; whoever waits gets ClosedResourceError. Idempotent."""
        ...

    def reset(self) -> None:
        """Close now and drop what the kernel still has queued, so that the peer learns of it at once. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Close, with whatever the transport says goodbye with, in bounded time. Idempotent, cancel-safe."""
        ...

    def watch_peer(self, patience: float) -> None:
        """Have the connection break when the peer's system answers nothing for so many seconds, as far as the system
        can tell. To be called again every sixth of that."""
        ...

    @property
    def closed(self) -> bool:
        """Whether this side has closed it."""
        ...

    @property
    def vanished(self) -> bool:
        """Whether it broke since the peer's system answers nothing, or cannot be reached, any more."""
        ...


async def send_all(transport: Transport, buffers: Sequence[Buffer], *, stall: float) -> None:
    """Send everything, in order.

    :param stall: seconds that the peer may take nothing at all.
    :raises trio.TooSlowError: it took nothing for that long.
    """
    while buffers:
        with trio.fail_after(stall):
            buffers = rest_of(buffers, await transport.send_some(buffers))


def rest_of(buffers: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of the buffers when the first ``sent`` bytes have gone."""
    for index, buffer in enumerate(buffers):
        size = len(buffer)
        if sent < size:
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]] if sent else list(buffers[index:])
        sent -= size
    return []
