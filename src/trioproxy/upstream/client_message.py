"""A request of httpx's as HTTP/1.1 has it: its head, and how its body goes out.

Lives here: what may be sent, which is decided before a connection is taken. Does not live here: sending it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast, final

import httpx

from ..http1 import CHUNK_END, LAST_CHUNK, chunk_prefix, request_head
from ..transport import Buffer
from .client_terms import extension

_SMALL: Final = 65536
"""Bytes of a body that are sent without an eye on what comes back."""
_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})
"""RFC 9110 section 9.2.2."""


@final
class Message:
    """One request.

    :raises httpx.LocalProtocolError: it is none that can be sent; if its body is there already, that it is not as long
        as its head says is seen here too.
    """

    __slots__ = (
        "_chunked",
        "_length",
        "closes",
        "content",
        "expects_continue",
        "head",
        "idempotent",
        "method",
        "stream",
    )

    def __init__(self, request: httpx.Request) -> None:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.stream: httpx.AsyncByteStream = request.stream
        self.content: bytes | None = None
        """The body, if it is there already: it can be sent again then."""
        try:
            self.method = request.method.encode("ascii")
        except UnicodeEncodeError:
            raise httpx.LocalProtocolError(f"not a method: {request.method[:64]!r}") from None
        self._init_framing(request.headers)
        self.head = _head_of(request, self.method)
        self.idempotent = self.method in _IDEMPOTENT
        self.closes = "close" in _tokens(request.headers, "connection")
        """Whether it says that the connection carries nothing after it (RFC 9112 section 9.6)."""
        self.expects_continue = self.has_body and "100-continue" in _tokens(request.headers, "expect")
        if isinstance(self.stream, httpx.ByteStream):
            self.content = b"".join(self.stream)
            self.body().of(self.content)

    def _init_framing(self, headers: httpx.Headers) -> None:
        lengths = headers.get_list("content-length")
        codings = headers.get_list("transfer-encoding")
        if len(lengths) + len(codings) > 1:
            raise httpx.LocalProtocolError("a request has one Content-Length or one Transfer-Encoding header")
        if codings and codings[0].lower() != "chunked":
            raise httpx.LocalProtocolError("the only Transfer-Encoding that can be sent is chunked")
        if lengths and not (lengths[0].isascii() and lengths[0].isdigit()):
            raise httpx.LocalProtocolError("Content-Length must be a number")
        self._chunked = bool(codings)
        self._length = int(lengths[0]) if lengths else 0

    @property
    def has_body(self) -> bool:
        """Whether the head announces one."""
        return self._chunked or self._length > 0

    @property
    def small(self) -> bool:
        """Whether all of it goes out at once."""
        if self.expects_continue:
            return False
        return not self.has_body if self.content is None else len(self.content) <= _SMALL

    def body(self) -> BodyWriter:
        """Writes the body, from its begin."""
        return BodyWriter(None if self._chunked else self._length)


@final
class BodyWriter:
    """What goes out for a body, in its framing, and that it is as long as the head says.

    :param length: in bytes; None sends it in chunks.
    """

    __slots__ = ("_left",)

    def __init__(self, length: int | None) -> None:
        self._left = length

    def of(self, content: bytes) -> list[Buffer]:
        """What goes out for a whole body."""
        return [*self.piece(content), *self.end()]

    def piece(self, data: bytes) -> list[Buffer]:
        """What goes out for a piece."""
        if not data:
            return []
        if self._left is None:
            return [chunk_prefix(len(data)), data, CHUNK_END]
        self._left -= len(data)
        if self._left < 0:
            raise httpx.LocalProtocolError("Too much data for declared Content-Length")
        return [data]

    def end(self) -> list[Buffer]:
        """What goes out at the end."""
        if self._left:
            raise httpx.LocalProtocolError("Too little data for declared Content-Length")
        return [LAST_CHUNK] if self._left is None else []


def _tokens(headers: httpx.Headers, name: str) -> Sequence[str]:
    value = headers.get(name)
    return [token.strip() for token in value.lower().split(",")] if value else ()


def _head_of(request: httpx.Request, method: bytes) -> bytes:
    target = cast("bytes | None", extension(request, "target")) or request.url.raw_path
    hosts = sum(name.lower() == b"host" for name, _ in request.headers.raw)
    if hosts != 1:
        raise httpx.LocalProtocolError(f"a request has one Host header, not {hosts}")
    try:
        return request_head(method, target, request.headers.raw)
    except ValueError as error:
        raise httpx.LocalProtocolError(f"the request cannot be written: {error}") from None
