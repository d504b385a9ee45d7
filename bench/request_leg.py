"""The cost of small requests: 0.6 kB in, 0.3 kB out, one after the other on each of a few keep-alive connections.

Lives here: that load, its answers and its checks. It comes in two ways, as what one request costs depends on how many
come at once, of which a wake-up then takes care together. "paced": a fixed rate, the same for every proxy. "closed":
each connection sends its next request when it has its response, so that a proxy that is quicker also has more to do at
once. The figure that compares proxies is CPU per request, not requests per second.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple, final

from bench.messages import MessageReader, chat_body, completion, json_response, post
from bench.origin import Origin, OriginWire
from bench.wire import Loop, ProbeError, Wire, connect

WARM_UP: Final = 0.3
"""Seconds before counting: connections, the proxy's caches and code."""
_REQUEST: Final = post(chat_body(600, stream=False))
_COMPLETION: Final = completion(300)
_RESPONSE: Final = json_response(_COMPLETION)
_TIMEOUT: Final = 10.0


class RequestCost(NamedTuple):
    """What a round of small requests has shown."""

    us_per_request: float
    """CPU time of the proxy, µs."""
    per_second: float
    """Requests; of the probe and the proxy together, see the file's docstring."""
    requests: int


@final
class _Tally:
    __slots__ = ("closed", "completed")

    def __init__(self, *, closed: bool) -> None:
        self.completed = 0
        self.closed = closed
        """Whether a client sends its next request when it has its response."""


@final
class _Client(Wire):
    __slots__ = ("_body", "_reader", "_tally", "waiting")

    def __init__(self, loop: Loop, sock: socket.socket, tally: _Tally) -> None:
        super().__init__(loop, sock)
        self._tally = tally
        self._body: list[bytes] = []
        self._reader = MessageReader(self._body.append)
        self.waiting = False

    def ask(self) -> None:
        self.waiting = True
        self.send(_REQUEST)

    def received(self, data: bytes) -> None:
        if not self.waiting:
            raise ProbeError(f"bytes without a request: {data[:100]!r}")
        if not self._reader.feed(data):
            return
        if not self._reader.head.startswith(b"HTTP/1.1 200 ") or b"".join(self._body) != _COMPLETION:
            raise ProbeError(f"not the response that was sent: {self._reader.head!r} {self._body!r}")
        self._body.clear()
        self._tally.completed += 1
        self.waiting = False
        if self._tally.closed:
            self.ask()


def _answer(wire: OriginWire, body: bytes) -> None:
    if len(body) != 600:
        raise ProbeError(f"a request of {len(body)} bytes where 600 were sent")
    wire.done()
    wire.send(_RESPONSE)


def measure_requests(
    loop: Loop,
    origin: Origin,
    port: int,
    cpu_ns: Callable[[], int],
    *,
    connections: int,
    seconds: float,
    rate: float | None = None,
) -> RequestCost:
    """Load `port` for `seconds` over `connections`, and every response is checked.

    :param rate: requests a second in all; None for as many as the connections get answered.
    :raises ProbeError: a response is missing, wrong or doubled.
    """
    origin.answer = _answer
    tally = _Tally(closed=rate is None)
    clients = [_Client(loop, connect(port), tally) for _ in range(connections)]
    try:
        _load(loop, clients, WARM_UP, rate)
        began, cpu, completed = time.perf_counter(), cpu_ns(), tally.completed
        _load(loop, clients, seconds, rate)
        cpu, completed, took = cpu_ns() - cpu, tally.completed - completed, time.perf_counter() - began
        tally.closed = False
        loop.run_while(lambda: any(client.waiting for client in clients), "the last responses", _TIMEOUT)
    finally:
        for client in clients:
            client.close()
    if not completed:
        raise ProbeError(f"no request was completed in {seconds:g} s")
    return RequestCost(cpu / completed / 1000, completed / took, completed)


def _load(loop: Loop, clients: list[_Client], seconds: float, rate: float | None) -> None:
    start = time.perf_counter()
    if rate is None:
        for client in clients:
            if not client.waiting:
                client.ask()
    else:
        # Of a request that finds every connection waiting, the time to send it has passed: the proxy is saturated.
        for tick in range(round(seconds * rate)):
            loop.run_until(start + tick / rate)
            for client in clients:
                if not client.waiting:
                    client.ask()
                    break
    loop.run_until(start + seconds)
