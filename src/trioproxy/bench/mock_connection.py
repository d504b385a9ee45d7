"""One client connection of the mock model server: who reads, who answers, and what happens when the client leaves.

Lives here: the two tasks of a connection. Does not live here: sockets (mock_wire.py), the state of the request that
both tasks work on (mock_exchange.py), what it asks for (mock_request.py) and how that is said (mock_answer.py).

The reader stays in receive for as long as the connection lives, so that an end of file or a reset is seen in any
stage, also while the responder is blocked in a send. Parsing is synchronous and done by whichever task has made it
possible: the reader when bytes arrive, the responder when the answer before is done.

The server judges proxies, so it shares no code with one: h11 parses requests and writes heads.
"""

from __future__ import annotations

from email.utils import formatdate
from http.client import responses
from typing import Final, final
from urllib.parse import parse_qs

import h11
import msgspec
import trio

from trioproxy.bench.mock_answer import Answer, TokenFrames, error_body, frame, models_body
from trioproxy.bench.mock_exchange import Exchange, Stage
from trioproxy.bench.mock_gate import Gate
from trioproxy.bench.mock_load import MEDIA_TYPE
from trioproxy.bench.mock_record import Ledger, RequestRecord
from trioproxy.bench.mock_request import BODY_LIMIT, Body, MockSettings, Plan, Refusal, printable
from trioproxy.bench.mock_wire import Wire

RECEIVE_BYTES: Final = 64 * 1024
"""Of one receive; below glibc's least mmap threshold, so that the heap reuses the block."""

READ_AHEAD: Final = 64 * 1024
"""Pipelined bytes taken before the request before is answered; then reading stops, and leaving is not seen."""

HEAD_LIMIT: Final = 128 * 1024
"""Bytes of a request's head: twice what a proxy may pass on."""

LINGER: Final = 5.0
"""Seconds that a refused upload is drained, so that no reset overtakes the refusal (RFC 9112 §9.6)."""

CLOSE_GRACE: Final = 1.0
"""Seconds that closing a connection may take."""

JSON: Final = b"application/json"
EVENTS: Final = b"text/event-stream; charset=utf-8"

CHAT: Final = b"/v1/chat/completions"
TEXT: Final = b"/v1/completions"

_BODY_TOO_LARGE: Final = Refusal(413, f"The body is larger than {BODY_LIMIT} bytes.", "body_too_large")


