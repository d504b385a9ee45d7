"""One request on one connection, from the client's side: sent, its response's head read, its body as a stream.

Lives here: what HTTP/1.1 asks of a client, and httpx's errors for what goes wrong. Does not live here: which
connection, and when to try again.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast, final

import httpx
import trio

from ..errors import Fault, ProxyError
from ..http1 import (
    CHUNK_END,
    LAST_CHUNK,
    BodyDecoder,
    HeadLimits,
    HeadParser,
    HeadReader,
    ResponseHead,
    chunk_prefix,
    decoder,
    read_response_head,
    request_head,
)
from ..transport import Buffer, Transport, rest_of
from .connections import Hold

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

_T = TypeVar("_T")
_TraceCallback: TypeAlias = Callable[[str, dict[str, object]], Awaitable[object]]
_SMALL: Final = 65536
"""Bytes of a request that are sent without an eye on what comes back."""
_CLOSE_GRACE: Final = 1.0
"""Seconds that a request's body may take to clean up."""
_LIMITS: Final = HeadLimits(size=1 << 18, fields=1000)
_MAX_INTERIM: Final = 100


class StaleConnectionError(Exception):
    """A connection that had been used before was dead; the request can be tried on a fresh one."""


class Timeouts:
    """How long a request may wait for what, in seconds, from its ``timeout`` extension."""

    __slots__ = ("connect", "pool", "read", "write")

    def __init__(self, request: httpx.Request) -> None:
        given = cast("Mapping[str, float | None]", extension(request, "timeout") or {})
        self.connect = _seconds(given.get("connect"))
        self.read = _seconds(given.get("read"))
        self.write = _seconds(given.get("write"))
        self.pool = _seconds(given.get("pool"))


def extension(request: httpx.Request, name: str) -> object:
    """What a request says beside HTTP, if it does."""
    extensions = cast("Mapping[str, object]", request.extensions)  # pyright: ignore[reportUnknownMemberType] - a dict
    return extensions.get(name)


def _seconds(value: float | None) -> float:
    return math.inf if value is None else value


async def within(seconds: float, error: type[httpx.TimeoutException], what: Callable[[], Awaitable[_T]]) -> _T:
    """Await it; raises the error if it takes longer than that."""
    with trio.move_on_after(seconds):
        return await what()
    raise error(f"it took longer than {seconds:g} s")


class Trace:
    """Tells the request's ``trace`` extension what happens, in httpcore's words."""

    __slots__ = ("_callback", "_request")

    def __init__(self, request: httpx.Request) -> None:
        self._callback = cast("_TraceCallback | None", extension(request, "trace"))
        self._request = request

    async def of(self, name: str, what: Callable[[], Awaitable[_T]]) -> _T:
        """Await something, and tell of its begin and of its end."""
        if self._callback is None:
            return await what()
        await self._callback(f"{name}.started", {"request": self._request})
        try:
            result = await what()
        except Exception as error:
            await self._callback(f"{name}.failed", {"exception": error})  # noqa: ASYNC120 - a cancel may replace it
            raise
        await self._callback(f"{name}.complete", {"return_value": result})
        return result


