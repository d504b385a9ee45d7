"""Many streams at once that a proxy has to hold: uploaded, waiting, begun, ended, in steps that the caller takes.

Lives here: the crowd's clients, its model server's side and the checks of what passes. What is measured meanwhile
does not live here.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Generator
from typing import Final, final

from bench.messages import LAST_CHUNK, STREAM_HEAD, EventReader, Events, MessageReader, chat_body, chunk, post
from bench.origin import Origin, OriginWire
from bench.wire import Loop, ProbeError, Wire, connect

UPLOADED_AT_ONCE: Final = 128 * 2**20
"""Bytes of bodies under way to the model server at most, unless all are asked for at once."""
_QUIET: Final = 0.5
"""Seconds without a byte taken after which an upload has come to rest."""
_TIMEOUT: Final = 60.0
_EVENTS: Final = Events(stream=0, size=250)


@final
class Crowd:
    """`count` streams, each with a prompt of `size` bytes; make one with `gathered`."""

    __slots__ = ("_body", "_clients", "_count", "_loop", "_port", "_servers")

    def __init__(self, loop: Loop, port: int, *, count: int, size: int) -> None:
        self._loop = loop
        self._port = port
        self._count = count
        self._body = chat_body(size, stream=True)
        self._clients: list[_Client] = []
        self._servers: list[OriginWire] = []

    def arrived(self, wire: OriginWire, body: bytes) -> None:
        """The model server has a request, complete."""
        if body != self._body:
            raise ProbeError(f"a body was changed on its way: {len(body)} of {len(self._body)} bytes")
        self._servers.append(wire)

    def upload(self) -> None:
        """Send all requests; returns when the model server has them, and has sent nothing."""
        at_once = max(1, UPLOADED_AT_ONCE // len(self._body))
        while len(self._clients) < self._count:
            self._connect(post(self._body))
            self._wait(lambda: len(self._clients) - len(self._servers) >= at_once, "uploading")
        self._wait_uploaded()

    def upload_but_the_end(self) -> None:
        """Send all requests at once, each without its last byte; returns when no more bytes are taken.

        A proxy that reads bodies whole now holds all of them. (A model server that does not read is not enough: the
        kernel's buffers to it take some MB a connection.)
        """
        for _ in range(self._count):
            self._connect(post(self._body)[:-1])
            self._loop.poll(0)
        left, since = self._unsent(), time.perf_counter()
        while time.perf_counter() - since < _QUIET:
            self._loop.poll(_QUIET)
            if self._unsent() != left:
                left, since = self._unsent(), time.perf_counter()

    def upload_end(self) -> None:
        """Send the last bytes; returns when the model server has all requests."""
        for client in self._clients:
            client.send(self._body[-1:])
        self._wait_uploaded()

    def begin(self) -> None:
        """The model server sends its heads; returns when the clients have them."""
        for server in self._servers:
            server.send(STREAM_HEAD)
        self._wait(lambda: not all(client.begun for client in self._clients), "waiting for heads")

    def end(self) -> None:
        """The model server sends one event and the end; returns when the clients have them and have left."""
        for server in self._servers:
            server.done()
            server.send(chunk(_EVENTS[0]) + LAST_CHUNK)
        self._wait(lambda: not all(client.finished for client in self._clients), "waiting for ends")
        self.close()

    def close(self) -> None:
        """All clients leave."""
        for client in self._clients:
            client.close()

    def _connect(self, request: bytes) -> None:
        self._clients.append(_Client(self._loop, connect(self._port)))
        self._clients[-1].send(request)

    def _wait_uploaded(self) -> None:
        self._wait(lambda: len(self._servers) < self._count, "uploading")

    def _unsent(self) -> int:
        return sum(client.pending for client in self._clients)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        self._loop.run_while(condition, f"{what} ({len(self._servers)} of {self._count} uploaded)", _TIMEOUT)


@final
class _Client(Wire):
    __slots__ = ("_events", "_message", "finished")

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        super().__init__(loop, sock)
        self._events = EventReader(_EVENTS)
        self._message = MessageReader(self._events.feed)
        self.finished = False

    @property
    def begun(self) -> bool:
        return bool(self._message.head)

    def received(self, data: bytes) -> None:
        done = self._message.feed(data)
        if self.begun and not self._message.head.startswith(b"HTTP/1.1 200 "):
            raise ProbeError(f"not the response that was sent: {data[:500]!r}")
        if done:
            self._events.end(sent=1)
            self.finished = True


@contextlib.contextmanager
def gathered(loop: Loop, origin: Origin, port: int, *, count: int, size: int) -> Generator[Crowd]:
    """A crowd that has sent nothing yet; its clients are gone on the way out."""
    crowd = Crowd(loop, port, count=count, size=size)
    origin.answer = crowd.arrived
    try:
        yield crowd
    finally:
        crowd.close()
