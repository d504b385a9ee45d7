"""One stream that the model server sends as fast as it can, to a client that reads nothing at first.

Lives here: both ends of that stream, the checks of what arrives, and what the caller samples meanwhile.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple, final

from bench.messages import LAST_CHUNK, STREAM_HEAD, EventReader, Events, MessageReader, chat_body, chunk, post
from bench.origin import Origin, OriginWire
from bench.wire import POLL_LIMIT, Loop, ProbeError, Wire, connect

_EVENTS: Final = Events(stream=0, size=50_000)
_SAMPLE: Final = 0.05
"""Seconds between two samples."""
_TIMEOUT: Final = 120.0


class Flood(NamedTuple):
    """What was seen."""

    sent_while_held: int
    """Bytes of events that the model server could hand over while the client did not read: to the proxy, to the
    kernel's buffers on both sides of it."""
    held: int
    """The most that was sampled while the client did not read."""
    flowing: int
    """The most that was sampled while it did."""


@final
class _Client(Wire):
    __slots__ = ("_message", "events", "finished")

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        super().__init__(loop, sock, paused=True)
        self.events = EventReader(_EVENTS)
        self._message = MessageReader(self.events.feed)
        self.finished = False

    def received(self, data: bytes) -> None:
        self.finished = self._message.feed(data)
        if self._message.head and not self._message.head.startswith(b"HTTP/1.1 200 "):
            raise ProbeError(f"not the response that was sent: {data[:500]!r}")


@final
class _Server:
    """Sends whenever the kernel has taken what was sent before."""

    __slots__ = ("_count", "_wire", "sent")

    def __init__(self, count: int) -> None:
        self._count = count
        self._wire: OriginWire | None = None
        self.sent = 0

    def begin(self, wire: OriginWire, _: bytes) -> None:
        self._wire = wire
        wire.send(STREAM_HEAD)

    def step(self) -> bool:
        """Send the next event if it can be sent now; whether it could."""
        if self._wire is None or self._wire.pending or self.sent == self._count:
            return False
        self._wire.send(chunk(_EVENTS[self.sent]))
        self.sent += 1
        if self.sent == self._count:
            self._wire.done()
            self._wire.send(LAST_CHUNK)
        return True


def flood(loop: Loop, origin: Origin, port: int, sample: Callable[[], int], *, size: int, hold: float) -> Flood:
    """Send `size` bytes of events, of which the client reads nothing for `hold` seconds and then everything.

    :raises ProbeError: bytes are missing, changed, doubled or out of order.
    """
    server = _Server(size // _EVENTS.size)
    origin.answer = server.begin
    client = _Client(loop, connect(port))
    try:
        client.send(post(chat_body(600, stream=True)))
        end = time.perf_counter() + hold
        held = _sampled(loop, server, sample, lambda: time.perf_counter() < end)
        sent_while_held = server.sent * _EVENTS.size
        client.resume()
        flowing = _sampled(loop, server, sample, lambda: not client.finished)
        client.events.end(server.sent)
    finally:
        client.close()
    return Flood(sent_while_held, held, flowing)


def _sampled(loop: Loop, server: _Server, sample: Callable[[], int], condition: Callable[[], bool]) -> int:
    """The highest sample while `condition()` holds and the server sends what it can."""
    most, due, deadline = sample(), 0.0, time.perf_counter() + _TIMEOUT
    while condition():
        now = time.perf_counter()
        if now > deadline:
            raise ProbeError(f"the stream did not end within {_TIMEOUT:g} s")
        if now > due:
            most, due = max(most, sample()), now + _SAMPLE
        loop.poll(0 if server.step() else POLL_LIMIT)
    return max(most, sample())
