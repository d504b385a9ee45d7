"""The cost of small requests: 0.6 kB in, 0.3 kB out, one after the other on each of a few keep-alive connections.

Lives here: that load, its answers and its checks. The load is closed (a connection sends its next request when it has
its response), so the figure that compares proxies is CPU per request, not requests per second.
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
    __slots__ = ("completed", "stopping")

    def __init__(self) -> None:
        self.completed = 0
        self.stopping = False


@final
class _Client(Wire):
    __slots__ = ("_body", "_reader", "_tally", "waiting")

    def __init__(self, loop: Loop, sock: socket.socket, tally: _Tally) -> None:
        super().__init__(loop, sock)
        self._tally = tally
        self._body: list[bytes] = []
        self._reader = MessageReader(self._body.append)
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
        if self._tally.stopping:
            self.waiting = False
        else:
            self.send(_REQUEST)


def _answer(wire: OriginWire, body: bytes) -> None:
    if len(body) != 600:
        raise ProbeError(f"a request of {len(body)} bytes where 600 were sent")
    wire.done()
    wire.send(_RESPONSE)


def measure_requests(
    loop: Loop, origin: Origin, port: int, cpu_ns: Callable[[], int], *, connections: int, seconds: float
) -> RequestCost:
    """Load `port` for `seconds` over `connections`, and every response is checked.

    :raises ProbeError: a response is missing, wrong or doubled.
    """
    origin.answer = _answer
    tally = _Tally()
    clients = [_Client(loop, connect(port), tally) for _ in range(connections)]
    try:
        loop.run_until(time.perf_counter() + WARM_UP)
        began, cpu, completed = time.perf_counter(), cpu_ns(), tally.completed
        loop.run_until(began + seconds)
        cpu, completed, took = cpu_ns() - cpu, tally.completed - completed, time.perf_counter() - began
        tally.stopping = True
        loop.run_while(lambda: any(client.waiting for client in clients), "the last responses", _TIMEOUT)
    finally:
        for client in clients:
            client.close()
    if not completed:
        raise ProbeError(f"no request was completed in {seconds:g} s")
    return RequestCost(cpu / completed / 1000, completed / took, completed)
