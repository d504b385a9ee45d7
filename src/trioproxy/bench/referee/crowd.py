"""A mass disconnect: many streams stand at a stage and all leave at once, while others go on.

Lives here: the crowd, the survivors beside it and the probe that knocks at a fixed rate. Does not live here: the
judgement over each request (join.py).

What survivors and probes see in the second before the disconnect is compared with the second after it: the same
process, the same streams. The probe is an open loop: its requests come at their times whether or not the ones before
were answered, and are timed from when they were due, so that a stalled proxy cannot slow down its own measurement.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple, final

import trio

from .cases import Case, Stage, Way
from .client import Address
from .metrics import Spread
from .play import CONTROL, Play, Request
from .records import Leg, Outcome, Record
from .report import CrowdResult

WINDOW: Final = 1.0
"""Seconds before and after the disconnect that are compared."""
_PROBE_RATE: Final = 50.0
_PROBE_TOKENS: Final = 2
_AT_ONCE: Final = 64
"""Streams that connect and upload at a time."""
_TOKEN_RATE: Final = 1500.0
"""Tokens per second that a crowd has at most, all its streams together."""
_LEAVE_BEFORE_YIELD: Final = 20
_SETTLE: Final = 0.4
_GATHERING: Final = 20.0
"""Seconds for all streams to come to their stage."""


class CrowdPlan(NamedTuple):
    """One mass disconnect."""

    case: Case
    streams: int
    survivors: int
    size: int


@final
class _Probe:
    """One knock of the probe."""

    __slots__ = ("due", "first", "whole")

    def __init__(self, due: float) -> None:
        self.due = due
        self.first: float | None = None
        self.whole: float | None = None


@final
class Crowd:
    """Plays one mass disconnect."""

    __slots__ = ("_address", "_leg", "_members", "_plan", "_play", "_probes", "_survivors", "left")

    def __init__(self, play: Play, plan: CrowdPlan, leg: Leg, address: Address) -> None:
        self._play = play
        self._plan = plan
        self._leg: Leg = leg
        self._address = address
        self._members: list[Request] = []
        self._survivors: list[Request] = []
        self._probes: list[_Probe] = []
        self.left: float | None = None
        """When the first of them left."""

    async def run(self) -> tuple[CrowdResult, list[Record]]:
        """Play it; the result and the records of all but the probes. Cancelled, every connection is closed."""
        try:
            return await self._run()
        finally:
            for request in (*self._members, *self._survivors):
                request.close()

    def known(self) -> list[Record]:
        """The records of those whose abort the model server has seen, of a crowd that was cancelled before its end."""
        return [request.record() for request in self._members if request.seen]

    async def _run(self) -> tuple[CrowdResult, list[Record]]:
        plan, pace = self._plan, self._play.pace
        # Whatever its stage, a crowd has to stand still for as long as it takes to gather it and to look around.
        wait = _GATHERING + 2 * WINDOW + _SETTLE
        hold: dict[str, object] = {}
        match plan.case.stage:
            case Stage.BEFORE_HEAD | Stage.EARLY_HEAD | Stage.WHOLE:
                hold = {"prefill": wait}
            case Stage.STALL | Stage.AFTER_LAST:
                hold = {"stall": wait}
            case _:
                # Slow enough for the tool, which is both ends of every stream, not to be what is measured.
                interval = max(pace.interval, plan.streams / _TOKEN_RATE)
                hold = {"interval": interval, "tokens": int((wait + 2 * pace.watch) / interval)}
        self._members = [self._request(plan.case, hold) for _ in range(plan.streams)]
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as gathering:
                limit = trio.CapacityLimiter(_AT_ONCE)
                for request in self._members:
                    gathering.start_soon(self._gather, request, limit, nursery)
            await self._survive(nursery)
            left = self.left = time.monotonic()
            for number, request in enumerate(self._members):
                request.leave()
                if number % _LEAVE_BEFORE_YIELD == _LEAVE_BEFORE_YIELD - 1:
                    # The model server is in this process: it must be able to notice the first before the last leaves.
                    await trio.lowlevel.checkpoint()
            await trio.sleep(WINDOW)
            after = time.monotonic()
            async with trio.open_nursery() as watching:
                for request in self._members:
                    watching.start_soon(request.watch)
            await trio.sleep(max(0.0, after + pace.watch - time.monotonic()) if self._waiting() else 0.0)
            await self._end_survivors()
            nursery.cancel_scope.cancel()
        members = [request.record() for request in self._members]
        survivors = [request.record() for request in self._survivors]
        return self._result(left, members, survivors), [*members, *survivors]

    def _request(self, case: Case, more: dict[str, object]) -> Request:
        return Request(self._play, case, self._leg, "crowd", self._address, self._plan.size, more=more)

    async def _gather(self, request: Request, limit: trio.CapacityLimiter, nursery: trio.Nursery) -> None:
        with trio.move_on_after(_GATHERING):
            async with limit:
                await request.begin()
            await request.reach()
        nursery.start_soon(request.stay)

    async def _survive(self, nursery: trio.Nursery) -> None:
        """Start survivors and the probe, and wait until the second before the disconnect is over."""
        interval = self._play.pace.interval
        # Long enough to be there at the end of the watch, and no longer, since each is read to its end.
        tokens = int((_SETTLE + 2 * WINDOW + 0.5) / interval)
        self._survivors = [self._request(CONTROL, {"tokens": tokens}) for _ in range(self._plan.survivors)]
        for request in self._survivors:
            nursery.start_soon(_stream, request)
        nursery.start_soon(self._knock, nursery)
        await trio.sleep(_SETTLE + WINDOW)

    async def _knock(self, nursery: trio.Nursery) -> None:
        start = trio.current_time()
        for number in range(int((_SETTLE + 2 * WINDOW) * _PROBE_RATE)):
            await trio.sleep_until(start + number / _PROBE_RATE)
            probe = _Probe(time.monotonic() - (trio.current_time() - start - number / _PROBE_RATE))
            self._probes.append(probe)
            nursery.start_soon(self._probe, probe)

    async def _probe(self, probe: _Probe) -> None:
        request = self._request(CONTROL, {"tokens": _PROBE_TOKENS, "interval": 0.0})
        try:
            await request.begin()
            await request.finish()
            if request.response.complete and request.response.tokens == _PROBE_TOKENS:
                probe.first = request.response.first_token
                probe.whole = time.monotonic()
        finally:
            request.close()
            self._play.index.forget(request.id)

    def _waiting(self) -> bool:
        return any(probe.whole is None for probe in self._probes)

    async def _end_survivors(self) -> None:
        """Let them come to their end, in the time that is left to them."""
        with trio.move_on_after(self._play.pace.patience):
            await trio.lowlevel.checkpoint()
            for request in self._survivors:
                while request.client is None or not request.client.over:  # noqa: ASYNC110 - rarely, and not for long
                    if request.failed:
                        break
                    await trio.sleep(0.01)

    def _result(self, left: float, members: Sequence[Record], survivors: Sequence[Record]) -> CrowdResult:
        before = [probe for probe in self._probes if left - WINDOW <= probe.due < left]
        after = [probe for probe in self._probes if left <= probe.due < left + WINDOW]
        gaps_before: list[float] = []
        gaps_after: list[float] = []
        for request in self._survivors:
            arrived = request.response.first_token
            if arrived is None:
                continue
            for gap in request.response.gaps:
                arrived += gap
                # By its end: a gap that began before the disconnect and ended after it was made longer by it.
                if left - WINDOW <= arrived < left:
                    gaps_before.append(gap * 1000)
                elif left <= arrived < left + WINDOW:
                    gaps_after.append(gap * 1000)
        return CrowdResult(
            leg=self._leg,
            stage=self._plan.case.place,
            way=self._plan.case.way.value,
            streams=sum(record.outcome is not Outcome.FAILED for record in members),
            survivors=len(survivors),
            ttft_before=Spread.of(_waited(before)),
            ttft_after=Spread.of(_waited(after)),
            itl_before=Spread.of(gaps_before),
            itl_after=Spread.of(gaps_after),
            stall=max(((probe.whole - probe.due) * 1000 for probe in after if probe.whole is not None), default=None),
            lost_probes=sum(probe.whole is None for probe in self._probes),
            probes=[
                (round(probe.due - left, 3), round((probe.whole - probe.due) * 1000, 3))
                for probe in self._probes
                if probe.whole is not None
            ],
            seen_ms=sorted(
                round((record.server_abandoned - left) * 1000, 3)
                for record in members
                if record.server_abandoned is not None and record.server_abandoned > left
            ),
        )


async def _stream(request: Request) -> None:
    await request.begin()
    await request.finish()


def _waited(probes: Sequence[_Probe]) -> list[float]:
    return [(probe.first - probe.due) * 1000 for probe in probes if probe.first is not None]


def crowd_cases(stages: Sequence[Stage], ways: Sequence[Way]) -> list[Case]:
    """The mass disconnects of a run: at stages in which many can stand, FIN and reset in turns."""
    usual = [way for way in (Way.FIN, Way.RST) if way in ways]
    wanted = (Stage.BEFORE_HEAD, Stage.STALL, Stage.MID_STREAM, Stage.WHOLE)
    places = [stage for stage in wanted if stage in stages]
    return [Case(stage, usual[number % len(usual)]) for number, stage in enumerate(places)] if usual else []
