"""One request from its head to its outcome: the only file that names all phases.

Lives here: the order of the steps, the deadline of each, the abort, and the outcome. Does not live here: bytes of
HTTP, sockets, or the client's connection, whose reader feeds the body in and calls ``abort``.

Whatever the exchange holds, it holds by a ``with`` block of its own task, so that it is given back however the
exchange ends. The first cause decides the outcome; all that comes after it changes nothing.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import Final, final

import trio

from . import http1
from .answer import Answer, AnswerReader
from .apis.coding import EncodedFieldReader
from .apis.edits import Edit
from .apis.fields import UNKNOWN_FIELDS
from .apis.requests import BodyReader
from .apis.responses import usage_reader
from .apis.sse import SseUsageReader
from .apis.strip import UsageStripper
from .apis.usage import UsageReader
from .body import BodyStage, BufferedBody, StreamedBody
from .downstream import ClientGone, ClientStalled, ResponseWriter
from .errors import Code, Fault, ProxyError
from .http1 import FramingKind, RequestHead
from .pace import Pace, Stage
from .phases import ForwardingPhase, RequestPhase, ResponseView
from .record import Outcome, Phase, RequestRecord, outcome_of
from .relay import Relay
from .routing import LocalResponse, Match
from .runtime import Runtime, Terms
from .upload import Upload
from .upstream.group import Group, Member
from .upstream.pool import Lease, Pool
from .upstream.request import Client

_logger: Final = logging.getLogger("trioproxy")
_plain_id: Final = re.compile(rb"[0-9A-Za-z._:/+=@~-]{1,128}").fullmatch
_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})  # RFC 9110 9.2.2


class _StaleConnectionError(Exception):
    """A reused connection turned out to be dead before the upstream can have acted on the request."""


_BROKEN: Final = frozenset({502, 503, 504})
"""Statuses that tell of a broken endpoint; a 503 that says when to come again tells of a busy one."""
_BEFORE_DISPATCH: Final = frozenset({Code.CONNECT_FAILED, Code.CONNECT_TIMEOUT, Code.TLS_FAILED, Code.TOTAL_TIMEOUT})

# CPython 3.11 looks a member of an enum up anew each time, for 0.1 µs.
_REQUEST: Final = Phase.REQUEST
_FORWARDING: Final = Phase.FORWARDING
_RESPONSE: Final = Phase.RESPONSE
_FIRST_BYTE: Final = Stage.FIRST_BYTE
_FIRST_EVENT: Final = Stage.FIRST_EVENT
_STREAMING: Final = Stage.STREAMING


def _public_id(head: RequestHead) -> str | None:
    """The client's own ``X-Request-Id``, under which it looks for its request; ours are unique, its need not be."""
    value = http1.get(head.fields, b"x-request-id")
    return None if value is None or _plain_id(value) is None else value.decode("ascii")


