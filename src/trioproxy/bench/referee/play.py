"""One request, from connecting to the end of its watch.

Lives here: bringing a client to its stage, leaving there, and putting both sides' facts into a record. Does not live
here: the judgement (join.py), how many requests are played and when (cancel.py, crowd.py).
"""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable
from typing import Final, final

import trio

from .cases import MID_STREAM_TOKENS, Case, Pace, Stage, Way, knobs, streamed
from .client import Address, Client, Times
from .index import Index, is_over
from .join import ClientFacts, judge
from .payloads import Payload, Payloads
from .records import CANNOT_CONNECT, RECEIVED_KEPT, Leg, Load, Record
from .responses import Response

_ARRIVAL: Final = 0.2
"""Seconds in which the head of a request whose body is under way comes to the model server, if it ever does."""
_NEXT: Final = 0.1
"""Seconds after a client has left, if it was not seen, from which on the next one does not disturb what is watched."""
_ASKED_AGAIN: Final = 0.25
"""Seconds that are watched after the model server has seen a client leave: to some proxies a request that was cancelled
is one that has failed, and they send it once more."""
CONTROL: Final = Case(Stage.NONE, Way.STAY)


def run_name() -> str:
    """A name for a run, so that its requests are not taken for another's."""
    return "b" + "".join(random.choices(string.ascii_lowercase + string.digits, k=6))


@final
class Play:
    """What all requests of a run share.

    :param run: makes the ids of this run its own; letters and digits.
    :param late_after: seconds from which on a propagated abort is late.
    """

    __slots__ = ("_count", "index", "late_after", "pace", "payloads", "run")

    def __init__(self, run: str, payloads: Payloads, index: Index, pace: Pace, late_after: float) -> None:
        self.run = run
        self.payloads = payloads
        self.index = index
        self.pace = pace
        self.late_after = late_after
        self._count = 0

    def next_id(self) -> str:
        """An id that nobody else has."""
        self._count += 1
        return f"{self.run}-{self._count}"


