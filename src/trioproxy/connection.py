"""One client: the reader of its connection, and the order of its requests.

Lives here: who reads when, what a read means in each state, and what becomes of the connection after a request.
Does not live here: what a request goes through (exchange), or how its response is written (downstream).

The reader task owns the read side from accept to close. It starts an exchange for each head, feeds it the body, and
tells it at once when the client is gone: while it may not read, it waits for the hang-up alone. Requests are served
in order; at most 64 KiB are read ahead of the request that is being served.
"""

from __future__ import annotations

import enum
import math
from typing import Final, final

import trio

from . import http1
from .apis.operations import Api, api_of
from .apis.requests import BodyReader, body_reader
from .body import READ_AHEAD, BodyStage, BufferedBody, StreamedBody, overloaded, too_large
from .config import Settings
from .downstream import ClientGone, ClientStalled, ResponseWriter
from .errors import Code, Fault, ProxyError
from .exchange import Exchange
from .http1 import BodyDecoder, FramingKind, HeadReader, LengthDecoder, RequestHead, read_request_head
from .record import Outcome, RequestRecord, outcome_of
from .routing import Match
from .runtime import Runtime
from .transport import Transport
from .upstream.request import Client


@final
class ReadState(enum.Enum):
    """What the next bytes from the client are."""

    HEAD = "head"
    """Of the next request; there is no exchange."""
    BODY = "body"
    """Of the request that is being served."""
    AHEAD = "ahead"
    """Of a later request: kept, up to a bound."""
    DISCARD = "discard"
    """Of no interest, but a response is still to be sent."""
    LINGER = "linger"
    """Of no interest; read on so that the client can read the last response before the connection is gone."""
    CLOSED = "closed"


_WORK_BEFORE_YIELD: Final = 256
"""Chunks of a body: decoding one costs a microsecond, whatever its size."""
_DRAIN_LINGER: Final = 1.0
"""Seconds that a connection lingers at most while the proxy drains."""
# CPython 3.11 looks a member of an enum up anew each time, for 0.1 µs.
_HEAD: Final = ReadState.HEAD
_BODY: Final = ReadState.BODY
_AHEAD: Final = ReadState.AHEAD
_DISCARD: Final = ReadState.DISCARD
_LINGER: Final = ReadState.LINGER
_CLOSED: Final = ReadState.CLOSED