@final
class Exchange:
    """One request of one client.

    :param terms: what it is served by, to its end.
    :param match: what its head has decided.
    :param fields: reads what the body says while it comes in; None where nobody knows the path.
    :param client: where the request came from, for the upstream.
    :param alarm: told of each new deadline; whoever watches the client calls :meth:`expire` when it has passed.
    """

    __slots__ = (
        "_client",
        "_edit",
        "_expect_continue",
        "_failure",
        "_fields",
        "_group",
        "_lease",
        "_match",
        "_member",
        "_nursery",
        "_observer",
        "_request",
        "_runtime",
        "_settings",
        "_terms",
        "body",
        "outcome",
        "pace",
        "record",
        "request_id",
        "writer",
    )

    def __init__(
        self,
        runtime: Runtime,
        terms: Terms,
        match: Match,
        head: RequestHead,
        body: BufferedBody | StreamedBody,
        fields: BodyReader | None,
        writer: ResponseWriter,
        client: Client,
        alarm: Callable[[float], None],
    ) -> None:
        self.request_id: Final = runtime.next_request_id()
        self.body = body
        self.writer = writer
        self.outcome: Outcome | None = None
        self.pace: Final = Pace(match.settings.deadlines, alarm)
        self.record: Final = RequestRecord(
            self.request_id,
            _public_id(head) or self.request_id,
            head,
            client.address.decode("latin-1"),
            trio.current_time(),
        )
        self.record.operation = match.operation.name
        self._runtime = runtime
        self._terms = terms
        self._match = match
        self._settings = match.settings
        self._request: RequestHead | None = head
        self._expect_continue = head.expect_continue
        self._fields = fields
        self._client = client
        self._nursery: trio.Nursery | None = None
        self._lease: Lease | None = None
        self._group: Group | None = None
        self._member: Member | None = None
        """Of the group: who has been asked last."""
        self._observer: UsageReader | None = None
        self._edit: Edit | None = None
        """What makes the response report its usage, and, once that is done, the reason to take the report out again."""
        self._failure: ProxyError | None = None
        runtime.in_flight[_REQUEST] += 1

    def __repr__(self) -> str:
        return f"<Exchange {self.request_id} {self.record.phase.value} {self.outcome}>"

    def feed_fields(self, data: bytes | memoryview) -> None:
        """Let the reader of the body's fields see bytes that came in."""
        if self._fields is not None:
            self._fields.feed(data)

    def abort(self, cause: Outcome) -> None:
        """End the exchange now, from any other task; the first cause counts.

        The upstream learns of it before this returns: its connection is reset first and the task unwound after,
        since with 1,000 aborts at once unwinding first took 133–185 ms at p99, closing first 50–105.
        """
        if self.outcome is None:
            self.outcome = cause
            if self._lease is not None:
                self._lease.reset()
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()

    def watch_peer(self, patience: float) -> None:
        """As ``Transport.watch_peer``, for the upstream's connection."""
        if self._lease is not None and self._lease.transport is not None:
            self._lease.transport.watch_peer(patience)

    def expire(self) -> None:
        """End the exchange since its deadline has passed; the client is told, if its response has not begun."""
        if self.outcome is None and self._failure is None:
            self.pace.stop()
            self._failure = self.pace.expired()
            if self.writer.started:
                self._note(self._failure)
                self.abort(outcome_of(self._failure))
                return
            # Whatever it waits for ends now, and it goes on to tell the client why.
            self.body.fail(self._failure)
            if self._lease is not None:
                self._lease.reset()

    async def run(self, nursery: trio.Nursery) -> None:
        """Serve the request. Returns when its outcome is fixed and all that it held has been given back.

        Raises nothing but a cancel, which makes the outcome ``drained`` if it came from outside.

        :param nursery: the request's own: all that works for this request is in it, and an abort cancels it.
        """
        error: ProxyError | None = None
        self._nursery = nursery
        try:
            try:
                if self.outcome is None:  # else it was aborted before it could begin
                    await self._serve()
            except ProxyError as caught:
                # Its traceback would keep the frames, hence everything in them, for as long as the error lives.
                error = (self._failure or caught).with_traceback(None)
            except ClientGone:
                self._fix(Outcome.CLIENT_CLOSED)
            except ClientStalled:
                self._fix(Outcome.CLIENT_STALLED)
            except Exception as caught:
                # An abort or a deadline closes the connection under whoever uses it.
                closed = isinstance(caught, trio.ClosedResourceError)
                if self._failure is not None and closed:
                    error = self._failure
                elif self.outcome is None or not closed:
                    _logger.exception("request %s failed", self.request_id)
                    error = ProxyError(Code.INTERNAL, "the proxy failed to handle this request; its log says why")
            if error is not None and self.outcome is None:
                await self._answer(error)
        finally:
            self._settle()

    def _settle(self) -> None:
        outcome = self.outcome
        if outcome is None:
            outcome = self.outcome = Outcome.DRAINED
        self.body.release()
        runtime, record, observer = self._runtime, self.record, self._observer
        runtime.in_flight[record.phase] -= 1
        record.outcome = outcome
        record.ended = trio.current_time()
        if observer is not None:
            record.usage = observer.finish()
            record.events = observer.events
        record.usage_unknown = (
            record.usage is None and self._match.operation.reports and 200 <= record.upstream_status < 300
        )
        runtime.ended(record)

    def _fix(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome

    def _enter(self, phase: Phase) -> None:
        in_flight, record = self._runtime.in_flight, self.record
        in_flight[record.phase] -= 1
        in_flight[phase] += 1
        record.phase = phase

    # The steps.

    async def _serve(self) -> None:
        record = self.record
        request = await self._receive_request()
        record.received = trio.current_time()
        if self._match.local is not None:
            await self._respond_locally(self._match.local())
            return
        fields = request.fields
        record.model, record.stream, record.max_output_tokens = fields.model, fields.stream, fields.max_output_tokens
        route = self._match.choose(fields.model)
        record.route = route.name
        if route.settings is not self._settings:
            self._settings = route.settings
            self.pace.renew(route.settings.deadlines, record.began)
        if self._edit is not None:
            self._ask_for_usage()
        self._enter(_FORWARDING)
        self._group = group = route.group
        members = group.candidates()
        forwarding = request.forward_to(members[0].pool.endpoint)
        failure: ProxyError | None = None
        for member in members:
            self._member = member
            pool = member.pool
            forwarding.reassign(pool.endpoint)
            record.endpoint = pool.endpoint
            record.attempts += 1
            await self._check_wanted()
            with pool.lease() as lease:
                self._lease = lease
                if lease.take_idle_nowait() is not None:
                    try:
                        await self._forward(lease, forwarding)
                    except _StaleConnectionError:
                        pass  # once more, on a fresh connection
                    else:
                        return
                try:
                    await self._connect(lease, pool)
                except ProxyError as error:
                    failure = error.with_traceback(None)
                    if error.code is Code.TOTAL_TIMEOUT:
                        break
                    group.failed(member, error.message)
                    self._runtime.passed_over(pool.endpoint, error)
                    continue
                self._runtime.reached(pool.endpoint)
                await self._forward(lease, forwarding)
                return
        assert failure is not None
        raise failure

    async def _receive_request(self) -> RequestPhase:
        head, self._request = self._request, None
        assert head is not None
        if isinstance(self.body, BufferedBody) and self.body.stage is not BodyStage.COMPLETE:
            if self._expect_continue and not len(self.body) and self.body.stage is BodyStage.RECEIVING:
                await self.writer.send_continue()
            await self.body.wait_complete()
        reader, self._fields = self._fields, None
        said = UNKNOWN_FIELDS
        if reader is not None:
            if isinstance(reader, EncodedFieldReader):
                await self._decode(reader)
            said = reader.finish()
            self._edit = reader.edit
        return RequestPhase(self.request_id, head, self.body, said)

    async def _decode(self, reader: EncodedFieldReader) -> None:
        """Let the reader of an encoded body see all of it, a step at a time: others have their turn in between."""
        assert isinstance(self.body, BufferedBody)
        with self.body.lease("decoding") as lease:
            while reader.step(lease.view):
                await trio.lowlevel.checkpoint()
                self._check_in_time()

    def _ask_for_usage(self) -> None:
        """Make the stream report its usage, if this route wants to know of it and the client left it open."""
        edit, body = self._edit, self.body
        if edit is not None and (
            self._settings.usage != "inject"
            or not isinstance(body, BufferedBody)
            or not body.replace(edit.begin, edit.end, edit.text)
        ):
            self._edit = None

    async def _respond_locally(self, response: LocalResponse) -> None:
        fields = [(b"content-type", response.content_type)]
        await self.writer.send_own(response.status, fields, response.body, self.record.public_id, self._runtime.date)
        self.record.status = response.status
        self._fix(Outcome.SERVED)

    async def _check_wanted(self) -> None:
        """Raise a cancel, an abort's included, or a deadline that has come but met this task when it could already run.

        Transports have no checkpoint where they need not wait: without this, the request of a client that has left
        is still sent.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_in_time()

    def _check_in_time(self) -> None:
        """Raise what :meth:`expire` has decided while there was nothing that it could end: it decides once, and a wait
        that began after it would have no end."""
        if self._failure is not None:
            raise self._failure

    async def _connect(self, lease: Lease, pool: Pool) -> None:
        pace, seconds = self.pace, self._settings.deadlines.connect
        pace.connecting()
        with trio.move_on_at(min(trio.current_time() + seconds, pace.until)):
            await lease.open()
            await self._check_wanted()
            return
        if trio.current_time() >= pace.until:
            raise pace.expired()
        raise ProxyError(
            Code.CONNECT_TIMEOUT,
            f"no connection to the model server within {seconds:g} s",
            detail=pool.endpoint.url,
        )

    async def _forward(self, lease: Lease, forwarding: ForwardingPhase) -> None:
        self.record.connected = trio.current_time()
        answer, view = await self._dispatch(lease, forwarding)
        self._enter(_RESPONSE)
        await self._respond(lease, answer, view)

    async def _dispatch(self, lease: Lease, forwarding: ForwardingPhase) -> tuple[Answer, ResponseView]:
        """Send the request and wait for the response's head; returns that, and what is left of the request."""
        transport = lease.transport
        assert transport is not None
        body = forwarding.body
        method = forwarding.head.method
        # Only a request without a body can be sent again once it was sent.
        again = lease.reused and isinstance(body, BufferedBody) and not len(body) and method in _IDEMPOTENT
        reader = AnswerReader(self._terms, transport, self.writer, method)
        upload = Upload(transport, self._upstream_head(forwarding), body, stall=self._settings.deadlines.write_stall)
        upload.start_nowait()
        if lease.reused and upload.broken and not upload.sent:
            raise _StaleConnectionError
        answer = None
        try:
            if not (upload.complete or upload.broken):
                answer = await self._finish_upload(upload, reader, body)
            if not upload.complete:
                # An early response ends the upload, and the connection cannot carry another request.
                lease.spoil()
            del upload, body
            view = None if again else forwarding.responded()
            self.record.released = trio.current_time()
            if answer is None:
                self._check_in_time()
                self.pace.enter(_FIRST_BYTE, self._settings.deadlines.first_byte)
                answer = await reader.receive()
        except ProxyError as error:
            if again and reader.silent and error.code in (Code.UPSTREAM_CLOSED, Code.UPSTREAM_VANISHED):
                raise _StaleConnectionError from None
            raise
        return answer, view or forwarding.responded()

    async def _finish_upload(
        self, upload: Upload, reader: AnswerReader, body: BufferedBody | StreamedBody
    ) -> Answer | None:
        """Send what did not fit into the socket's buffer, unless a response comes before: that is returned."""
        if self._expect_continue and isinstance(body, StreamedBody) and not len(body):
            await self.writer.send_continue()
        answer: Answer | None = None
        failure: Exception | None = None
        over = False
        reading = trio.CancelScope()

        async def watch() -> None:
            nonlocal answer, failure, reading
            try:
                while answer is None and not over:
                    data = None
                    with trio.CancelScope() as reading:
                        data = await reader.read()
                    if data is None:
                        return
                    answer = await reader.take(data)
            except (ProxyError, ClientGone, ClientStalled, trio.ClosedResourceError) as error:
                # Closed: by an abort. In a group with the Cancelled of one from outside it would get out of ``run``.
                failure = error.with_traceback(None)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await upload.run()
            # Only the wait for more is ended: what has come, an interim response on its way included, is not lost.
            over = True
            reading.cancel()
        if upload.failure is not None:
            raise upload.failure
        if failure is not None:
            raise failure
        await self._check_wanted()
        return answer

    def _upstream_head(self, forwarding: ForwardingPhase) -> bytes:
        body = forwarding.body
        return self._runtime.forwarder.head(
            forwarding.head,
            length=body.expected if isinstance(body, StreamedBody) else len(body),
            client=self._client,
            request_id=self.record.public_id.encode(),
        )

    async def _respond(self, lease: Lease, answer: Answer, view: ResponseView) -> None:
        head, rest = answer
        del view  # the hooks of response processors will see it, and nothing else of the request
        transport = lease.transport
        if transport is None:  # TLS yields with what it has decrypted: an abort or a deadline has come in between
            raise trio.ClosedResourceError
        runtime = self._runtime
        if runtime.draining or not self.body.arrived:
            self.writer.keep_alive = False
        record = self.record
        record.answered = trio.current_time()
        record.upstream_status = record.status = status = head.status
        assert self._group is not None
        assert self._member is not None
        if status in _BROKEN and (status != 503 or http1.get(head.fields, b"retry-after") is None):
            self._group.failed(self._member, f"it answered with status {status}")
        else:
            self._group.succeeded(self._member)
        deadlines = self._settings.deadlines
        self._check_in_time()
        content_type = http1.get(head.fields, b"content-type")
        self._observer = self.pace.events = usage_reader(content_type, http1.get(head.fields, b"content-encoding"))
        if content_type is not None and content_type[:17].lower() == b"text/event-stream":
            self.pace.enter(_FIRST_EVENT, deadlines.first_event)
        elif head.framing.kind is not FramingKind.NONE:
            self.pace.enter(_STREAMING, deadlines.idle)
        decoder = http1.decoder(head.framing, fault=Fault.UPSTREAM)
        stripper = None
        streams = head.framing.kind is not FramingKind.LENGTH  # a length would no longer be true; no stream has one
        if streams and self._edit is not None and isinstance(self._observer, SseUsageReader):
            stripper = UsageStripper()
        relay = Relay(transport, decoder, self.writer, self._observer, self.pace, stripper)
        await relay.run(self.writer.relayed_head(head, self.record.public_id.encode(), runtime.date), rest)
        self._fix(Outcome.COMPLETED)
        if relay.clean and head.keep_alive:
            lease.mark_clean()

    def _note(self, error: ProxyError) -> None:
        record = self.record
        record.error = error.code
        if error.fault is not Fault.CLIENT:
            # Nothing else tells an operator, or, of a response that has begun, anybody.
            said = error.detail
            if error.fault is Fault.UPSTREAM and record.endpoint is not None:
                said = record.endpoint.said(said)
            detail = "" if said is None else f" ({said})"
            cut = ", its response was cut short" if self.writer.started else ""
            _logger.warning(
                "request %s: %s: %s%s%s", self.record.public_id, error.code.value, error.message, detail, cut
            )

    async def _answer(self, error: ProxyError) -> None:
        """Tell the client what went wrong, if its response has not begun; else the connection shows it."""
        self._fix(outcome_of(error))
        self._note(error)
        record = self.record
        failed = error.fault is Fault.UPSTREAM and error.code not in _BEFORE_DISPATCH
        if failed and math.isnan(record.answered) and self._group is not None and self._member is not None:
            self._group.failed(self._member, error.message)
        if self.writer.started:
            self.writer.keep_alive = False
            return
        if self._runtime.draining or not self.body.arrived:
            self.writer.keep_alive = False
        self.record.status = error.status
        try:
            await self.writer.send_error(error, self.record.public_id, self._runtime.date)
        except (ClientGone, ClientStalled):
            self.writer.keep_alive = False
