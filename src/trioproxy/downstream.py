"""Towards the client: one response, written in the framing that this client understands.

Lives here: what a response looks like on the client's connection, its framing, and whether the connection can be
used afterwards. Does not live here: where the response comes from.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, final

import trio

from .apis.operations import Api
from .apis.refusal import refusal
from .errors import ProxyError
from .http1 import (
    LAST_CHUNK,
    FieldFilter,
    FramingKind,
    ResponseHead,
    chunk_prefix,
    end_to_end,
    response_head,
    response_head_of,
)
from .transport import Buffer, Transport, rest_of, send_all

_PHRASES: Final = {413: b"Content Too Large", 414: b"URI Too Long"}
"""Those of RFC 9110 where Python's are older."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_JOIN_LIMIT: Final = 16384
"""Pieces up to this many bytes are joined for one plain send; larger ones are sent as they are, vectored."""
_RELAYED: Final = FieldFilter(noted=frozenset({b"date", b"x-request-id", b"request-id"}), once=frozenset({b"date"}))


class ClientGone(Exception):  # noqa: N818 - not an error of anyone's: it ends the exchange
    """The client's connection ended under a write."""


class ClientStalled(Exception):  # noqa: N818
    """The client took nothing of its response for as long as the write stall deadline allows."""


@final
class Delimiting(enum.Enum):
    """How the client learns where the body of a response ends."""

    NO_BODY = "no body"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


# An enum's members are looked up anew each time, which is 0.1 µs (CPython 3.11): those of most responses, once.
_LENGTH: Final = FramingKind.LENGTH
_BY_LENGTH: Final = Delimiting.LENGTH
_OPENAI: Final = Api.OPENAI
_ANTHROPIC: Final = Api.ANTHROPIC


def _phrase(status: int) -> bytes:
    return _PHRASES.get(status) or HTTPStatus(status).phrase.encode()