@final
class Request:
    """One request of a case, in steps: ``begin``, ``reach``, ``dwell``, ``leave``, ``watch``, ``record``.

    :param size: bytes of its body.
    """

    __slots__ = (
        "_failed",
        "_interval",
        "_kept",
        "_play",
        "_tokens_at_leave",
        "_watched",
        "address",
        "case",
        "client",
        "id",
        "leg",
        "load",
        "payload",
        "response",
    )

    def __init__(
        self,
        play: Play,
        case: Case,
        leg: Leg,
        load: Load,
        address: Address,
        size: int,
        *,
        parent_id: str | None = None,
        more: dict[str, object] | None = None,
    ) -> None:
        self._play = play
        self.case = case
        self.leg: Leg = leg
        self.load: Load = load
        self.address = address
        self.id = play.next_id()
        asked = knobs(case, play.pace) | (more or {})
        self.payload: Payload = play.payloads.payload(
            self.id, size, knobs=asked, stream=streamed(case), parent_id=parent_id
        )
        self._interval = float(str(asked["interval"]))
        self._kept = b"".join(self.payload.parts).decode() if self.payload.keep else None
        self.response = Response(self.id, keep=RECEIVED_KEPT)
        self.client: Client | None = None
        self._failed: str | None = None
        self._tokens_at_leave = 0
        self._watched = 0.0

    @property
    def times(self) -> Times | None:
        """The client's times, None if it could not connect."""
        return None if self.client is None else self.client.times

    @property
    def failed(self) -> bool:
        """Whether it did not come to its stage."""
        return self._failed is not None

    @property
    def seen(self) -> bool:
        """Whether its client has left and the model server knows it."""
        records = self._play.index.seen(self.id)
        return self.times is not None and self.times.left is not None and bool(records) and all(map(is_over, records))

    async def begin(self) -> None:
        """Connect and send, a part of the body if the case is about uploading. Closed by ``record``."""
        self._play.index.expect(self.id)
        try:
            client = self.client = await Client.connect(self.address, self.response)
        except OSError as error:
            self._failed = f"{CANNOT_CONNECT} to {self.address.authority}: {error.strerror or error}"
            return
        length = int(self.payload.length * self.case.fraction)
        with trio.move_on_after(self._play.pace.patience):
            await client.send([self.address.head(self.payload), *self.payload.upto(length)])
        if self.case.stage is Stage.UPLOADING:
            with trio.move_on_after(_ARRIVAL):
                await self._play.index.begun(self.id)
        self.payload.sent()

    async def reach(self) -> None:
        """Bring it to its stage. If it does not get there, it has failed, unless that is what its stage shows."""
        client = self.client
        if client is None:
            return
        pace = self._play.pace
        stage = self.case.stage
        with trio.move_on_after(pace.patience + pace.prefill + MID_STREAM_TOKENS * self._interval):
            await trio.lowlevel.checkpoint()
            match stage:
                case Stage.UPLOADING:
                    pass
                case Stage.BEFORE_HEAD | Stage.WHOLE:
                    await self._play.index.arrived(self.id)
                case Stage.EARLY_HEAD:
                    await self._play.index.arrived(self.id)
                    # Some proxies hold a head back until there is a body: the client then waits without it.
                    with trio.move_on_after(pace.prefill / 2):
                        await client.read_until(lambda response: response.status is not None)
                case Stage.STALL:
                    await client.read_until(_tokens(1))
                case Stage.MID_STREAM:
                    await client.read_until(_tokens(MID_STREAM_TOKENS))
                case Stage.AFTER_LAST:
                    await client.read_until(_tokens(MID_STREAM_TOKENS))
                case Stage.NONE:
                    await self.finish()
        self._check_stage()

    def _check_stage(self) -> None:
        client, response, stage = self.client, self.response, self.case.stage
        assert client is not None
        if stage is Stage.UPLOADING or stage is Stage.NONE:
            return
        if response.status is not None and response.status != 200:
            self._failed = f"answered with status {response.status}"
        elif client.over:
            self._failed = client.broken or "the response was over before the stage was reached"
        elif stage in (Stage.STALL, Stage.MID_STREAM, Stage.AFTER_LAST) and not response.tokens:
            self._failed = "no token came"
        elif not any(record.body_read is not None for record in self._play.index.seen(self.id)):
            self._failed = "the request did not come to the model server"

    async def dwell(self) -> None:
        """Stay at the stage for a while, reading: what a client that waits does."""
        client = self.client
        if client is None or self.failed:
            return
        stage, pace = self.case.stage, self._play.pace
        seconds = 0.0 if stage is Stage.MID_STREAM else pace.dwell
        if self.case.way is Way.DEADLINE:
            seconds = pace.dwell + random.random() * pace.interval
        with trio.move_on_after(seconds):
            await client.read_until(lambda _: False)

    async def stay(self) -> None:
        """Read on, until it is told to leave by being cancelled, or there is nothing more."""
        if self.client is not None and not self.failed:
            await self.client.read_until(lambda _: False)

    async def finish(self) -> None:
        """Read to the end."""
        if self.client is not None:
            await self.client.read_until(lambda response: response.complete)

    def leave(self) -> None:
        """Leave now, unless it has failed."""
        if self.client is None or self.failed:
            return
        if self.client.over and self.case.stage is not Stage.UPLOADING:
            self._failed = self.client.broken or "the response was over before the client left"
            return
        self.client.leave(self.case.way)
        self._tokens_at_leave = sum(record.tokens for record in self._play.index.seen(self.id))

    async def watch(self) -> None:
        """Wait until the model server has nothing to do for it, at most as long as is watched."""
        client = self.client
        if client is None or client.times.left is None:
            self._watched = time.monotonic()
            return
        until = client.times.left + self._play.pace.watch
        with trio.move_on_after(max(0.0, until - time.monotonic())):
            async with trio.open_nursery() as nursery:
                if self.case.way is Way.HALF_CLOSE:
                    nursery.start_soon(self.stay)
                await self._play.index.settled(self.id)
                nursery.cancel_scope.cancel()
        self._watched = time.monotonic()

    async def watch_for_more(self) -> None:
        """See whether the proxy asks again for a client that has left; if so, wait as ``watch`` does."""
        index = self._play.index
        known = len(index.seen(self.id))
        with trio.move_on_after(_ASKED_AGAIN):
            await index.another(self.id, known)
        if len(index.seen(self.id)) > known:
            await self.watch()

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self.client is not None:
            self.client.close()

    def record(self) -> Record:
        """Close what is open and judge. The request is forgotten."""
        play, client, response = self._play, self.client, self.response
        if client is not None and self.case.stage is Stage.NONE:
            self._failed = _refused(response)
        facts = self._facts()
        server = list(play.index.seen(self.id))
        verdict = judge(
            facts,
            server,
            tokens_at_leave=self._tokens_at_leave,
            until=self._watched or time.monotonic(),
            late_after=play.late_after,
        )
        self.close()
        play.index.forget(self.id)
        times = client.times if client is not None else Times()
        last = server[-1] if server else None
        return Record(
            id=self.id,
            leg=self.leg,
            load=self.load,
            stage=self.case.stage,
            way=self.case.way,
            upstream=self.case.upstream,
            fraction=self.case.fraction,
            payload_bytes=self.payload.length,
            payload_sha256=self.payload.sha256,
            parent_id=self.payload.parent_id,
            payload=self._kept,
            outcome=verdict.outcome,
            why=verdict.why,
            status=response.status,
            tokens=response.tokens,
            received_bytes=response.body_bytes,
            received=bytes(response.kept).decode(errors="replace") or None,
            complete=response.complete,
            started=times.started,
            sent=times.sent,
            left=times.left,
            ended=times.ended,
            ttft_ms=None if response.first_token is None else (response.first_token - times.started) * 1000,
            propagation_ms=verdict.propagation_ms,
            tokens_for_nobody=verdict.waste.tokens,
            slot_ms_for_nobody=verdict.waste.slot_ms,
            cross_delivered_bytes=response.cross_delivered,
            disordered_tokens=response.disordered,
            attempts=len(server),
            sent_after_leave=times.left is not None and any(record.seen > times.left for record in server),
            server_seen=None if last is None else last.seen,
            server_body_read=None if last is None else last.body_read,
            server_abandoned=None if last is None else last.abandoned,
            server_finished=None if last is None else last.finished,
            server_tokens=sum(record.tokens for record in server),
        )

    def _facts(self) -> ClientFacts:
        client, response = self.client, self.response
        cut: str | None = None
        if client is not None and not response.complete:
            stays = self.case.way is Way.STAY
            cut = client.broken or ("it did not end in time" if stays else None)
        return ClientFacts(
            left=None if client is None else client.times.left,
            may_be_served=self.case.way is Way.HALF_CLOSE and self.case.stage is not Stage.UPLOADING,
            complete=response.complete,
            failed=self._failed,
            cut=cut,
            cross_delivered=response.cross_delivered,
            disordered=response.disordered,
        )


def _tokens(count: int) -> Callable[[Response], bool]:
    return lambda response: response.tokens >= count


def _refused(response: Response) -> str | None:
    if response.status is not None and response.status != 200:
        return f"answered with status {response.status}"
    return None


async def play_once(request: Request, leaving: Callable[[], None]) -> Record:
    """One request alone, from its beginning to its record. Cancelled, its connection is closed.

    :param leaving: called once: when its leaving was seen, 0.1 s after that, or when it has failed. The next may begin.
    """
    try:
        await request.begin()
        await request.reach()
        await request.dwell()
        if request.case.way is not Way.STAY:
            request.leave()
        with trio.move_on_after(_NEXT):
            await request.watch()
        leaving()
        await request.watch()
        if request.case.way is not Way.STAY:
            await request.watch_for_more()
    except BaseException:
        request.close()
        raise
    return request.record()