@final
class ClientConnection:
    """One connection of one client, from accept to close.

    :param transport: owned by the connection.
    :param client: whose requests they are.
    """

    __slots__ = (
        "_ahead",
        "_awaiting_room",
        "_client",
        "_deadline",
        "_decoder",
        "_ended",
        "_exchange",
        "_heads",
        "_nursery",
        "_paused",
        "_runtime",
        "_scope",
        "_state",
        "_terms",
        "_transport",
        "_work",
    )

    def __init__(self, runtime: Runtime, transport: Transport, client: Client) -> None:
        self._runtime = runtime
        self._terms = runtime.terms
        """Of the request that is being served, or read."""
        self._transport = transport
        self._client: Final = client
        self._heads = HeadReader(runtime.terms.head_limits, fault=Fault.CLIENT)
        self._state = _HEAD
        self._exchange: Exchange | None = None
        self._decoder: BodyDecoder | None = None
        self._ahead = bytearray()
        self._ended = False
        """The client has shut down its sending side, and may."""
        self._awaiting_room = False
        self._work = 0
        """Chunks since the last yield."""
        self._deadline = trio.current_time() + runtime.settings.deadlines.client_keep_alive
        self._scope = trio.CancelScope()
        self._paused: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<ClientConnection {self._state.value} {self._exchange!r}>"

    async def run(self) -> None:
        """Serve the client until either side is done. Cancelled, it ends its request and closes the connection."""
        self._runtime.connections += 1
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await self._read()
                finally:
                    # At once, not when the last straggler of a request has returned.
                    self._state = _CLOSED
                    if self._exchange is None:
                        await self._transport.aclose()
        finally:
            self._transport.close()
            self._runtime.connections -= 1
            await self._transport.aclose()

    def drain(self) -> None:
        """Close the connection as soon as no request is being served."""
        if self._state is _HEAD and not self._heads.started:
            self._leave()
        elif self._state is _LINGER:
            self._linger()

    def watch_peers(self, patience: float) -> None:
        """As ``Transport.watch_peer``, for the client's connection and for that of its request's upstream."""
        self._transport.watch_peer(patience)
        if self._exchange is not None:
            self._exchange.watch_peer(patience)

    # The reader.

    async def _read(self) -> None:
        while self._state is not _CLOSED:
            # Deadlines that move into the future are left to fire and are looked at then: they move per request,
            # and moving a scope's costs 2 µs.
            exchange = self._exchange
            deadline = self._deadline if exchange is None else min(self._deadline, exchange.pace.deadline)
            with trio.CancelScope(deadline=deadline) as self._scope:
                await self._read_until_deadline()
            if self._scope.cancelled_caught:
                self._check_deadlines()

    async def _read_until_deadline(self) -> None:
        while self._state is not _CLOSED:
            try:
                if self._state is _HEAD:
                    self._received(await self._transport.receive())
                elif self._must_wait():
                    await self._wait()
                elif self._receives_in_place():
                    await self._receive_in_place()
                else:
                    self._received(await self._transport.receive())
            except trio.BrokenResourceError:
                self._gone()
            except trio.ClosedResourceError:
                self._state = _CLOSED
            if self._work >= _WORK_BEFORE_YIELD:
                self._work = 0
                await trio.lowlevel.checkpoint()

    def _must_wait(self) -> bool:
        state = self._state
        if state in (_AHEAD, _DISCARD):
            return self._ended or len(self._ahead) >= READ_AHEAD
        if state is not _BODY or self._exchange is None:
            return False
        body = self._exchange.body
        if body.stage is not BodyStage.RECEIVING:  # it failed, or was let go of, and not because of the reader
            self._state = _DISCARD
            self._deadline = math.inf
            return False
        if isinstance(body, StreamedBody):
            if body.full:
                self._set_deadline(math.inf)
            return body.full
        if body.reserve():
            if self._awaiting_room:
                self._body_progress()
            return False
        if not self._awaiting_room:
            self._awaiting_room = True
            self._set_deadline(trio.current_time() + self._terms.settings.deadlines.overload)
        return True

    async def _wait(self) -> None:
        """Not reading, wait to be resumed, and for the client to be gone."""
        ledger = self._runtime.ledger
        if self._awaiting_room:
            ledger.call_when_freed(self._resume)
        half_close = not self._ended and self._terms.settings.client_half_close == "cancel"
        try:
            with trio.CancelScope() as self._paused:
                await self._transport.wait_hangup(half_close=half_close)
                self._gone()
        finally:
            self._paused = None
            ledger.forget(self._resume)
        if self._state is _BODY and not self._awaiting_room:
            self._body_progress()

    def _resume(self) -> None:
        if self._paused is not None:
            self._paused.cancel()

    def _receives_in_place(self) -> bool:
        return (
            self._state is _BODY
            and isinstance(self._decoder, LengthDecoder)
            and self._exchange is not None
            and isinstance(self._exchange.body, BufferedBody)
        )

    async def _receive_in_place(self) -> None:
        exchange, decoder = self._exchange, self._decoder
        assert exchange is not None
        assert isinstance(decoder, LengthDecoder)
        assert isinstance(exchange.body, BufferedBody)
        body = exchange.body
        count = await self._transport.receive_into(body)
        if not count:
            self._end_of_file()
        elif self._state is _BODY and self._exchange is exchange:
            decoder.took(count)
            self._body_progress()
            with body.last(count) as view:
                exchange.feed_fields(view)
            if decoder.done:
                self._body_complete(exchange, b"")

    def _received(self, data: bytes) -> None:
        """Decide what bytes mean that came from the client, or that were read ahead. Never waits."""
        state = self._state
        if not data:
            self._end_of_file()
        elif state is _HEAD:
            self._head_bytes(data)
        elif state is _BODY:
            self._body_bytes(data)
        elif state is _AHEAD:
            self._ahead += data

    def _end_of_file(self) -> None:
        allowed = self._terms.settings.client_half_close == "allow"
        # A refusal reaches the client in any case: there is nothing to cancel.
        refused = self._state is _DISCARD and self._exchange is None
        if refused or (allowed and self._state in (_AHEAD, _DISCARD)):
            self._ended = True
        else:
            self._gone()

    def _gone(self) -> None:
        """The client has left."""
        if self._exchange is not None:
            self._exchange.abort(Outcome.CLIENT_CLOSED)
        self._close()

    def _close(self) -> None:
        """Close now, and wake the reader if it waits for anything."""
        self._state = _CLOSED
        self._transport.close()
        self._scope.cancel()  # for a stream that cannot be closed without waiting, which wakes nobody

    def _leave(self) -> None:
        """Close a connection on which nothing is under way, with what its transport says goodbye with."""
        self._state = _CLOSED
        self._scope.cancel()

    # Deadlines of the reader.

    def _set_deadline(self, deadline: float) -> None:
        self._deadline = deadline
        self._set_alarm(deadline)

    def _set_alarm(self, deadline: float) -> None:
        """Have the deadlines looked at then, at the latest."""
        if deadline < self._scope.deadline:
            self._scope.deadline = deadline

    def _check_deadlines(self) -> None:
        now = trio.current_time()
        if self._exchange is not None and now >= self._exchange.pace.deadline:
            self._exchange.expire()
        if now >= self._deadline:
            self._expired()

    def _body_progress(self) -> None:
        self._awaiting_room = False
        self._set_deadline(trio.current_time() + self._terms.settings.deadlines.body_stall)

    def _expired(self) -> None:
        deadlines = self._terms.settings.deadlines
        if self._state is _HEAD and self._heads.started:
            self._refuse(
                ProxyError(Code.REQUEST_TIMEOUT, f"the request's head did not arrive within {deadlines.head:g} s")
            )
        elif self._state is _BODY:
            exchange = self._exchange
            if self._awaiting_room and exchange is not None and isinstance(exchange.body, BufferedBody):
                if exchange.body.reserve():  # those refused just before have made room
                    self._body_progress()
                else:
                    self._body_failed(overloaded())
            else:
                self._body_failed(
                    ProxyError(
                        Code.REQUEST_TIMEOUT, f"nothing of the request's body came for {deadlines.body_stall:g} s"
                    )
                )
        elif self._state is _HEAD:
            self._leave()
        elif self._state is _LINGER:
            self._close()
        else:
            self._deadline = math.inf

    # Heads and bodies.

    def _head_bytes(self, data: bytes) -> None:
        started = self._heads.started
        if not started and self._terms is not self._runtime.terms:
            self._terms = self._runtime.terms
            self._heads = HeadReader(self._terms.head_limits, fault=Fault.CLIENT)
        raw: bytes | None = None
        try:
            raw = self._heads.feed(data)
            if raw is None:
                if self._heads.started and not started:
                    self._set_deadline(trio.current_time() + self._terms.settings.deadlines.head)
                return
            head = read_request_head(raw, self._terms.parser, self._terms.head_limits)
            self._runtime.forwarder.check_loop(head)
            match = self._terms.router.match(head)
            fields = self._body_reader(head, match) if match.operation.reads else None
            if head.framing.length > match.settings.limits.body_size:
                raise too_large(match.settings.limits.body_size)
        except ProxyError as error:
            method, _, rest = (raw or b"").partition(b" ")
            self._refuse(error, head_only=method == b"HEAD", api=api_of(rest))
            return
        self._begin(head, match, fields)
        rest = self._heads.take_rest()
        if rest:
            self._received(rest)
        elif self._state is _BODY:
            self._body_progress()

    @staticmethod
    def _body_reader(head: RequestHead, match: Match) -> BodyReader | None:
        types = http1.get_all(head.fields, b"content-type")
        if len(types) > 1:  # of two, we might read one and the model server the other (RFC 9110 8.3)
            raise ProxyError(Code.BAD_REQUEST, "Content-Type must come only once")
        coding = http1.get(head.fields, b"content-encoding")
        if coding is not None:
            coding = b", ".join(http1.get_all(head.fields, b"content-encoding"))
        includes_usage = False
        for route in match.routes:
            if route.settings.usage == "inject":
                includes_usage = True
        limits = match.settings.limits
        return body_reader(
            match.operation,
            types[0] if types else None,
            coding,
            includes_usage=includes_usage,
            size_limit=limits.decoded_size,
            ratio_limit=limits.decoded_ratio,
        )

    def _begin(self, head: RequestHead, match: Match, fields: BodyReader | None) -> None:
        """Start the exchange that a head asks for."""
        runtime = self._runtime
        decoder = http1.decoder(head.framing, fault=Fault.CLIENT)
        body = self._body_for(head, match.settings, fields)
        writer = ResponseWriter(
            self._transport,
            http_11=head.http_11,
            head_only=head.method == b"HEAD",
            keep_alive=head.keep_alive and not runtime.draining,
            stall=self._terms.settings.deadlines.write_stall,
            api=match.operation.api,
        )
        reader = None if isinstance(body, StreamedBody) else fields
        exchange = Exchange(runtime, self._terms, match, head, body, reader, writer, self._client, self._set_alarm)
        self._exchange = exchange
        self._decoder = decoder
        if decoder.done:
            self._state = _AHEAD
            self._deadline = math.inf
            body.complete()
        else:
            self._state = _BODY
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, exchange)

    def _body_for(
        self, head: RequestHead, settings: Settings, fields: BodyReader | None
    ) -> BufferedBody | StreamedBody:
        limit = settings.limits.body_size
        kind = head.framing.kind
        expected = None if kind is FramingKind.CHUNKED else head.framing.length
        if settings.body == "auto":
            small = expected is not None and expected <= READ_AHEAD
            streamed = fields is None and not small
        else:
            streamed = settings.body == "stream" and expected != 0
        if streamed:
            return StreamedBody(self._runtime.ledger, limit=limit, expected=expected, resume=self._resume)
        return BufferedBody(self._runtime.ledger, limit=limit, expected=expected)

    def _body_bytes(self, data: bytes) -> None:
        exchange, decoder = self._exchange, self._decoder
        assert exchange is not None
        assert decoder is not None
        try:
            pieces, consumed = decoder.decode(data)
            # One step for a read, however many chunks it had: each step has its price.
            payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if payload:
                exchange.feed_fields(payload)
                exchange.body.push(payload)
            self._work += len(pieces)
        except ProxyError as error:
            self._body_failed(error)
            return
        if decoder.done:
            self._body_complete(exchange, data[consumed:])
        else:
            self._body_progress()

    def _body_complete(self, exchange: Exchange, rest: bytes) -> None:
        self._state = _AHEAD
        self._deadline = math.inf
        exchange.body.complete()
        self._ahead += rest

    def _body_failed(self, error: ProxyError) -> None:
        self._state = _DISCARD
        self._deadline = math.inf
        if self._exchange is not None:
            self._exchange.body.fail(error)

    # Requests and what becomes of the connection after each.

    async def _serve(self, exchange: Exchange) -> None:
        # The request's own nursery: whatever works for this request is in it, and it ends when the last of it has.
        async with trio.open_nursery() as nursery:
            try:
                await exchange.run(nursery)
            finally:
                self._settle(exchange.writer, exchange)

    def _settle(self, writer: ResponseWriter, exchange: Exchange | None) -> None:
        """A response is over: go on with the next request, or end the connection."""
        self._exchange = None
        arrived = exchange is not None and exchange.body.arrived
        if not writer.complete:
            # What was sent must not look whole (RFC 9112 8): without a length or chunks, only a reset shows it. And
            # what a client does not take must not stay in the kernel when it is given up.
            if writer.open_ended or (exchange is not None and exchange.outcome is Outcome.CLIENT_STALLED):
                self._transport.reset()
            self._close()
        elif self._state is _CLOSED:
            self._transport.close()
        elif arrived and writer.keep_alive and (self._ahead or not self._ended) and not self._runtime.draining:
            self._state = _HEAD
            self._set_deadline(trio.current_time() + self._runtime.settings.deadlines.client_keep_alive)
            if self._ahead:
                ahead, self._ahead = bytes(self._ahead), bytearray()
                self._received(ahead)
            self._resume()
        elif self._ended:
            self._close()
        else:
            # Closing with bytes unread resets the connection, and the client may lose the response with it.
            assert self._nursery is not None
            self._nursery.start_soon(self._transport.send_end)
            self._state = _LINGER
            self._linger()
            self._resume()

    def _linger(self) -> None:
        """Give the client time to read the last response; while draining not much, since pools of HTTP clients keep a
        connection that has ended until they look at it again, and the process would wait for each of them."""
        seconds = self._runtime.settings.deadlines.linger
        if self._runtime.draining:
            seconds = min(seconds, _DRAIN_LINGER)
        self._set_deadline(trio.current_time() + seconds)

    def _refuse(self, error: ProxyError, *, head_only: bool = False, api: Api = Api.OPENAI) -> None:
        """Answer a head that cannot be served, then end the connection: where the next request begins is unknown."""
        self._state = _DISCARD
        self._deadline = math.inf
        assert self._nursery is not None
        self._nursery.start_soon(self._send_refusal, error.with_traceback(None), head_only, api)

    async def _send_refusal(self, error: ProxyError, head_only: bool, api: Api) -> None:
        runtime = self._runtime
        now = trio.current_time()
        request_id = runtime.next_request_id()
        record = RequestRecord(request_id, request_id, None, self._client.address.decode("latin-1"), now)
        record.error, record.outcome, record.status = error.code, outcome_of(error), error.status
        writer = ResponseWriter(
            self._transport,
            http_11=True,
            head_only=head_only,
            keep_alive=False,
            stall=self._terms.settings.deadlines.write_stall,
            api=api,
        )
        try:
            await writer.send_error(error, request_id, runtime.date)
        except (ClientGone, ClientStalled):
            self._close()
        else:
            self._settle(writer, None)
        finally:
            record.ended = trio.current_time()
            runtime.ended(record)