@final
class Call:
    """One request on one connection that is held.

    :param reused: whether the connection was used before, so that it may have died unseen.
    :raises httpx.LocalProtocolError: the request is none that can be sent.
    """

    def __init__(
        self, request: httpx.Request, hold: Hold, parser: HeadParser, timeouts: Timeouts, trace: Trace
    ) -> None:
        transport = hold.lease.transport
        assert transport is not None
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self._request = request
        self._stream: httpx.AsyncByteStream = request.stream
        self._hold = hold
        self._transport: Transport = transport
        self._parser = parser
        self._timeouts = timeouts
        self._trace = trace
        self._method = request.method.encode("ascii")
        self._framing = _BodyFraming(request)
        self._head = _head_of(request, self._method)
        self._reader = HeadReader(_LIMITS, fault=Fault.UPSTREAM)
        self._wrote = False
        """Whether a byte was handed over."""
        self._body_begun = False
        self._silent = True
        """Whether no byte has come back."""
        self._uploaded = False

    async def run(self) -> httpx.Response:
        """Send the request and read its response's head.

        :raises StaleConnectionError: nothing came back on a connection that had been used before, and the request may
            be sent again (RFC 9110 section 9.2.2).
        :raises httpx.HTTPError: whatever else went wrong.
        """
        try:
            head, rest = await self._exchange()
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:
            if self._hold.lease.reused and self._silent and self._repeatable:
                raise StaleConnectionError from error
            raise
        return self._response(head, rest)

    @property
    def _repeatable(self) -> bool:
        if not self._wrote:
            return not self._body_begun
        return self._method in _IDEMPOTENT and (not self._body_begun or isinstance(self._stream, httpx.ByteStream))

    # Sending.

    async def _exchange(self) -> tuple[ResponseHead, bytes]:
        if self._framing.small(self._stream):
            return await self._send_then_read()
        return await self._send_while_watching()

    async def _send_then_read(self) -> tuple[ResponseHead, bytes]:
        failure: httpx.WriteError | None = None
        try:
            await self._trace.of("http11.send_request_headers", self._send_small)
        except httpx.WriteError as error:
            failure = error  # the server may have answered before it closed
        try:
            return await self._trace.of("http11.receive_response_headers", self._read_head)
        except httpx.NetworkError as error:
            raise failure or error from error

    async def _send_small(self) -> None:
        buffers: list[Buffer] = [self._head]
        if self._framing.has_body:
            async with self._body() as pieces:
                async for data in pieces:
                    buffers += self._framing.encode(data)
            buffers += self._framing.end()
        await self._send(buffers)
        self._uploaded = True

    async def _send_while_watching(self) -> tuple[ResponseHead, bytes]:
        """Send, and stop sending as soon as the response is there: it may come early (RFC 9112 section 9.5)."""
        answers: list[tuple[ResponseHead, bytes]] = []
        errors: list[Exception] = []
        # Errors are carried out by hand: through a nursery they would come in groups.
        async with trio.open_nursery() as nursery:
            arrived = trio.Event()
            with trio.CancelScope() as sending:  # noqa: ASYNC912 - the body or the sending waits somewhere

                async def watch() -> None:
                    try:
                        answers.append(await self._receive_head(math.inf))
                    except httpx.HTTPError as error:
                        errors.append(error)
                    arrived.set()
                    sending.cancel()

                nursery.start_soon(watch)
                try:
                    await self._trace.of("http11.send_request_headers", self._send_head)
                    await self._trace.of("http11.send_request_body", self._send_body)
                    self._uploaded = True
                except Exception as error:  # of the body's own as well
                    errors.append(error)
            if not errors or isinstance(errors[0], httpx.WriteError):  # then it may have answered before it closed
                try:
                    await within(self._timeouts.read, httpx.ReadTimeout, arrived.wait)
                except httpx.ReadTimeout as error:
                    errors.append(error)
            nursery.cancel_scope.cancel()
        if answers:
            return answers[0]
        raise errors[0]

    async def _send_head(self) -> None:
        await self._send([self._head])

    async def _send_body(self) -> None:
        async with self._body() as pieces:
            async for data in pieces:
                await self._send(self._framing.encode(data))
        await self._send(self._framing.end())

    @asynccontextmanager
    async def _body(self) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The pieces of the body; a generator that makes them is closed, wherever it has got to."""
        self._body_begun = True
        pieces = self._stream.__aiter__()
        try:
            yield pieces
        finally:
            if isinstance(pieces, AsyncGenerator):
                with trio.move_on_after(_CLOSE_GRACE, shield=True):
                    await cast("AsyncGenerator[bytes]", pieces).aclose()

    async def _send(self, buffers: Sequence[Buffer]) -> None:
        with _as_errors(httpx.WriteError):
            while buffers:
                sent = self._transport.send_nowait(buffers)
                if not sent:
                    sent = await within(
                        self._timeouts.write, httpx.WriteTimeout, partial(self._transport.send_some, buffers)
                    )
                self._wrote = self._wrote or bool(sent)
                buffers = rest_of(buffers, sent)

    # Receiving.

    async def _read_head(self) -> tuple[ResponseHead, bytes]:
        return await self._receive_head(self._timeouts.read)

    async def _receive_head(self, seconds: float) -> tuple[ResponseHead, bytes]:
        reader = self._reader
        interim = 0
        with _as_errors(httpx.ReadError):
            while True:
                data = await within(seconds, httpx.ReadTimeout, self._transport.receive)
                if not data:
                    raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
                self._silent = False
                raw = reader.feed(data)
                while raw is not None:
                    head = read_response_head(raw, self._parser, _LIMITS, request_method=self._method)
                    if head.status >= 200 or head.status == 101:
                        return head, reader.take_rest()
                    interim += 1
                    if interim > _MAX_INTERIM:
                        raise httpx.RemoteProtocolError(f"more than {_MAX_INTERIM} interim responses")
                    raw = reader.feed(b"")

    def _response(self, head: ResponseHead, rest: bytes) -> httpx.Response:
        stream = ResponseStream(self._hold, self._transport, head, rest, self._timeouts, self._trace, self._uploaded)
        return httpx.Response(
            head.status,
            headers=[(name, value) for _, name, value in head.fields],
            stream=stream,
            extensions={
                "http_version": b"HTTP/1.1" if head.http_11 else b"HTTP/1.0",
                "reason_phrase": head.reason,
                "network_stream": NetworkStream(self._transport, rest if head.status == 101 else b""),
            },
        )


_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})


def _head_of(request: httpx.Request, method: bytes) -> bytes:
    target = cast("bytes | None", extension(request, "target")) or request.url.raw_path
    hosts = sum(name.lower() == b"host" for name, _ in request.headers.raw)
    if hosts != 1:
        raise httpx.LocalProtocolError(f"a request has one Host header, not {hosts}")
    try:
        return request_head(method, target, request.headers.raw)
    except ValueError as error:
        raise httpx.LocalProtocolError(f"the request cannot be written: {error}") from None


@final
class _BodyFraming:
    """How a request's body goes out, and that it is as long as its head says."""

    def __init__(self, request: httpx.Request) -> None:
        lengths = request.headers.get_list("content-length")
        codings = request.headers.get_list("transfer-encoding")
        if len(lengths) + len(codings) > 1:
            raise httpx.LocalProtocolError("a request has one Content-Length or one Transfer-Encoding header")
        if codings and codings[0].lower() != "chunked":
            raise httpx.LocalProtocolError("the only Transfer-Encoding that can be sent is chunked")
        if lengths and not (lengths[0].isascii() and lengths[0].isdigit()):
            raise httpx.LocalProtocolError("Content-Length must be a number")
        self._chunked = bool(codings)
        self._length = self._left = int(lengths[0]) if lengths else 0

    @property
    def has_body(self) -> bool:
        """Whether the head announces one."""
        return self._chunked or self._length > 0

    def small(self, stream: httpx.AsyncByteStream) -> bool:
        """Whether all of it is there and can go out with the head."""
        if self._chunked or not isinstance(stream, httpx.ByteStream):
            return not self.has_body
        return self._length <= _SMALL

    def encode(self, data: bytes) -> list[Buffer]:
        """What goes out for a piece of the body."""
        if not data:
            return []
        if self._chunked:
            return [chunk_prefix(len(data)), data, CHUNK_END]
        self._left -= len(data)
        if self._left < 0:
            raise httpx.LocalProtocolError("Too much data for declared Content-Length")
        return [data]

    def end(self) -> list[Buffer]:
        """What goes out at the end of the body."""
        if self._left:
            raise httpx.LocalProtocolError("Too little data for declared Content-Length")
        return [LAST_CHUNK] if self._chunked else []