@final
class DateField:
    """The ``Date`` of now, made once a second."""

    __slots__ = ("_second", "_value")

    def __init__(self) -> None:
        self._second = 0
        self._value = b""

    def __call__(self) -> bytes:
        """The value of the field (RFC 9110 6.6.1)."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._value = formatdate(second, usegmt=True).encode()
        return self._value


@final
class ResponseWriter:
    """Writes one response to a client.

    :param http_11: whether the client speaks HTTP/1.1; 1.0 gets no chunks and no interim responses.
    :param head_only: whether it asked with HEAD.
    :param keep_alive: whether the connection may be used again after this response; the writer may change its mind.
    :param stall: seconds that the client may take nothing.
    :param api: by whose conventions it goes.
    """

    __slots__ = (
        "_delimiting",
        "_head_only",
        "_stall",
        "_transport",
        "api",
        "complete",
        "http_11",
        "keep_alive",
        "started",
    )

    def __init__(
        self,
        transport: Transport,
        *,
        http_11: bool,
        head_only: bool,
        keep_alive: bool,
        stall: float,
        api: Api = _OPENAI,
    ) -> None:
        self.api: Final = api
        self._transport = transport
        self._head_only = head_only
        self._stall = stall
        self._delimiting = Delimiting.NO_BODY
        self.http_11 = http_11
        self.keep_alive = keep_alive
        self.started = False
        self.complete = False

    @property
    def open_ended(self) -> bool:
        """Whether the client takes the end of the connection for the end of the body."""
        return self._delimiting is Delimiting.CLOSE

    async def send_continue(self) -> None:
        """Ask for the body (RFC 9110 10.1.1)."""
        if self.http_11:
            await self.send([_CONTINUE])

    async def send_interim(self, head: ResponseHead) -> None:
        """Pass on a 1xx response of the upstream; not to HTTP/1.0 clients (RFC 9110 15.2)."""
        if self.http_11:
            fields = [(name, value) for lower, name, value in end_to_end(head.fields) if lower != b"content-length"]
            await self.send([response_head(head.status, head.reason, fields)])

    def relayed_head(self, head: ResponseHead, request_id: bytes, date: DateField) -> bytes:
        """The upstream's head as this client gets it: without its hop-by-hop fields, in our own framing."""
        kind = head.framing.kind
        lines, names, seen = _RELAYED.lines(head.fields)
        if b"date" not in seen:
            lines.append(b"date: " + date())
        if b"x-request-id" not in seen:
            lines.append(b"x-request-id: " + request_id)
        if self.api is _ANTHROPIC and b"request-id" not in seen:
            lines.append(b"request-id: " + request_id)
        if kind is _LENGTH:
            self._delimiting = _BY_LENGTH
        elif kind is FramingKind.NONE:
            self._delimiting = Delimiting.NO_BODY
        elif self.http_11:
            self._delimiting = Delimiting.CHUNKED
            lines.append(b"transfer-encoding: chunked")
        else:
            self._delimiting = Delimiting.CLOSE
            self.keep_alive = False
        if connection := self._finish_head():
            lines.append(b"connection: " + connection)
        return response_head_of(head.status, head.reason, lines, names)

    def withdraw(self) -> None:
        """Take back a head of which nothing has been sent, so that another response can take its place."""
        self.started = False

    async def send_error(self, error: ProxyError, request_id: str, date: DateField) -> None:
        """Tell the client of an error, as a whole response.

        :raises ClientGone: the connection has ended.
        :raises ClientStalled: the client took nothing for as long as it may.
        """
        fields, body = refusal(error, request_id, self.api)
        fields.append((b"date", date()))
        await self.send([self.own_response(error.status, fields, body)])

    async def send_own(
        self, status: int, fields: list[tuple[bytes, bytes]], body: bytes, request_id: str, date: DateField
    ) -> None:
        """Send a whole response of the proxy's own that is no error.

        Raises as :meth:`send_error` does.
        """
        every = [*fields, (b"x-request-id", request_id.encode()), (b"date", date())]
        await self.send([self.own_response(status, every, body)])

    def own_response(self, status: int, fields: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
        """A whole response of the proxy's own."""
        every = [*fields, (b"content-length", b"%d" % len(body))]
        if connection := self._finish_head():
            every.append((b"connection", connection))
        self.complete = True
        head = response_head(status, _phrase(status), every)
        return head if self._head_only else head + body

    def _finish_head(self) -> bytes:
        """From now on the response has begun. The value of its Connection field, empty if it needs none."""
        self.started = True
        if not self.keep_alive:
            return b"close"
        return b"" if self.http_11 else b"keep-alive"

    def frame(self, pieces: list[bytes], *, last: bool) -> list[Buffer]:
        """The bytes on the connection for pieces of the body, and for its end if these are the last."""
        if self._delimiting is Delimiting.CHUNKED:
            return self._chunks(pieces, last=last)
        if self._delimiting is Delimiting.NO_BODY:
            return []
        return list(pieces)

    def _chunks(self, pieces: list[bytes], *, last: bool) -> list[Buffer]:
        # What one read of the upstream brought is one chunk, whatever its own chunks were.
        size = sum(map(len, pieces))
        if not size:
            return [LAST_CHUNK] if last else []
        end = b"\r\n" + LAST_CHUNK if last else b"\r\n"
        buffers: list[bytes] = [chunk_prefix(size), *pieces, end]
        if size <= _JOIN_LIMIT:
            return [b"".join(buffers)]
        return list(buffers)

    def send_nowait(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Send what can be without waiting; returns the rest.

        :raises ClientGone: the connection has ended.
        """
        try:
            return rest_of(buffers, self._transport.send_nowait(buffers)) if buffers else []
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ClientGone from None

    async def send(self, buffers: Sequence[Buffer]) -> None:
        """Send bytes that were framed.

        :raises ClientGone: the connection has ended.
        :raises ClientStalled: the client took nothing for as long as it may.
        """
        try:
            await send_all(self._transport, buffers, stall=self._stall)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ClientGone from None
        except trio.TooSlowError:
            raise ClientStalled from None
