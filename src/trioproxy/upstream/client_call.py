"""One request on one connection, from the client's side: sent, and the head of its response read.

Lives here: what HTTP/1.1 asks of a client on one connection. Does not live here: which connection, and when to try
again (pool_transport.py), what may be sent (client_message.py), the response's body (client_response.py).
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, cast, final

import httpx
import trio

from ..errors import Fault
from ..http1 import HeadParser, HeadReader, ResponseHead, read_response_head
from ..transport import Buffer, rest_of
from .client_message import Message
from .client_response import LIMITS, NetworkStream, ResponseStream, version
from .client_terms import Timeouts, Trace, as_errors, within
from .connections import Hold

_MAX_INTERIM: Final = 100
_CLOSE_GRACE: Final = 1.0
"""Seconds that a request's body may take to clean up."""
_CONTINUE_PATIENCE: Final = 1.0
"""Seconds that a body is held back for a 100: a server may never send one (RFC 9110 section 10.1.1)."""
_AT_ONCE: Final = 1 << 20
"""Bytes sent without yielding, at most: 0.3 ms."""


class StaleConnectionError(Exception):
    """A connection that had been used before was dead; the request can be tried on a fresh one."""


class _Answer(NamedTuple):
    """The final head of a response, and what came after it in the same read."""

    head: ResponseHead
    rest: bytes


