"""The response to a client's request: its body as a stream, and the connection below it.

Lives here: reading, and giving the connection back. Does not live here: the response's head (client_call.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final, final

import httpx
import trio

from ..errors import Fault
from ..http1 import BodyDecoder, HeadLimits, ResponseHead, decoder
from ..net import extra_info
from ..transport import Buffer, Transport, rest_of
from .client_terms import Timeouts, Trace, as_errors, seconds, within
from .connections import Hold

LIMITS: Final = HeadLimits(size=1 << 18, fields=1000)
_BODY: Final = "http11.receive_response_body"


def version(head: ResponseHead) -> bytes:
    """The version of HTTP that a response says it is."""
    return b"HTTP/1.1" if head.http_11 else b"HTTP/1.0"


@final
class ResponseStream(httpx.AsyncByteStream):
    """The body of a response, as its bytes come. Holds the connection until its end, or until it is closed.

    Cancelled while it waits, it has lost nothing and can be read on. Neither a scope nor a task is open between two
    pieces. Closing is one synchronous step before anything is awaited: under cancellation httpx closes and never comes
    back. A stream that is dropped is closed by its finalizer.

    :param rest: what has come of it already.
    :param reusable: whether the connection may be used again, if not a byte is left over at the body's end.
    """

    def __init__(
        self, hold: Hold, head: ResponseHead, rest: bytes, timeouts: Timeouts, trace: Trace, *, reusable: bool
    ) -> None:
        self._hold = hold
        self._transport = hold.transport
        self._trace = trace
        self._read_timeout = timeouts.read
        self._reusable = reusable
        self._decoder: BodyDecoder = decoder(head.framing, Fault.UPSTREAM, LIMITS)
        self._pending = rest
        self._closed = False
        self._told_begin = self._told_end = self._told_close = False
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
        data = await (self._traced_next() if self._trace.wanted else self._next())
        if not data:
            raise StopAsyncIteration
        return data

    async def _traced_next(self) -> bytes:
        if not self._told_begin:
            self._told_begin = True
            await self._trace.started(_BODY)
        try:
            data = await self._next()
        except Exception as error:
            if not self._told_end:
                self._told_end = True
                await self._trace.failed(_BODY, error)  # noqa: ASYNC120 - a cancel may replace it
            raise
        if not data and not self._told_end:
            self._told_end = True
            await self._trace.complete(_BODY)
        return data

    async def _next(self) -> bytes:
        with as_errors(httpx.ReadError):
            while not self._decoder.done:  # noqa: ASYNC913 - the transport yields after a bounded amount of work
                if self._closed:
                    raise httpx.ReadError("the response was closed")
                if not self._pending:
                    self._pending = await within(self._read_timeout, httpx.ReadTimeout, self._transport.receive)
                    if not self._pending:
                        self._decoder.end_of_file()
                        self._finish()
                        break
                pieces, consumed = self._decoder.decode(self._pending)
                self._pending = self._pending[consumed:]
                if self._decoder.done:
                    self._finish()
                if pieces:
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
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
        if self._trace.wanted and not self._told_close:
            self._told_close = True
            await self._trace.closed()
        if was_open:
            await trio.lowlevel.checkpoint()


@final
class NetworkStream:
    """The connection below a response, for protocols that begin with a 101, and to be asked about.

    It can be read and written for as long as the response is open: after that the connection may be another request's.
    """

    def __init__(self, hold: Hold, transport: Transport, rest: bytes) -> None:
        self._hold = hold
        self._transport = transport
        self._rest = rest

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's interface
        """The next bytes, empty at the end."""
        if not self._rest:
            with as_errors(httpx.ReadError):
                self._check_open()
                self._rest = await within(seconds(timeout), httpx.ReadTimeout, self._transport.receive)
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's interface
        """Send everything."""
        rest: Sequence[Buffer] = [buffer] if buffer else []
        while rest:
            with as_errors(httpx.WriteError):
                self._check_open()
                send = partial(self._transport.send_some, rest)
                rest = rest_of(rest, await within(seconds(timeout), httpx.WriteTimeout, send))

    def _check_open(self) -> None:
        if self._hold.ended:
            raise trio.ClosedResourceError("the response was closed")

    async def aclose(self) -> None:
        """Close the connection, and the response with it."""
        self._hold.end()

    def get_extra_info(self, info: str) -> object:
        """What is known of the connection, in httpcore's words; None of what is not, and when it is closed.

        :param info: ``server_addr``, ``client_addr``, ``socket``, ``ssl_object`` (what can be asked of one), or
            ``is_readable``.
        """
        return extra_info(self._transport, info)
