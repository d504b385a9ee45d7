"""The cost of streamed events: many concurrent streams, each event a chunk of its own, at a fixed rate.

Lives here: that load, its pace and its checks: every event arrives, once, unchanged, in order, before its successor
is sent.

Two paces, as model servers differ. "spread": streams are independent, each event comes alone, and the proxy wakes up
for each: the dearest case, and the same for every proxy as long as none is saturated. "steps": an engine decodes one
token for every stream of its batch at once, so that all streams have an event at the same moment, and a proxy may
take many per wake-up.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, final

from bench.messages import LAST_CHUNK, STREAM_HEAD, EventReader, Events, MessageReader, chat_body, chunk, post, user_of
from bench.origin import Origin, OriginWire
from bench.wire import Loop, ProbeError, Wire, connect

EVENT_SIZE: Final = 250
WARM_UP: Final = 0.5
"""Seconds of events before counting."""
_SENT_BETWEEN_READS: Final = 8
"""Events of a step that are sent before the clients are looked at, so that the delay is not the probe's own."""
_TIMEOUT: Final = 20.0


class EventCost(NamedTuple):
    """What a round of streamed events has shown."""

    us_per_event: float
    """CPU time of the proxy, µs."""
    per_second: float
    """Events that arrived; as many as were asked for, unless the probe or the proxy is saturated."""
    p50_ms: float
    p99_ms: float
    """From the model server's send to the client's read, ms, in the probe's own time."""
    events: int
    late: int
    """Events that arrived after their successor was due: merged with it, for whoever watches."""


@final
class _Clock:
    """When the events under way were sent, and how long those that arrived have taken."""

    __slots__ = ("arrived", "delays", "late", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.start_over()

    def start_over(self) -> None:
        self.delays: list[float] = []
        self.arrived = 0
        self.late = 0

    def take(self, delay: float) -> None:
        self.arrived += 1
        self.delays.append(delay)
        self.late += delay >= self.limit


@final
class _Stream:
    """Both ends of one stream."""

    __slots__ = ("client", "events", "sent", "sent_at", "server")

    def __init__(self, loop: Loop, port: int, number: int, clock: _Clock) -> None:
        self.events = Events(number, EVENT_SIZE)
        self.sent = 0
        self.sent_at: deque[float] = deque()
        self.server: OriginWire | None = None
        self.client = _Client(loop, connect(port), self, clock)
        self.client.send(post(chat_body(600, stream=True, user=number)))

    def begin(self, wire: OriginWire) -> None:
        if self.server is not None:
            raise ProbeError("a request arrived twice")
        self.server = wire
        wire.send(STREAM_HEAD)

    def step(self) -> None:
        if self.server is None:
            raise ProbeError("an event for a stream that has not begun")
        self.sent_at.append(time.perf_counter())
        self.server.send(chunk(self.events[self.sent]))
        self.sent += 1

    def end(self) -> None:
        if self.server is not None:
            self.server.done()
            self.server.send(LAST_CHUNK)


@final
class _Client(Wire):
    __slots__ = ("_clock", "_message", "_reader", "_stream", "finished")

    def __init__(self, loop: Loop, sock: socket.socket, stream: _Stream, clock: _Clock) -> None:
        super().__init__(loop, sock)
        self._stream = stream
        self._clock = clock
        self._reader = EventReader(stream.events)
        self._message = MessageReader(self._body)
        self.finished = False

    @property
    def has_head(self) -> bool:
        return self._message.head.startswith(b"HTTP/1.1 200 ")

    def received(self, data: bytes) -> None:
        if self._message.feed(data):
            self._reader.end(self._stream.sent)
            self.finished = True

    def _body(self, data: bytes) -> None:
        if not self.has_head:
            raise ProbeError(f"not the response that was sent: {self._message.head!r} {data[:200]!r}")
        for _ in range(self._reader.feed(data)):
            self._clock.take(time.perf_counter() - self._stream.sent_at.popleft())


def measure_events(
    loop: Loop,
    origin: Origin,
    port: int,
    cpu_ns: Callable[[], int],
    *,
    streams: int,
    rate: float,
    seconds: float,
    in_steps: bool,
) -> EventCost:
    """Open `streams` streams through `port`, send `rate` events a second on each for `seconds`, and end them all.

    :raises ProbeError: an event is missing, changed, doubled or out of order, or a stream does not end as it should.
    """
    clock = _Clock(1 / rate)
    opened: list[_Stream] = []
    origin.answer = lambda wire, body: opened[user_of(body)].begin(wire)
    try:
        for number in range(streams):
            opened.append(_Stream(loop, port, number, clock))
            loop.poll(0)
        loop.run_while(lambda: any(not stream.client.has_head for stream in opened), "heads of streams", _TIMEOUT)
        _pace(loop, opened, rate, WARM_UP, in_steps=in_steps)
        clock.start_over()
        began, cpu = time.perf_counter(), cpu_ns()
        _pace(loop, opened, rate, seconds, in_steps=in_steps)
        cost = _cost(cpu_ns() - cpu, time.perf_counter() - began, clock)
        for stream in opened:
            stream.end()
        loop.run_while(lambda: any(not stream.client.finished for stream in opened), "ends of streams", _TIMEOUT)
    finally:
        for stream in opened:
            stream.client.close()
    return cost


def _pace(loop: Loop, streams: list[_Stream], rate: float, seconds: float, *, in_steps: bool) -> None:
    """Send the events of `seconds`: one after the other at equal distances, or all streams' at once."""
    at_once = len(streams) if in_steps else 1
    interval = at_once / (rate * len(streams))
    start = time.perf_counter()
    for tick in range(round(seconds / interval)):
        loop.run_until(start + tick * interval)
        for turn in range(at_once):
            streams[(tick * at_once + turn) % len(streams)].step()
            if turn % _SENT_BETWEEN_READS == _SENT_BETWEEN_READS - 1:
                loop.poll(0)
    loop.run_until(start + seconds)


def _cost(cpu: int, took: float, clock: _Clock) -> EventCost:
    if not clock.delays:
        raise ProbeError("no event arrived")
    delays = sorted(clock.delays)
    p50, p99 = (delays[int(share * (len(delays) - 1))] * 1000 for share in (0.5, 0.99))
    return EventCost(cpu / clock.arrived / 1000, clock.arrived / took, p50, p99, clock.arrived, clock.late)
