"""A network in memory: connections that behave like TCP, their two ends, and scripts for the peers of a proxy.

Lives here: what tests under a virtual clock put in place of the operating system's network. Does not live here:
a proxy, HTTP, or assertions.

An :class:`End` is the proxy's ``Transport`` and keeps the habits of a socket, those that hide bugs included: bytes
that are there are taken without a checkpoint, the first send to a peer that has gone succeeds, and closing with bytes
unread resets. Everything that a script does to an end is synchronous where the kernel's answer would be, so that a
test can do it between any two steps of the scheduler.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, final

import trio

from trioproxy.net import Address, StreamTransport
from trioproxy.transport import Buffer, ReceiveTarget, Transport

CAPACITY: Final = 65536
"""Bytes that one direction of a connection holds before its sender has to wait."""
_SEND_SIZE: Final = 262144
_RECEIVE_SIZE: Final = 65536
_CALLS_BEFORE_YIELD: Final = 16


@final
class End:
    """One end of a connection in memory.

    :param name: for messages.
    :param capacity: bytes that may wait here to be received.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.peer: End = self  # until connection() joins two
        self.closed = False
        self.broken = False
        """The peer reset the connection, or it is known to be gone."""
        self.vanished = False
        """It is broken since the peer answered nothing any more."""
        self.watched: Final[list[float]] = []
        """When it was looked whether the peer answers, and how long that may take."""
        self.ended = False
        """The peer sends nothing more; what it has sent comes first."""
        self.stalled = False
        """Nobody reads here any more, and the network holds nothing more for it."""
        self.sent: Final = bytearray()
        """Every byte that was handed over here, whether or not it arrived."""
        self.capacity = capacity
        self._incoming = bytearray()
        self._calls = 0
        self._receiving = False
        self._sending = False
        self._waiting = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "broken" if self.broken else "ended" if self.ended else "open"
        return f"<End {self.name} {state}, {len(self._incoming)} bytes unread>"

    @property
    def unread(self) -> int:
        """How many bytes wait here to be received."""
        return len(self._incoming)

    async def wait_ready(self) -> None:
        """As ``Line.wait_ready``: it is."""
        await trio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        """As ``Transport.receive``."""
        return await self.receive_at_most(_RECEIVE_SIZE)

    async def receive_at_most(self, limit: int) -> bytes:
        """The next bytes, at most ``limit``; empty at the end of the stream."""
        await self._wait_readable()
        data = bytes(self._incoming[:limit])
        self._take(len(data))
        return data

    async def receive_into(self, target: ReceiveTarget) -> int:
        """As ``Transport.receive_into``."""
        await self._wait_readable()
        with target.window() as window:
            count = min(len(window), len(self._incoming))
            window[:count] = self._incoming[:count]
        self._take(count)
        target.filled(count)
        return count

    async def _wait_readable(self) -> None:
        if self._receiving:
            raise trio.BusyResourceError("another task is already receiving from this end")
        self._receiving = True
        try:
            await self._yield_sometimes()
            while True:
                self._check()
                if (self._incoming or self.ended) and not self.stalled:
                    return
                await self._waiting.park()
                self._calls = 0
        finally:
            self._receiving = False

    async def _yield_sometimes(self) -> None:
        """Work without waiting is bounded, as a socket's is."""
        self._calls += 1
        if self._calls > _CALLS_BEFORE_YIELD:
            self._calls = 0
            await trio.lowlevel.checkpoint()

    def _take(self, count: int) -> None:
        del self._incoming[:count]
        if count:
            self.peer._waiting.unpark_all()

    def _check(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError(f"{self.name} was closed")
        if self.broken:
            raise trio.BrokenResourceError(f"{self.name}: reset by the peer")

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """As ``Transport.send_nowait``."""
        if self._sending:
            raise trio.BusyResourceError("another task is already sending on this end")
        self._check()
        peer = self.peer
        room = _SEND_SIZE if peer.closed else 0 if peer.stalled else peer.capacity - len(peer._incoming)
        room = min(room, _SEND_SIZE)
        sent = 0
        for buffer in buffers:
            with memoryview(buffer)[: room - sent] as piece:
                self.sent.extend(piece)
                if not peer.closed:
                    peer._incoming += piece
                sent += len(piece)
        if sent and peer.closed:
            self._break()  # the answer to bytes for nobody
        elif sent:
            peer._waiting.unpark_all()
        return sent

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        """As ``Transport.send_some``."""
        await self._yield_sometimes()
        while True:
            sent = self.send_nowait(buffers)
            if sent or not buffers:
                return sent
            self._sending = True
            try:
                await self._waiting.park()
                self._calls = 0
            finally:
                self._sending = False

    async def wait_hangup(self, *, half_close: bool) -> None:
        """As ``Transport.wait_hangup``."""
        while not (self.broken or (half_close and self.ended)):  # noqa: ASYNC913 - as a socket: no wait if it is so
            if self.closed:
                raise trio.ClosedResourceError(f"{self.name} was closed")
            await self._waiting.park()

    def readable_nowait(self) -> bool:
        """As ``Transport.readable_nowait``."""
        return bool(self._incoming) or self.ended or self.broken

    def watch_peer(self, patience: float) -> None:
        """As ``Transport.watch_peer``."""
        self.watched.append(patience)

    def vanish(self) -> None:
        """Be told by the system that the peer answers nothing any more."""
        self.vanished = True
        self._break()

    def stall(self) -> None:
        """As a peer does that is there and no longer reads, behind buffers that are full."""
        self.stalled = True

    async def send_end(self) -> None:
        """As ``Transport.send_end``: a FIN."""
        self.shutdown_write()

    def shutdown_write(self) -> None:
        """A FIN."""
        self.peer.ended = True
        self.peer._waiting.unpark_all()

    def close(self) -> None:
        """As ``Transport.close``: a FIN, or a reset if bytes are unread here, as RFC 9293 3.10.4 has it."""
        if self._incoming:
            self.reset()
        elif not self.closed:
            self.closed = True
            self.shutdown_write()
            self._waiting.unpark_all()

    def reset(self) -> None:
        """As ``Transport.reset``."""
        if not self.closed:
            self.closed = True
            self._incoming.clear()
            self._waiting.unpark_all()
            self.peer._break()

    def _break(self) -> None:
        self.broken = True
        self._incoming.clear()
        self._waiting.unpark_all()

    async def aclose(self) -> None:
        """As ``Transport.aclose``."""
        self.close()
        await trio.lowlevel.checkpoint()


def connection(name: str, *, capacity: int = CAPACITY) -> tuple[End, End]:
    """The two ends of a new connection.

    :param capacity: bytes that each direction holds.
    """
    ours, theirs = End(f"{name}, near end", capacity), End(f"{name}, far end", capacity)
    ours.peer, theirs.peer = theirs, ours
    return ours, theirs


class Line(Protocol):
    """What a script says and hears on: an end as it is, or with TLS on it."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    async def wait_ready(self) -> None:
        """Wait until something can be said at all."""
        ...

    async def receive_at_most(self, limit: int) -> bytes:
        """The next bytes, empty at the end of the stream."""
        ...

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Hand over what can be without waiting; how many bytes that was."""
        ...

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        """Hand over some bytes; how many that was."""
        ...

    async def wait_hangup(self, *, half_close: bool) -> None:
        """Wait until the peer is gone, without reading."""
        ...

    def shutdown_write(self) -> None:
        """Say that nothing more comes."""
        ...

    def close(self) -> None:
        """Close, as one does who is done."""
        ...


@final
class _Sending(trio.abc.SendStream):
    def __init__(self, end: Line) -> None:
        self._end = end

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                with view[done:] as rest:
                    done += await self._end.send_some([rest])

    async def wait_send_all_might_not_block(self) -> None:
        await self._end.wait_ready()

    def close(self) -> None:
        self._end.shutdown_write()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


@final
class _Receiving(trio.abc.ReceiveStream):
    def __init__(self, end: Line) -> None:
        self._end = end

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return await self._end.receive_at_most(_RECEIVE_SIZE if max_bytes is None else max_bytes)

    def close(self) -> None:
        self._end.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


def stream_of(end: Line) -> trio.abc.HalfCloseableStream:
    """An end as a Trio stream, with the checkpoints that Trio's streams have; owns the end."""
    return trio.StapledStream(_Sending(end), _Receiving(end))


@final
class Peer:
    """The script's side of a connection. Reading raises :class:`trio.BrokenResourceError` if the rest does not come."""

    def __init__(self, end: Line) -> None:
        self.end = end
        self._early = bytearray()

    async def send(self, *pieces: bytes) -> None:
        """Send each piece as a write of its own."""
        for piece in pieces:
            rest: bytes = piece
            while rest:
                rest = rest[await self.end.send_some([rest]) :]
            await trio.lowlevel.checkpoint()

    async def until(self, mark: bytes) -> bytes:
        """What comes up to and including the mark."""
        while (found := self._early.find(mark)) < 0:
            await self._more()
        return self._cut(found + len(mark))

    async def exactly(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        while len(self._early) < count:
            await self._more()
        return self._cut(count)

    async def to_end(self) -> bytes:
        """Everything until the peer ends its side."""
        while data := await self.end.receive_at_most(_RECEIVE_SIZE):
            self._early += data
        return self._cut(len(self._early))

    async def _more(self) -> None:
        data = await self.end.receive_at_most(_RECEIVE_SIZE)
        if not data:
            raise trio.BrokenResourceError(f"{self.end.name}: ended after {bytes(self._early[:64])!r}")
        self._early += data

    def _cut(self, count: int) -> bytes:
        data = bytes(self._early[:count])
        del self._early[:count]
        return data


Script: TypeAlias = Callable[[Peer], Awaitable[None]]
"""What one peer does on one connection; the connection is closed when it returns, or when its peer has gone."""


async def perform(script: Script, line: Line) -> None:
    """Run a script on its side of a connection."""
    try:
        await line.wait_ready()
        await script(Peer(line))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the proxy, or the test, ended the connection first
    finally:
        line.close()


def as_it_is(end: End, port: int) -> Line:
    """A connection without TLS."""
    del port
    return end


@final
class Network:
    """What can be dialled, and everything that was.

    :param nursery: where the scripts of those who are dialled run.
    :param ports: the scripts of the connections to each port, in order; the last one serves all later ones. A port
        that is missing refuses.
    :param streams: whether the dialler gets Trio streams behind ``StreamTransport``, instead of the ends themselves.
    :param line: what the script at a port has on its end, such as TLS; None: it never gets to say or hear anything.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        ports: Mapping[int, Sequence[Script]],
        *,
        streams: bool = False,
        line: Callable[[End, int], Line | None] = as_it_is,
    ) -> None:
        self.dialled: Final[list[End]] = []
        """The dialler's ends, in order."""
        self.lines: Final[list[Line]] = []
        """The other sides of those."""
        self._line = line
        self._nursery = nursery
        self._ports = ports
        self._streams = streams
        self._count: Counter[int] = Counter()

    async def connect(self, address: Address) -> Transport:
        """The proxy's connector."""
        await trio.lowlevel.checkpoint()
        port = int(address.sockaddr[1])
        scripts = self._ports.get(port)
        if scripts is None:
            raise OSError(errno.ECONNREFUSED, f"nobody listens on {port}")
        near, far = connection(f"upstream {port}, connection {self._count[port]}")
        line = self._line(far, port)
        if line is not None:
            self._nursery.start_soon(perform, scripts[min(self._count[port], len(scripts) - 1)], line)
        self._count[port] += 1
        self.dialled.append(near)
        self.lines.append(line or far)
        return StreamTransport(stream_of(near)) if self._streams else near