@contextmanager
def _as_errors(broken: type[httpx.NetworkError]) -> Generator[None]:
    try:
        yield
    except trio.BrokenResourceError as error:
        raise broken(str(error) or "the connection broke") from error
    except trio.ClosedResourceError as error:
        raise broken("the connection was closed here") from error
    except ProxyError as error:
        raise httpx.RemoteProtocolError(error.message) from error


@final
class ResponseStream(httpx.AsyncByteStream):
    """The body of a response, as its bytes come. Holds the connection until its end, or until it is closed.

    Cancelled while it waits, it has lost nothing and can be read on. Neither a scope nor a task is open between two
    pieces. Closing is one synchronous step before anything is awaited: under cancellation httpx closes and never comes
    back. A stream that is dropped is closed by its finalizer.
    """

    def __init__(
        self,
        hold: Hold,
        transport: Transport,
        head: ResponseHead,
        rest: bytes,
        timeouts: Timeouts,
        trace: Trace,
        uploaded: bool,
    ) -> None:
        self._hold = hold
        self._transport = transport
        self._trace = trace
        self._read_timeout = timeouts.read
        self._reusable = head.keep_alive and uploaded and head.status != 101
        self._decoder: BodyDecoder = decoder(head.framing, Fault.UPSTREAM, _LIMITS)
        self._pending = b"" if head.status == 101 else rest
        self._closed = False
        if self._decoder.done and head.status != 101:
            self._finish()

    def __repr__(self) -> str:
        return f"<ResponseStream {'closed' if self._closed else self._hold.lease.state.value}>"

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._hold.abandon()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The next piece. Not of a generator, which Trio would have to close if it were dropped."""
        if self._decoder.done:
            raise StopAsyncIteration
        data = await self._trace.of("http11.receive_response_body", self._next)
        if not data:
            raise StopAsyncIteration
        return data

    async def _next(self) -> bytes:
        with _as_errors(httpx.ReadError):
            while True:  # noqa: ASYNC913 - the transport yields after a bounded amount of work
                if self._closed:
                    raise httpx.ReadError("the response was closed")
                if not self._pending:
                    self._pending = await within(self._read_timeout, httpx.ReadTimeout, self._transport.receive)
                    if not self._pending:
                        self._decoder.end_of_file()
                        self._finish()
                        return b""
                pieces, consumed = self._decoder.decode(self._pending)
                self._pending = self._pending[consumed:]
                if self._decoder.done:
                    self._finish()
                if pieces:
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                if self._decoder.done:
                    return b""

    def _finish(self) -> None:
        """The body has ended: the connection is free, and may be used again if not a byte is left over."""
        if self._reusable and not self._pending:
            self._hold.lease.mark_clean()
        self._pending = b""
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._hold.end()

    async def aclose(self) -> None:
        """Give the connection back, at once; unless the body has ended, it is reset."""
        was_open = not self._closed
        self._end()
        if was_open:
            await self._trace.of("http11.response_closed", trio.lowlevel.checkpoint)


@final
class NetworkStream:
    """The connection below a response, for protocols that begin with a 101: its bytes, as they come.

    It ends with the response.
    """

    def __init__(self, transport: Transport, rest: bytes) -> None:
        self._transport = transport
        self._rest = rest

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's interface
        """The next bytes, empty at the end."""
        if not self._rest:
            with _as_errors(httpx.ReadError):
                self._rest = await within(_seconds(timeout), httpx.ReadTimeout, self._transport.receive)
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's interface
        """Send everything."""
        rest: Sequence[Buffer] = [buffer]
        with _as_errors(httpx.WriteError):
            while rest := [piece for piece in rest if piece]:
                sent = await within(_seconds(timeout), httpx.WriteTimeout, partial(self._transport.send_some, rest))
                rest = rest_of(rest, sent)

    async def aclose(self) -> None:
        """Close the connection."""
        self._transport.close()

    def get_extra_info(self, info: str) -> object:
        """Nothing: there is no such information here."""
        del info
        return None