@final
class Connection:
    """Serves the requests of one connection, in order, until the client or a response ends it.

    :param wire: is closed when ``run`` ends, however it ends.
    """

    __slots__ = (
        "_arrived",
        "_discarding",
        "_exchange",
        "_gate",
        "_gone",
        "_http",
        "_ledger",
        "_room",
        "_settings",
        "_wire",
    )

    def __init__(self, wire: Wire, settings: MockSettings, ledger: Ledger, gate: Gate) -> None:
        self._wire = wire
        self._settings = settings
        self._ledger = ledger
        self._gate = gate
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT)
        self._exchange: Exchange | None = None
        self._arrived = trio.Event()
        self._room = trio.Event()
        self._discarding = False
        self._gone = trio.Event()

    async def run(self) -> None:
        """Serve until the end. When cancelled, the connection is closed and no request in flight is abandoned:
        it was the server that left."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, nursery.cancel_scope)
                await self._respond_in_order()
                nursery.cancel_scope.cancel()
        finally:
            if self._exchange is not None:
                self._exchange.drop_body()
            with trio.move_on_after(CLOSE_GRACE, shield=True):
                await self._wire.close()

    # ---- reading

    async def _read(self, connection: trio.CancelScope) -> None:
        # No received piece is bound to a name here: it would live as long as the receive after it.
        while self._take(await self._wire.receive(RECEIVE_BYTES)):
            while self._is_full():
                await self._room.wait()
        self._gone.set()
        if self._exchange is None:
            connection.cancel()
        else:
            self._exchange.leave(self._ledger.clock())
            self._ledger.changed()

    def _take(self, data: bytes) -> bool:
        """Use what was received; False at the end."""
        if self._discarding or not data:
            return bool(data)
        self._http.receive_data(data)
        self._parse()
        return True

    def _is_full(self) -> bool:
        """Whether enough has been read of the requests that wait behind this one."""
        exchange = self._exchange
        if exchange is None or not exchange.body_done.is_set() or self._discarding:
            return False
        return len(self._http.trailing_data[0]) >= READ_AHEAD

    def _parse(self) -> None:
        """Take the events that have become possible."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if self._exchange is not None and self._exchange.body_done.is_set():
                    self._discarding = True  # bytes behind a request that said it was the last
                    return
                self._refuse(Refusal(error.error_status_hint, f"Not HTTP/1.1: {error}", "bad_request"))
                return
            match event:
                case h11.Request():
                    self._begin(event)
                case h11.Data():
                    self._append(event.data)
                case h11.EndOfMessage():
                    self._end_body()
                case _:
                    return
            if self._discarding:
                return

    def _begin(self, request: h11.Request) -> None:
        headers = dict(request.headers)
        path, _, query = request.target.partition(b"?")
        request_id = headers.get(b"x-request-id")
        named = headers.get(b"x-bench-id", request_id)
        record = RequestRecord(
            id=self._ledger.next_id() if named is None else printable(named.decode("latin-1")),
            path=printable(path.decode("latin-1")),
            seen=self._ledger.clock(),
        )
        exchange = self._exchange = Exchange(
            record, method=request.method, path=path, query=query, request_id=request_id
        )
        if not path.startswith(b"/mock/") and path != b"/metrics":
            self._ledger.add(record)
        announced = headers.get(b"content-length")
        if announced is not None and int(announced) > BODY_LIMIT:
            self._refuse(_BODY_TOO_LARGE)
        elif _is_completion(exchange):
            exchange.body = Body(None if announced is None else int(announced))
        self._arrived.set()

    def _append(self, data: bytes | bytearray) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.record.body_bytes += len(data)
        if exchange.record.body_bytes > BODY_LIMIT:
            self._refuse(_BODY_TOO_LARGE)
        elif exchange.body is not None:
            exchange.body.append(data)

    def _end_body(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.record.body_read = self._ledger.clock()
        exchange.body_done.set()
        self._ledger.changed()

    def _refuse(self, refusal: Refusal) -> None:
        """Nothing more is read of this request, and no other one after it."""
        self._discarding = True
        if self._exchange is None:
            # No request was recognized, so there is nothing to record.
            record = RequestRecord(id="", path="", seen=self._ledger.clock())
            self._exchange = Exchange(record)
            self._arrived.set()
        self._exchange.refuse(refusal)

    # ---- answering

    async def _respond_in_order(self) -> None:
        while True:
            await self._arrived.wait()
            exchange = self._exchange
            assert exchange is not None
            try:
                with exchange.scope:
                    await self._answer(exchange)
            except trio.BrokenResourceError:
                exchange.leave(self._ledger.clock())
            exchange.settle()
            exchange.drop_body()
            if exchange.left is not None and exchange.plan is not None and exchange.plan.ignore_disconnect:
                await self._generate_unheard(exchange, exchange.plan)
            self._ledger.changed()
            if self._discarding and not self._gone.is_set():
                await self._linger()
            if self._discarding or self._gone.is_set() or exchange.left is not None:
                return
            if self._http.our_state is not h11.DONE:
                return  # the last one by HTTP's rules, or cut off
            self._next_cycle()

    def _next_cycle(self) -> None:
        self._http.start_next_cycle()
        self._exchange = None
        self._arrived = trio.Event()
        self._room.set()
        self._room = trio.Event()
        self._parse()

    async def _linger(self) -> None:
        await self._wire.send_eof()
        with trio.move_on_after(LINGER):
            await self._gone.wait()

    async def _answer(self, exchange: Exchange) -> None:
        if exchange.refusal is None and self._http.they_are_waiting_for_100_continue:
            await self._wire.send(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
        await exchange.body_done.wait()
        if exchange.refusal is not None:
            await self._send_error(exchange, exchange.refusal)
        elif exchange.body is not None:
            await self._complete(exchange, exchange.body)
        else:
            await self._send_last(exchange, self._whole(exchange, *self._look_up(exchange)))

    def _look_up(self, exchange: Exchange) -> tuple[int, bytes, bytes]:
        """Status, body and media type of what is answered at once."""
        method = b"GET" if exchange.method == b"HEAD" else exchange.method
        match method, exchange.path:
            case b"GET", b"/health":
                return 200, b'{"status":"ok"}', JSON
            case b"GET", b"/v1/models":
                return 200, models_body(self._settings.model), JSON
            case b"GET", b"/metrics":
                return 200, self._ledger.load.page(self._settings.model), MEDIA_TYPE
            case b"GET", b"/mock/requests":
                wanted = parse_qs(exchange.query.decode("latin-1")).get("id")
                records = list(self._ledger.records) if wanted is None else self._ledger.named(wanted[0])
                return 200, msgspec.json.encode(records), JSON
            case ((b"DELETE" | b"POST"), b"/mock/reset"):
                self._ledger.clear()
                return 200, b'{"status":"ok"}', JSON
            case _:
                what = f"{printable(exchange.method.decode('latin-1'))} {printable(exchange.path.decode('latin-1'))}"
                return 404, error_body(Refusal(404, f"There is no {what} here.", "not_found")), JSON

    # ---- completions

    async def _complete(self, exchange: Exchange, body: Body) -> None:
        plan = body.plan(self._settings)
        exchange.drop_body()
        if isinstance(plan, Refusal):
            await self._send_error(exchange, plan)
            return
        record = exchange.record
        if plan.id is not None:
            self._ledger.rename(record, plan.id)
        record.model = plan.model
        record.stream = plan.stream
        exchange.plan = plan
        exchange.origin = trio.current_time()
        self._ledger.changed()
        with self._ledger.load.request(plan.ends_with):
            await self._generate(exchange, plan)

    async def _generate(self, exchange: Exchange, plan: Plan) -> None:
        answer = Answer(plan, self._ledger.next_id(), chat=exchange.path == CHAT)
        if plan.stream and plan.status is None:
            await self._send_stream(exchange, plan, answer)
            return
        for index in range(plan.made):
            await self._make_token(exchange, plan, index)
        await self._until(exchange, plan.end)
        if plan.status is not None:
            await self._send_error(exchange, Refusal(plan.status, "The request asked for this error.", "mock_error"))
        elif plan.is_cut:
            if plan.made:
                whole = answer.whole()
                head = self._head(exchange, 200, JSON, _content_length(whole))
                await self._wire.send(head + whole[: len(whole) // 2])
            self._cut_off(exchange, plan)
        else:
            await self._send_last(exchange, self._whole(exchange, 200, answer.whole()))

    async def _send_stream(self, exchange: Exchange, plan: Plan, answer: Answer) -> None:
        chunked = self._http.their_http_version == b"1.1"
        frames = TokenFrames(answer, plan, chunked=chunked)
        head = self._head(exchange, 200, EVENTS)
        if plan.head == "early":
            await self._wire.send(head)
            head = b""
        opening = head + frame(answer.opening(), chunked=chunked)
        for index in range(plan.made):
            await self._make_token(exchange, plan, index)
            event = frames[index]
            if index == 0:
                if answer.opening():
                    await self._wire.send(opening)
                else:
                    event = opening + event
                opening = b""
            await self._wire.send(event)
        await self._until(exchange, plan.end)
        if plan.is_cut:
            self._cut_off(exchange, plan)
            return
        *closing, done = answer.closing()
        for event in closing:
            await self._wire.send(opening + frame(event, chunked=chunked))
            opening = b""
        await self._send_last(exchange, frame(done, chunked=chunked) + self._http.send(h11.EndOfMessage()))

    async def _make_token(self, exchange: Exchange, plan: Plan, index: int) -> None:
        """One step of generation: wait until it is due, and count it."""
        await self._gate.passed(index)
        await self._until(exchange, plan.due(index))
        record = exchange.record
        record.tokens += 1
        self._ledger.load.generation_tokens += 1
        if record.first_token is None:
            record.first_token = self._ledger.clock()
            self._ledger.load.prompt_tokens += plan.prompt_tokens
        if record.abandoned is not None:
            record.tokens_after_abandon += 1
        self._ledger.changed()

    async def _generate_unheard(self, exchange: Exchange, plan: Plan) -> None:
        """Go on as if the client were still there, from where the answering was stopped."""
        with self._ledger.load.request(plan.ends_with):
            for index in range(exchange.record.tokens, plan.made):
                await self._make_token(exchange, plan, index)
            await self._until(exchange, plan.end)
        exchange.finish(self._ledger.clock())

    async def _until(self, exchange: Exchange, due: float) -> None:
        """Wait. Neither way returns once the client was seen to leave, not even if both happened in the same pass of
        the scheduler: so no token is made for nobody."""
        deadline = exchange.origin + due
        if deadline > trio.current_time():
            await trio.sleep_until(deadline)
        else:
            await trio.lowlevel.checkpoint()

    def _cut_off(self, exchange: Exchange, plan: Plan) -> None:
        """Leave the response incomplete; h11 has not seen its end, so the connection is closed next."""
        if plan.cut == "reset":
            self._wire.reset_on_close()
        exchange.finish(self._ledger.clock())

    # ---- sending

    async def _send_error(self, exchange: Exchange, refusal: Refusal) -> None:
        await self._send_last(exchange, self._whole(exchange, refusal.status, error_body(refusal)))

    async def _send_last(self, exchange: Exchange, data: bytes) -> None:
        exchange.stage = Stage.SENDING_LAST
        await self._wire.send(data)
        exchange.finish(self._ledger.clock())

    def _whole(self, exchange: Exchange, status: int, body: bytes, media_type: bytes = JSON) -> bytes:
        """A response with Content-Length."""
        response = self._head(exchange, status, media_type, _content_length(body))
        if exchange.method != b"HEAD":
            response += self._http.send(h11.Data(data=body))
        return response + self._http.send(h11.EndOfMessage())

    def _head(self, exchange: Exchange, status: int, media_type: bytes, *more: tuple[bytes, bytes]) -> bytes:
        """The head; without a Content-Length in it, h11 adds the framing that the client's version understands."""
        headers = [(b"date", formatdate(usegmt=True).encode()), (b"content-type", media_type), *more]
        if exchange.request_id is not None:
            headers.append((b"x-request-id", exchange.request_id))
        if self._discarding:
            headers.append((b"connection", b"close"))
        exchange.record.status = status
        reason = responses.get(status, "").encode()
        return self._http.send(h11.Response(status_code=status, headers=headers, reason=reason))


def _is_completion(exchange: Exchange) -> bool:
    return exchange.method == b"POST" and exchange.path in (CHAT, TEXT)


def _content_length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)
