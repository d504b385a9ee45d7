"""``trioproxy bench cancel``: clients that leave, at every stage and in every way, and what the model server sees.

Lives here: the order of a run and how its parts come together to a report. Does not live here: one request (play.py),
the mass disconnect (crowd.py), the drain (drain.py), arguments and exit (../cli.py).
"""

from __future__ import annotations

import random
import string
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast, final

import trio

from ..mock import MockServer
from . import metrics
from .cases import Case, Pace, Way
from .client import Address
from .crowd import Crowd, CrowdPlan
from .drain import measure_drain
from .index import Index
from .payloads import Payloads
from .play import CONTROL, Play, Request, play_once
from .records import Leg, Load, Outcome, Record, RecordWriter
from .report import CancelReport, CrowdResult, DrainResult, Machine, difference, void
from .target import Target, TargetError, started, wait_listening
from .usage import OwnWatch, cpu_ns

GIVE_UP: Final = 3
"""Failed requests in a row after which the rest of a case is left out: each may take seconds to fail."""
_CHECK: Final = 0.05
"""Seconds between two looks whether the proxy is still there."""

Progress = Callable[[str], None]
"""Is told what is being done."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CancelPlan:
    """What is to be measured.

    :param proxy: one that runs already and forwards to ``upstream_listen``; else ``command`` is started.
    :param rounds: requests of each case, one after the other.
    :param streams: of each mass disconnect; 0 for none.
    """

    cases: Sequence[Case]
    crowd_cases: Sequence[Case] = ()
    proxy: Address | None = None
    command: Sequence[str] | None = None
    upstream_listen: tuple[str, int] = ("127.0.0.1", 0)
    headers: tuple[tuple[str, str], ...] = ()
    model: str = "mock-model"
    rounds: int = 5
    streams: int = 200
    survivors: int = 20
    size: int = 4096
    upload_size: int = 1 << 20
    pace: Pace = field(default_factory=Pace)
    late_after: float = 0.25
    drain: bool = True
    records: Path | None = None
    keep_payloads: bool = False


@final
class CancelRun:
    """A run; ``report`` may be asked for at any time, after a failure too."""

    __slots__ = (
        "_cpu",
        "_crowd_results",
        "_drain",
        "_error",
        "_own",
        "_plan",
        "_progress",
        "_records",
        "_target",
        "_writer",
    )

    def __init__(self, plan: CancelPlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._records: dict[tuple[Leg, Load, Case], list[Record]] = defaultdict(list)
        self._crowd_results: list[CrowdResult] = []
        self._drain: DrainResult | None = None
        self._own: OwnWatch | None = None
        self._error: str | None = None
        self._cpu: float | None = None
        self._target = "" if plan.proxy is None else plan.proxy.url

    async def run(self) -> None:
        """Run to the end, or to what ends it: then ``report`` says why. Cancelled, nothing is left running."""
        try:
            await self._run()
        except* TargetError as group:
            self._error = str(first(group))
        except* OSError as group:
            self._error = f"the system refuses what the tool needs: {first(group)}"

    async def _run(self) -> None:
        plan = self._plan
        index = Index()
        server = MockServer(on_name=index.note)
        own = self._own = OwnWatch()
        largest = max(plan.size, plan.upload_size)
        with (
            Payloads(largest, model=plan.model, keep=plan.keep_payloads) as payloads,
            RecordWriter(plan.records) as writer,
        ):
            self._writer = writer
            async with trio.open_nursery() as nursery:
                upstream: tuple[str, int] = await nursery.start(server.serve, *plan.upstream_listen)
                nursery.start_soon(own.run)
                play = Play(run_name(), payloads, index, plan.pace, plan.late_after)
                direct = Address(host=_reachable(upstream[0]), port=upstream[1], headers=plan.headers)
                async with self._target_of(upstream) as target:
                    self._target = target.address.url
                    await self._measure(play, direct, target)
                if plan.command is not None and plan.drain:
                    self._progress("the drain at SIGTERM")
                    words = plan.command
                    self._drain = await measure_drain(play, lambda: self._start(words, upstream), plan.size)
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _target_of(self, upstream: tuple[str, int]) -> AsyncGenerator[Target]:
        plan = self._plan
        if plan.proxy is not None:
            await wait_listening(plan.proxy, None, 2.0)
            yield Target(plan.proxy)
            return
        assert plan.command is not None
        self._progress("starting the proxy")
        async with self._start(plan.command, upstream) as target:
            yield target

    def _start(self, words: Sequence[str], upstream: tuple[str, int]) -> AbstractAsyncContextManager[Target]:
        return started(words, (_reachable(upstream[0]), upstream[1]), self._plan.headers)

    async def _measure(self, play: Play, direct: Address, target: Target) -> None:
        cpu = None if target.pid is None else cpu_ns(target.pid)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_target, target)
            legs: dict[Leg, Address] = {"direct": direct, "proxy": target.address}
            await self._singles(play, legs)
            await self._crowds(play, legs)
            nursery.cancel_scope.cancel()
        if cpu is not None and target.pid is not None:
            self._cpu = (cpu_ns(target.pid) - cpu) / 1e9 / max(trio.current_time() - began, 1e-9)

    # ---- one at a time

    async def _singles(self, play: Play, legs: dict[Leg, Address]) -> None:
        async with trio.open_nursery() as nursery:
            for number, case in enumerate(self._plan.cases):
                self._progress(f"{number + 1}/{len(self._plan.cases)} {case.label}")
                for leg, address in legs.items():
                    await self._single(play, CONTROL, leg, address, 1, nursery)
                    await self._single(play, case, leg, address, self._plan.rounds, nursery)
            self._progress("watching the last requests")

    async def _single(
        self, play: Play, case: Case, leg: Leg, address: Address, rounds: int, nursery: trio.Nursery
    ) -> None:
        """Play requests one after the other; what is still to be watched of them goes on in ``nursery``."""
        found = self._records[leg, "single", case]
        before = len(found)
        size = self._plan.upload_size if case.fraction < 1 else self._plan.size

        async def one(request: Request, left: trio.Event) -> None:
            record = await play_once(request, left.set)
            found.append(record)
            self._writer.write([record])

        for _ in range(rounds):
            left = trio.Event()
            nursery.start_soon(one, Request(play, case, leg, "single", address, size), left)
            await left.wait()
            last = found[before:][-GIVE_UP:]
            if len(last) == GIVE_UP and all(record.outcome is Outcome.FAILED for record in last):
                return

    # ---- many at once

    async def _crowds(self, play: Play, legs: dict[Leg, Address]) -> None:
        plan = self._plan
        for case in plan.crowd_cases:
            for leg, address in legs.items():
                self._progress(f"{plan.streams} at once: {case.label} ({leg})")
                crowd = Crowd(play, CrowdPlan(case, plan.streams, plan.survivors, plan.size), leg, address)
                result, records = await crowd.run()
                self._crowd_results.append(result)
                self._writer.write(records)
                for record in records:
                    self._records[leg, "crowd", CONTROL if record.way is Way.STAY else case].append(record)

    # ---- the report

    def report(self, version: str, options: dict[str, object], label: str = "") -> CancelReport:
        """What has been found so far, judged by nobody yet: requirements are the caller's."""
        records = [record for some in self._records.values() for record in some]
        proxy = metrics.overall(records, "proxy") | self._crowd_metrics("proxy") | _drain_metrics(self._drain)
        direct = metrics.overall(records, "direct") | self._crowd_metrics("direct")
        own = None if self._own is None else self._own.usage()
        return CancelReport(
            target=self._target,
            label=label,
            machine=Machine(version=version),
            options=options,
            metrics=proxy,
            direct=direct,
            difference=difference(proxy, direct),
            cases=[
                metrics.summarize(case, leg, load, found)
                for (leg, load, case), found in sorted(self._records.items(), key=_order)
            ],
            crowds=self._crowd_results,
            drain=self._drain,
            proxy_cpu_share=self._cpu,
            own=own,
            error=self._error,
            void=None if own is None else void(own),
        )

    def _crowd_metrics(self, leg: Leg) -> metrics.Metrics:
        """The worst of the mass disconnects."""
        results = [result for result in self._crowd_results if result.leg == leg]
        return {
            "survivor_ttft_p99_ms": _most(result.ttft_after.p99 for result in results),
            "survivor_ttft_added_ms": _most(_added(result.ttft_before, result.ttft_after) for result in results),
            "survivor_itl_p99_ms": _most(result.itl_after.p99 for result in results),
            "survivor_itl_added_ms": _most(_added(result.itl_before, result.itl_after) for result in results),
            "loop_stall_ms": _most(result.stall for result in results),
            "lost_probes": sum(result.lost_probes for result in results),
        }


def _added(before: metrics.Spread, after: metrics.Spread) -> float | None:
    return None if before.p99 is None or after.p99 is None else after.p99 - before.p99


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _drain_metrics(result: DrainResult | None) -> metrics.Metrics:
    if result is None:
        return {}
    return {"drain_idle_ms": result.idle, "drain_busy_ms": result.busy, "drain_cut": result.cut}


def _order(item: tuple[tuple[Leg, Load, Case], list[Record]]) -> tuple[bool, bool]:
    (leg, load, _), _ = item
    return leg != "proxy", load != "single"


async def watch_target(target: Target) -> None:
    """Raise ``TargetError`` as soon as the process of the target has ended; else until cancelled."""
    while True:
        target.check()
        await trio.sleep(_CHECK)


def run_name() -> str:
    """Makes the ids of a run its own."""
    return "b" + "".join(random.choices(string.ascii_lowercase + string.digits, k=6))


def _reachable(host: str) -> str:
    """Where a server that listens on ``host`` is reached from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first leaf of a group."""
    found = group.exceptions[0]
    if isinstance(found, BaseExceptionGroup):
        return first(cast("BaseExceptionGroup[BaseException]", found))
    return found
