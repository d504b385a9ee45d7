"""The probe's model server: accepts the proxy's connections and hands each request to the measurement under way.

Lives here: the server's connections and who answers what arrives on them. What is answered is each measurement's
own business. The connections outlive a measurement, since a proxy keeps them alive, so the one to answer is looked up
for each request.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Generator
from typing import final

from bench.messages import MessageReader
from bench.wire import Loop, ProbeError, Wire, listening


@final
class Origin:
    """The server. Set `answer` before sending anything to the proxy."""

    __slots__ = ("_loop", "_reading", "_wires", "answer", "port")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._wires: set[OriginWire] = set()
        self._reading = True
        self.port = 0
        self.answer: Callable[[OriginWire, bytes], None] = _refuse
        """Called with the connection and the request's body, once the whole of it has arrived. It calls `wire.send`
        now or later, and `wire.done` with the last of its bytes."""

    def accepted(self, sock: socket.socket) -> None:
        """Take a new connection."""
        self._wires.add(OriginWire(self._loop, sock, self, paused=not self._reading))

    def forget(self, wire: OriginWire) -> None:
        """A connection is gone."""
        self._wires.discard(wire)

    def pause(self) -> None:
        """Read nothing more, on no connection."""
        self._reading = False
        for wire in self._wires:
            wire.pause()

    def resume(self) -> None:
        """Read on."""
        self._reading = True
        for wire in self._wires:
            wire.resume()

    def close(self) -> None:
        """Close all connections."""
        for wire in self._wires:
            wire.close()
        self._wires.clear()


@final
class OriginWire(Wire):
    """One connection from the proxy."""

    __slots__ = ("_busy", "_origin", "_pieces", "_reader")

    def __init__(self, loop: Loop, sock: socket.socket, origin: Origin, *, paused: bool) -> None:
        super().__init__(loop, sock, paused=paused)
        self._origin = origin
        self._pieces: list[bytes] = []
        self._reader = MessageReader(self._pieces.append)
        self._busy = False

    def received(self, data: bytes) -> None:
        """Read a request."""
        if self._busy:
            raise ProbeError(f"a request on a connection whose response is under way: {data[:100]!r}")
        if self._reader.feed(data):
            self._busy = True
            body = b"".join(self._pieces)
            self._pieces.clear()
            self._origin.answer(self, body)

    def done(self) -> None:
        """The response is complete: the next request may come."""
        self._busy = False

    def ended(self) -> None:
        """The proxy may close a connection that is idle."""
        if self._busy:
            raise ProbeError("the proxy closed its connection to the model server before the response's end")
        self._origin.forget(self)


def _refuse(_: OriginWire, body: bytes) -> None:
    raise ProbeError(f"a request that nobody sent: {body[:100]!r}")


@contextlib.contextmanager
def serving(loop: Loop) -> Generator[Origin]:
    """A model server on a free port."""
    origin = Origin(loop)
    with listening(loop, origin.accepted) as origin.port:
        try:
            yield origin
        finally:
            origin.close()
