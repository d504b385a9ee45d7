"""``trioproxy bench cancel --engine-metrics``: clients that leave a gateway, and what a real engine tells of it.

Lives here: the order of a run and how its parts come together to a report. Does not live here: one request
(engine_play.py), whether the engine is at rest (engine_rest.py), the judgement (engine_judge.py), arguments
(../engine_options.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

import httpx
import trio

from ...upstream.pool_transport import PoolTransport
from .cancel import GIVE_UP, Progress, records_file, watch_target
from .cases import CONTROL_TOKENS, Case, Stage, Way
from .client import Address
from .engine_judge import EngineOutcome, GroupFacts, GroupVerdict, judge
from .engine_metrics import EngineError, Sample
from .engine_play import Asking, EnginePace, EngineRequest, gather, lasting, leave_all
from .engine_records import EngineRecord, outcome_of, record_of
from .engine_report import EngineCase, EngineFacts, EngineReport, controls, overall, summarize
from .engine_rest import Rest
from .engine_watch import EngineWatch
from .metrics import Spread
from .play import run_name
from .records import Leg
from .report import Machine, difference, void
from .target import Target, interrupted, started, wait_listening, what_ends
from .usage import OwnWatch

_STREAM: Final = Case(Stage.NONE, Way.STAY)
_WHOLE: Final = Case(Stage.WHOLE, Way.STAY)
_SETTLE: Final = 0.15
"""Seconds without any work counted after which a group's watch is over, if its answers had begun."""
_LEGS: Final[tuple[Leg, ...]] = ("direct", "proxy")
_POINTS: Final = 300
"""Of a time line, at most."""
_TIMEOUT: Final = 10.0
"""Seconds for the engine to answer a question."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """What is to be measured.

    :param metrics_url: the engine's page of metrics.
    :param direct: the engine's own API; None for no direct leg.
    :param proxy: a gateway that runs already; else ``command`` is started in front of ``direct``.
    :param model: its name; None for the first that the gateway lists.
    :param count: requests of each group, all at once.
    :param tokens: that each asks for; None for as many as last longer than is watched.
    """

    cases: Sequence[Case]
    metrics_url: str
    direct: Address | None
    proxy: Address | None = None
    command: Sequence[str] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    engine_headers: tuple[tuple[str, str], ...] = ()
    model: str | None = None
    count: int = 5
    size: int = 4096
    upload_size: int = 1 << 20
    watch: float = 2.0
    poll: float = 0.03
    tokens: int | None = None
    ignore_eos: bool = True
    shared: bool = False
    records: Path | None = None
    keep_payloads: bool = False


@final
@dataclass(slots=True)
class _Leg:
    """One way to the engine."""

    address: Address
    asking: Asking
    stayed: list[EngineRecord] = field(default_factory=list["EngineRecord"])
    ttft_ms: list[float] = field(default_factory=list[float])
    gaps: list[float] = field(default_factory=list[float])


@final
class EngineRun:
    """A run; ``report`` may be asked for at any time, after a failure too."""

    def __init__(self, plan: EnginePlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._name = run_name()
        self._count = 0
        self._group = 0
        self._pace = EnginePace(watch=plan.watch)
        self._legs: dict[Leg, _Leg] = {}
        self._cases: list[EngineCase] = []
        self._notes: list[str] = []
        self._own = OwnWatch()
        self._error: str | None = None
        self._target = "" if plan.proxy is None else plan.proxy.url
        self._watch: EngineWatch | None = None

    async def run(self) -> None:
        """Run to the end, or to what ends it: then ``report`` says why. Cancelled, nothing is left running."""
        self._error = await what_ends(self._run, EngineError)

    def interrupted(self, by: str) -> None:
        """Somebody has cancelled it."""
        self._error = interrupted(by)

    async def _run(self) -> None:
        plan = self._plan
        async with httpx.AsyncClient(transport=PoolTransport(), timeout=_TIMEOUT) as client:
            watch = EngineWatch(client, plan.metrics_url, plan.engine_headers, plan.poll)
            await watch.open()
            self._watch = watch
            with records_file(plan.records) as self._writer:
                async with self._target_of() as target, trio.open_nursery() as nursery:
                    self._target = target.address.url
                    nursery.start_soon(watch.run)
                    nursery.start_soon(self._own.run)
                    nursery.start_soon(watch_target, target)
                    await self._prepare(client, target)
                    await self._measure(watch)
                    nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _target_of(self) -> AsyncGenerator[Target]:
        plan = self._plan
        if plan.proxy is not None:
            await wait_listening(plan.proxy, None, 2.0)
            yield Target(plan.proxy)
            return
        assert plan.command is not None
        if plan.direct is None:
            raise EngineError("--proxy-cmd needs --engine, which the gateway is to forward to")
        self._progress("starting the gateway")
        async with started(plan.command, (plan.direct.host, plan.direct.port), plan.headers) as target:
            yield target

    # ---- what is asked for

    async def _prepare(self, client: httpx.AsyncClient, target: Target) -> None:
        plan = self._plan
        listed = await _models(client, target.address)
        own = [] if plan.direct is None else await _models(client, plan.direct)
        model = plan.model or next(iter(listed or own), None)
        if model is None:
            raise EngineError(f"{target.address.url}/v1/models lists no model: say which with --model")
        self._legs["proxy"] = _Leg(target.address, self._asking(model))
        if plan.direct is None or (plan.direct.host, plan.direct.port) == (target.address.host, target.address.port):
            self._notes.append("no direct leg: the engine's API is not known; say where it is with --engine")
        elif not own:
            self._notes.append(f"no direct leg: {plan.direct.url}/v1/models does not answer; see --engine")
        else:
            self._legs["direct"] = _Leg(plan.direct, self._asking(model if model in own else own[0]))

    def _asking(self, model: str) -> Asking:
        return Asking(model=model, ignore_eos=self._plan.ignore_eos, keep=self._plan.keep_payloads)

    def _request(self, leg: _Leg, case: Case, size: int, tokens: int) -> EngineRequest:
        self._count += 1
        stream = case.stage is not Stage.WHOLE
        payload = leg.asking.payload(f"{self._name}-{self._count}", size, tokens=tokens, stream=stream)
        return EngineRequest(case, leg.address, payload)

    # ---- the run

    async def _measure(self, watch: EngineWatch) -> None:
        plan = self._plan
        rest = Rest(watch, self._refresh, shared=plan.shared, pace=self._pace)
        self._progress("is the engine at rest?")
        await rest.first_look()
        for name in _LEGS:
            await self._first_control(name)
        for number, case in enumerate(plan.cases):
            for name in _LEGS:
                leg = self._legs.get(name)
                if leg is None:
                    continue
                self._progress(f"{number + 1}/{len(plan.cases)} {case.label} ({name})")
                await self._control(name, leg, _WHOLE if case.stage is Stage.WHOLE else _STREAM)
                await self._play(watch, rest, case, name, leg)
                self._give_up(name, leg)

    async def _refresh(self) -> None:
        """Play a request of one token, past the gateway if that can be, so that the engine makes a step."""
        leg = self._legs.get("direct") or self._legs["proxy"]
        request = self._request(leg, _WHOLE, 64, 1)
        try:
            await request.finish(self._pace)
        finally:
            request.close()

    async def _first_control(self, name: Leg) -> None:
        """See that requests are answered at all, twice: what the first one takes says nothing."""
        leg = self._legs.get(name)
        if leg is None:
            return
        for _ in range(2):
            leg.ttft_ms.clear()
            leg.gaps.clear()
            await self._control(name, leg, _STREAM)
            why = leg.stayed[-1].why
            if why is not None and name == "direct":
                self._notes.append(f"no direct leg: {leg.address.url} {why}; see --engine and --engine-header")
                del self._legs[name]
                return
            if why is not None:
                raise EngineError(f"{leg.address.url}: a client that stays gets no answer: {why}")

    async def _control(self, name: Leg, leg: _Leg, case: Case) -> None:
        request = self._request(leg, case, self._plan.size, CONTROL_TOKENS)
        try:
            why = await request.finish(self._pace)
        finally:
            request.close()
        response = request.response
        if request.client is not None and response.first_token is not None:
            leg.ttft_ms.append((response.first_token - request.client.times.started) * 1000)
            leg.gaps += response.gaps
        record = record_of(request, 0, name, EngineOutcome.WHOLE if why is None else EngineOutcome.FALSE_ABORT, why)
        leg.stayed.append(record)
        self._writer.write([record])
        if leg.ttft_ms and leg.gaps:
            self._pace.ttft = statistics.median(leg.ttft_ms) / 1000
            self._pace.gap = statistics.median(leg.gaps)

    def _give_up(self, name: Leg, leg: _Leg) -> None:
        last = leg.stayed[-GIVE_UP:]
        if len(last) == GIVE_UP and all(record.outcome is EngineOutcome.FALSE_ABORT for record in last):
            raise EngineError(f"{name}: {GIVE_UP} clients in a row that stayed got no whole answer: {last[-1].why}")

    async def _play(self, watch: EngineWatch, rest: Rest, case: Case, name: Leg, leg: _Leg) -> None:
        """One group: to its stage, away, and what the engine tells then."""
        plan, pace = self._plan, self._pace
        level = await rest.come()
        began = await watch.fresh()
        size = plan.upload_size if case.stage is Stage.UPLOADING else plan.size
        asked = lasting(pace, plan.tokens)
        requests = [self._request(leg, case, size, asked) for _ in range(plan.count)]
        try:
            await gather(requests, pace)
            if case.stage in (Stage.MID_STREAM, Stage.WHOLE):
                await watch.fresh()  # tokens since the last page would count as made for nobody
            leaving = watch.last
            seen = sum(request.response.tokens for request in requests)
            left = await leave_all(requests, pace)
            gone = [request for request in requests if request.left is not None]
            refreshed: list[float] = []
            if gone:
                rest.owed = True
                async with trio.open_nursery() as nursery:
                    for request in gone if case.way is Way.HALF_CLOSE else ():
                        nursery.start_soon(request.read_on)
                    settle = _SETTLE if case.stage is Stage.MID_STREAM else max(_SETTLE, (1 + len(gone)) * pace.ttft)
                    refreshed = await rest.gone(left, len(gone), level, settle=settle, watch=plan.watch)
                    nursery.cancel_scope.cancel()
            served, connected = _half_closed(case, gone)
        finally:
            for request in requests:
                request.close()
        after = watch.since(left)
        facts = GroupFacts(
            count=len(gone),
            asked=asked,
            seen=seen,
            level=level,
            began=began,
            leaving=leaving,
            left=left,
            after=after,
            live=watch.engine.live,
            refreshed=refreshed,
            served=served,
            connected=connected,
        )
        verdict = judge(facts) if gone else None
        rest.owed = verdict is not None and verdict.missed + verdict.kept > 0
        self._keep(case, name, requests, verdict, _time_line(leaving, after, left))

    def _keep(
        self,
        case: Case,
        name: Leg,
        requests: Sequence[EngineRequest],
        verdict: GroupVerdict | None,
        running: list[tuple[float, float]],
    ) -> None:
        self._group += 1
        gone = sum(request.left is not None for request in requests)
        records = [record_of(one, self._group, name, outcome_of(one, verdict, gone), one.failed) for one in requests]
        self._writer.write(records)
        self._cases.append(summarize(case, name, records, verdict, running))

    # ---- the report

    def report(self, options: dict[str, object], label: str = "") -> EngineReport:
        """What has been found so far, judged by nobody yet: requirements are the caller's."""
        resolution = Spread.of([] if self._watch is None else self._watch.gaps_ms())
        cases = [controls(name, leg.stayed) for name, leg in self._legs.items() if leg.stayed] + self._cases
        proxy = overall(cases, "proxy", resolution)
        direct = overall(cases, "direct", resolution) if "direct" in self._legs else {}
        own = self._own.usage()
        return EngineReport(
            target=self._target,
            label=label,
            machine=Machine(),
            options=options,
            metrics=proxy,
            direct=direct,
            difference=difference(proxy, direct) if direct else {},
            own=own,
            error=self._error,
            void=None if self._error is not None else void(own, most_late_ms=math.inf),
            engine=self._engine_facts(resolution),
            cases=cases,
            notes=self._notes,
        )

    def _engine_facts(self, resolution: Spread) -> EngineFacts | None:
        watch = self._watch
        if watch is None:
            return None
        proxy, direct = self._legs.get("proxy"), self._legs.get("direct")
        return EngineFacts(
            name=watch.engine.name,
            metrics_url=watch.url,
            direct_url=None if direct is None else direct.address.url,
            model="" if proxy is None else proxy.asking.model,
            update=watch.engine.update,
            pages=len(watch.samples),
            fetch_ms=Spread.of(watch.fetch_ms),
            resolution_ms=resolution,
            ttft_ms=Spread.of(() if proxy is None else proxy.ttft_ms),
            shared=self._plan.shared,
        )


async def _models(client: httpx.AsyncClient, address: Address) -> list[str]:
    """The models that an API lists; none if it does not answer in its form."""
    try:
        response = await client.get(f"{address.url}/v1/models", headers=list(address.headers))
        listed = response.raise_for_status().json()["data"]
        return [str(each["id"]) for each in listed]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return []


def _half_closed(case: Case, gone: Sequence[EngineRequest]) -> tuple[int, int]:
    """How many were served, and how many are still connected; only whole requests have a right to that."""
    if case.way is not Way.HALF_CLOSE or case.stage is Stage.UPLOADING:
        return 0, 0
    return sum(one.response.complete for one in gone), sum(not one.over for one in gone)


def _time_line(leaving: Sample, after: Sequence[Sample], left: float) -> list[tuple[float, float]]:
    points = [((sample.at - left) * 1000, sample.running) for sample in [leaving, *after]]
    return points[:: max(1, len(points) // _POINTS)]