@final
class Call:
    """One request on the connection that is held.

    :raises httpx.ReadError: none is held any more.
    """

    def __init__(self, message: Message, hold: Hold, parser: HeadParser, timeouts: Timeouts, trace: Trace) -> None:
        with as_errors(httpx.ReadError):
            self._transport = hold.transport
        self._message = message
        self._hold = hold
        self._parser = parser
        self._timeouts = timeouts
        self._trace = trace
        self._reader = HeadReader(LIMITS, fault=Fault.UPSTREAM)
        self._continued = trio.Event()
        """The server asks for the body."""
        self._wrote = False
        """Whether a byte was handed over."""
        self._spent = 0
        """Bytes handed over since others had their turn."""
        self._consumed = False
        """Whether pieces may have been taken from a body that cannot be had again."""
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
            answer = await (self._send_then_read() if self._message.small else self._send_while_watching())
        except Exception as error:  # of a body's own as well
            broken = isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError)
            if broken and self._hold.lease.reused and self._silent and self._repeatable:
                raise StaleConnectionError from error
            self._hold.end()
            await self._trace.closed()  # noqa: ASYNC120 - a cancel may replace it
            raise
        return self._response(answer)

    @property
    def _repeatable(self) -> bool:
        return not self._hold.ended and not self._consumed and (not self._wrote or self._message.idempotent)

    # Sending.

    async def _send_then_read(self) -> _Answer:
        failure: httpx.WriteError | None = None
        try:
            if self._trace.wanted:  # as two steps, since there are two to tell of
                await self._send_head_and_body()
            else:
                await self._send([self._message.head, *await self._whole_body()])
                self._uploaded = True
        except httpx.WriteError as error:
            failure = error  # the server may have answered before it closed
        try:
            return await self._trace.of(
                "http11.receive_response_headers", partial(self._receive_head, self._timeouts.read), _told
            )
        except httpx.NetworkError as error:
            raise failure or error from error

    async def _send_while_watching(self) -> _Answer:
        """Send, and stop sending as soon as the response is there: it may come early (RFC 9112 section 9.5)."""
        watch = _Watch()
        answer: _Answer | None = None
        failure: Exception | None = None
        # Errors are carried out by hand: through a nursery they would come in groups.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, watch)
            with watch.sending:
                try:
                    await self._send_head_and_body()
                except Exception as error:  # of the body's own as well
                    failure = error
            # It may have answered before it closed. A body may fail by being cancelled.
            if failure is None or isinstance(failure, httpx.WriteError) or watch.answer is not None:
                try:
                    answer = await self._trace.of("http11.receive_response_headers", partial(self._await, watch), _told)
                except Exception as error:
                    failure = failure if failure is not None and isinstance(error, httpx.NetworkError) else error
            nursery.cancel_scope.cancel()
        if answer is not None:
            return answer
        assert failure is not None
        raise failure

    async def _watch(self, watch: _Watch) -> None:
        try:
            watch.answer = await self._receive_head(math.inf)
        except httpx.HTTPError as error:
            watch.error = error
        watch.arrived.set()
        watch.sending.cancel()

    async def _await(self, watch: _Watch) -> _Answer:
        await within(self._timeouts.read, httpx.ReadTimeout, watch.arrived.wait)
        if watch.answer is None:
            assert watch.error is not None
            raise watch.error
        return watch.answer

    async def _send_head_and_body(self) -> None:
        await self._trace.of("http11.send_request_headers", partial(self._send, [self._message.head]))
        await self._trace.of("http11.send_request_body", self._send_body)
        self._uploaded = True

    async def _send_body(self) -> None:
        if self._message.expects_continue:
            with trio.move_on_after(_CONTINUE_PATIENCE):
                await self._continued.wait()
        if self._message.content is not None:
            await self._send(await self._whole_body())
            return
        writer = self._message.body()
        async with self._pieces() as pieces:
            async for data in pieces:
                await self._send(writer.piece(data))
        await self._send(writer.end())

    async def _whole_body(self) -> list[Buffer]:
        """All that goes out for a body that is there already, or that the head says does not exist."""
        writer = self._message.body()
        if self._message.content is not None:
            return writer.of(self._message.content)
        async with self._pieces() as pieces:
            async for data in pieces:
                writer.piece(data)  # refuses it
        return []

    @asynccontextmanager
    async def _pieces(self) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The pieces of the body; a generator that makes them is closed, wherever it has got to."""
        self._consumed = True
        pieces = self._message.stream.__aiter__()
        try:
            yield pieces
        finally:
            if isinstance(pieces, AsyncGenerator):
                with trio.move_on_after(_CLOSE_GRACE, shield=True):
                    await cast("AsyncGenerator[bytes]", pieces).aclose()

    async def _send(self, buffers: Sequence[Buffer]) -> None:
        with as_errors(httpx.WriteError):
            while buffers:
                if self._spent >= _AT_ONCE:  # who answers early must be heard, however fast this is taken
                    self._spent = 0
                    await trio.lowlevel.checkpoint()
                sent = self._transport.send_nowait(buffers)
                if not sent:
                    sent = await within(
                        self._timeouts.write, httpx.WriteTimeout, partial(self._transport.send_some, buffers)
                    )
                self._spent += sent
                self._wrote = self._wrote or bool(sent)
                buffers = rest_of(buffers, sent)

    # Receiving.

    async def _receive_head(self, patience: float) -> _Answer:
        reader = self._reader
        interim = 0
        with as_errors(httpx.ReadError):
            while True:
                data = await within(patience, httpx.ReadTimeout, self._transport.receive)
                if not data:
                    raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
                self._silent = False
                raw = reader.feed(data)
                while raw is not None:
                    head = read_response_head(raw, self._parser, LIMITS, request_method=self._message.method)
                    if head.status >= 200 or head.status == 101:
                        return _Answer(head, reader.take_rest())
                    interim += 1
                    if interim > _MAX_INTERIM:
                        raise httpx.RemoteProtocolError(f"more than {_MAX_INTERIM} interim responses")
                    if head.status == 100:
                        self._continued.set()
                    raw = reader.feed(b"")

    def _response(self, answer: _Answer) -> httpx.Response:
        head, rest = answer
        switched = head.status == 101
        stream = ResponseStream(
            self._hold,
            head,
            b"" if switched else rest,
            self._timeouts,
            self._trace,
            reusable=head.keep_alive and self._uploaded and not switched and not self._message.closes,
        )
        return httpx.Response(
            head.status,
            headers=[(name, value) for _, name, value in head.fields],
            stream=stream,
            extensions={
                "http_version": version(head),
                "reason_phrase": head.reason,
                "network_stream": NetworkStream(self._hold, self._transport, rest if switched else b""),
            },
        )


@final
class _Watch:
    """The wait for a response while its request is being sent."""

    __slots__ = ("answer", "arrived", "error", "sending")

    def __init__(self) -> None:
        self.sending = trio.CancelScope()
        self.arrived = trio.Event()
        self.answer: _Answer | None = None
        self.error: httpx.HTTPError | None = None


def _told(answer: _Answer) -> object:
    """A response's head, as httpcore tells of it."""
    head = answer.head
    return version(head), head.status, head.reason, [(name, value) for _, name, value in head.fields]
