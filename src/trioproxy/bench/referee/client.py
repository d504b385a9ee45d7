"""One client: a raw socket, driven by hand, that can leave in every way there is.

Lives here: connecting, sending a part of a body, reading, leaving, and the times of each. Does not live here: when a
client leaves (play.py), or what its response means (responses.py).

The time of leaving is taken right before the call that tells the system; nothing is awaited in between.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, final

import trio

from ..mock_wire import NO_LINGER
from .cases import Way
from .payloads import Payload
from .responses import Response, ResponseError

RECEIVE: Final = 65536
CHAT: Final = "/v1/chat/completions"
ID_HEADER: Final = "x-bench-id"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where requests go: the proxy, or the model server itself.

    :param prefix: of every path, without a slash at its end.
    :param headers: further ones, of every request.
    """

    host: str
    port: int
    prefix: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def authority(self) -> str:
        """Host and port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"http://{self.authority}{self.prefix}"

    def head(self, payload: Payload) -> bytes:
        """The head of a request with this body."""
        lines = [
            f"POST {self.prefix}{CHAT} HTTP/1.1",
            f"Host: {self.authority}",
            "Content-Type: application/json",
            f"Content-Length: {payload.length}",
            f"X-Request-Id: {payload.id}",
            f"{ID_HEADER}: {payload.id}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


@final
@dataclass(slots=True)
class Times:
    """When things happened to a client, by the system's monotonic clock; None for what has not."""

    started: float = field(default_factory=time.monotonic)
    """Before it connected."""
    sent: float | None = None
    """The last byte had been handed over, or the last of those that were to be."""
    left: float | None = None
    """Right before the call to close, shut down or reset."""
    ended: float | None = None
    """The response was complete, or the connection had ended."""


@final
class Client:
    """A connected client with one request; as a ``with`` block it is closed at the end, if it was not before.

    :param connected: non-blocking.
    """

    __slots__ = ("_socket", "broken", "response", "times")

    def __init__(self, connected: socket.socket, response: Response, times: Times) -> None:
        self._socket = connected
        self.response = response
        self.times = times
        self.broken: str | None = None
        """Why nothing more can be sent or read."""

    @classmethod
    async def connect(cls, address: Address, response: Response) -> Client:
        """Open a connection.

        :raises OSError: nobody listens there. Cancelled, nothing is left open.
        """
        times = Times()
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        opened = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            await opened.connect((address.host, address.port))
            connected = socket.socket(fileno=opened.detach())
        except BaseException:
            opened.close()
            raise
        connected.setblocking(False)
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connected, response, times)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def close(self) -> None:
        """Close without leaving: the request is over. Idempotent."""
        self._close()

    @property
    def open(self) -> bool:
        """Whether it has not closed its connection."""
        return self._socket.fileno() >= 0

    async def send(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Send all; never raises for the connection's sake: see ``broken``."""
        try:
            for piece in pieces:
                await self._send(piece)
        except OSError as error:
            self.broken = f"the connection broke under the request: {_told(error)}"
        except trio.ClosedResourceError:
            self.broken = self.broken or "closed by ourselves"
        self.times.sent = time.monotonic()

    async def _send(self, piece: bytes | memoryview) -> None:
        with memoryview(piece) as rest:
            sent = 0
            while sent < len(rest):
                try:
                    sent += self._socket.send(rest[sent:])
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._socket)
        await trio.lowlevel.checkpoint()

    async def read_until(self, enough: Callable[[Response], object]) -> bool:
        """Read until ``enough`` holds or nothing more can come; whether it holds."""
        response = self.response
        while not enough(response):
            if self.over or not self.open:
                await trio.lowlevel.checkpoint()
                return False
            try:
                # Waiting before each read: what is there must not starve the others.
                await trio.lowlevel.wait_readable(self._socket)
            except trio.ClosedResourceError:
                return False
            self._receive()
        return True

    @property
    def over(self) -> bool:
        """Whether nothing more can be read."""
        return self.times.ended is not None

    def _receive(self) -> None:
        if not self.open:
            return
        try:
            data = self._socket.recv(RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            data = b""
            self.broken = self.broken or f"the connection broke: {_told(error)}"
        now = time.monotonic()
        try:
            self.response.feed(data, now)
        except ResponseError as error:
            self.broken = f"not a response: {error}"
            data = b""
        if self.response.complete or not data:
            self.times.ended = now
            if not self.response.complete and self.broken is None:
                self.broken = "the connection ended before the response did"

    def leave(self, way: Way) -> float:
        """Leave now; returns when. In any way but a half-close, the connection is closed when this returns."""
        if way is Way.FIN and not self.over:
            self._drain()  # a close with something unread would be a reset
        if not self.open:  # pragma: no cover - nobody leaves twice
            raise RuntimeError("the client has left already")
        match way:
            case Way.HALF_CLOSE:
                left = time.monotonic()
                with contextlib.suppress(OSError):  # the peer was first
                    self._socket.shutdown(socket.SHUT_WR)
            case Way.RST:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                left = self._close()
            case _:
                left = self._close()
        self.times.left = left
        return left

    def _drain(self) -> None:
        """Take what has arrived, and count it."""
        for _ in range(64):
            before = self.response.body_bytes, self.response.head_at
            self._receive()
            if self.over or before == (self.response.body_bytes, self.response.head_at):
                return

    def _close(self) -> float:
        if self.open:
            trio.lowlevel.notify_closing(self._socket)
        left = time.monotonic()
        self._socket.close()
        return left


def _told(error: OSError) -> str:
    return error.strerror or errno.errorcode.get(error.errno or 0, str(error))
