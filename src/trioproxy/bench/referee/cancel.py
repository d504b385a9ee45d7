"""``trioproxy bench cancel``: clients that leave, at every stage and in every way, and what the model server sees.

Lives here: the order of a run and how its parts come together to a report. Does not live here: one request (play.py),
the mass disconnect (crowd.py), the drain (drain.py), arguments and exit (../cli.py).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, final

import trio

from ..mock import MockServer
from . import metrics
from .capacity import served_at_once
from .cases import Case, Pace, Way
from .client import Address
from .crowd import WINDOW, Crowd, CrowdPlan
from .drain import measure_drain
from .index import Index
from .payloads import Payloads
from .play import CONTROL, Play, Request, play_once, run_name
from .records import Leg, Load, Outcome, Record, RecordWriter
from .report import CancelReport, CrowdResult, DrainResult, Machine, TasksAlive, difference, void
from .target import (
    GREET_TIMEOUT,
    Target,
    TargetError,
    interrupted,
    play_model_server,
    reachable,
    started,
    wait_listening,
    what_ends,
)
from .tasks import TaskWatch
from .usage import OwnWatch, cpu_ns

GIVE_UP: Final = 3
"""Failed requests in a row after which the rest of a case is left out: each may take seconds to fail."""
QUIET_TIMEOUT: Final = 30.0
"""Seconds for missed requests to come to their end; a crowd's have the most to do, for 25 s."""
_CHECK: Final = 0.05
"""Seconds between two looks whether the proxy is still there."""

Progress = Callable[[str], None]
"""Is told what is being done."""


class ServeProxy(Protocol):
    """A proxy that runs in this process, until it is cancelled."""

    async def __call__(  # noqa: ASYNC114 - it is known by what it is called with
        self, upstream: tuple[str, int], *, task_status: trio.TaskStatus[tuple[str, int]]
    ) -> None:
        """Forward to ``upstream``; call ``task_status.started`` with the host and port where it listens."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CancelPlan:
    """What is to be measured.

    :param proxy: one that runs already and forwards to ``upstream_listen``; else ``command`` is started.
    :param rounds: requests of each case, one after the other.
    :param streams: of each mass disconnect; 0 for none.
    :param slots: requests sent at once, before all aborts and after them, to see whether slots were lost; 0 for none.
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
    slots: int = 200
    size: int = 4096
    upload_size: int = 1 << 20
    pace: Pace = field(default_factory=Pace)
    late_after: float = 0.25
    drain: bool = True
    records: Path | None = None
    keep_payloads: bool = False


@final
class CancelRun:
    """A run; ``report`` may be asked for at any time, after a failure too.

    :param serve: a proxy in this process, instead of the plan's.
    """

    __slots__ = (
        "_cpu",
        "_crowd_results",
        "_drain",
        "_error",
        "_own",
        "_plan",
        "_progress",
        "_records",
        "_serve",
        "_served",
        "_target",
        "_tasks",
        "_writer",
    )

    def __init__(self, plan: CancelPlan, progress: Progress, *, serve: ServeProxy | None = None) -> None:
        self._plan = plan
        self._progress = progress
        self._serve = serve
        self._tasks = TaskWatch() if serve is not None else None
        self._records: dict[tuple[Leg, Load, Case], list[Record]] = defaultdict(list)
        self._crowd_results: list[CrowdResult] = []
        self._served: list[int] = []
        self._drain: DrainResult | None = None
        self._own = OwnWatch()
        self._error: str | None = None
        self._cpu: float | None = None
        self._target = "" if plan.proxy is None else plan.proxy.url

    async def run(self) -> None:
        """Run to the end, or to what ends it: then ``report`` says why. Cancelled, nothing is left running."""
        self._error = await what_ends(self._run)

    def interrupted(self, by: str) -> None:
        """Somebody has cancelled it."""
        self._error = interrupted(by)

    async def _run(self) -> None:
        plan = self._plan
        index = Index()
        server = MockServer(on_name=index.note)
        with (
            Payloads(max(plan.size, plan.upload_size), model=plan.model, keep=plan.keep_payloads) as payloads,
            records_file(plan.records) as writer,
        ):
            self._writer = writer
            async with trio.open_nursery() as nursery:
                upstream = await play_model_server(server, plan.upstream_listen, nursery)
                nursery.start_soon(self._own.run)
                play = Play(run_name(), payloads, index, plan.pace, plan.late_after)
                direct = Address(host=reachable(upstream[0]), port=upstream[1], headers=plan.headers)
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
        if self._serve is not None:
            assert self._tasks is not None
            async with embedded(self._serve, upstream, self._tasks) as (host, port):
                yield Target(Address(host=reachable(host), port=port, headers=plan.headers))
        elif plan.command is not None:
            self._progress("starting the proxy")
            async with self._start(plan.command, upstream) as target:
                yield target
        else:
            assert plan.proxy is not None
            await wait_listening(plan.proxy, None, GREET_TIMEOUT)
            yield Target(plan.proxy)

    def _start(self, words: Sequence[str], upstream: tuple[str, int]) -> AbstractAsyncContextManager[Target]:
        return started(words, (reachable(upstream[0]), upstream[1]), self._plan.headers)

    async def _measure(self, play: Play, direct: Address, target: Target) -> None:
        cpu = None if target.pid is None else cpu_ns(target.pid)
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_target, target)
            await _greet(play, target.address, direct)
            legs: dict[Leg, Address] = {"direct": direct, "proxy": target.address}
            await self._count_slots(play, target.address)
            await self._singles(play, legs)
            await self._crowds(play, legs)
            await self._count_slots(play, target.address)
            # It may have ended at the last request.
            await wait_listening(target.address, target, GREET_TIMEOUT)
            nursery.cancel_scope.cancel()
        if cpu is not None and target.pid is not None:
            self._cpu = (cpu_ns(target.pid) - cpu) / 1e9 / max(time.monotonic() - began, 1e-9)

    async def _count_slots(self, play: Play, address: Address) -> None:
        wave = self._plan.slots
        if not wave:
            return
        self._progress(f"{wave} requests at once")
        served = await served_at_once(play, address, wave, self._plan.size)
        if self._served and served < self._served[0]:
            # A slot that is lost stays lost: a second wave tells it from a moment of slowness.
            served = max(served, await served_at_once(play, address, wave, self._plan.size))
        self._served.append(served)

    # ---- one at a time

    async def _singles(self, play: Play, legs: dict[Leg, Address]) -> None:
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for number, case in enumerate(self._plan.cases):
                self._progress(f"{number + 1}/{len(self._plan.cases)} {case.label}")
                for leg, address in legs.items():
                    await self._single(play, CONTROL, leg, address, 1, nursery)
                    await self._single(play, case, leg, address, self._plan.rounds, nursery)
            self._progress("watching the last requests")
        await _quiet(play)
        self._own.note("one at a time", began, time.monotonic())

    async def _single(
        self, play: Play, case: Case, leg: Leg, address: Address, rounds: int, nursery: trio.Nursery
    ) -> None:
        """Play requests one after the other; what is still to be watched of them goes on in ``nursery``."""
        found = self._records[leg, "single", case]
        before = len(found)
        size = self._plan.upload_size if case.fraction < 1 else self._plan.size

        async def one(request: Request, left: trio.Event) -> None:
            try:
                record = await self._play(request, left)
            except BaseException:
                if request.seen:  # the run ends while it is watched for more: it has been judged
                    self._keep(leg, case, [request.record()])
                raise
            found.append(record)
            self._writer.write([record])
            if record.unconnected and leg == "proxy":
                await wait_listening(address, None, GREET_TIMEOUT)

        for _ in range(rounds):
            left = trio.Event()
            nursery.start_soon(one, Request(play, case, leg, "single", address, size), left)
            await left.wait()
            last = found[before:][-GIVE_UP:]
            if len(last) == GIVE_UP and all(record.outcome is Outcome.FAILED for record in last):
                return

    async def _play(self, request: Request, left: trio.Event) -> Record:
        """One request; ``left`` is set when the next may begin: if tasks are counted, when that is done."""
        tasks = self._tasks
        if tasks is None or request.leg != "proxy":
            return await play_once(request, left.set)
        before = tasks.alive()
        record = await play_once(request, lambda: None)
        if record.over:
            await tasks.request_ended(before)
        left.set()
        return record

    # ---- many at once

    async def _crowds(self, play: Play, legs: dict[Leg, Address]) -> None:
        plan = self._plan
        for case in plan.crowd_cases:
            for leg, address in legs.items():
                self._progress(f"{plan.streams} at once: {case.label} ({leg})")
                crowd = Crowd(play, CrowdPlan(case, plan.streams, plan.survivors, plan.size), leg, address)
                try:
                    result, records = await crowd.run()
                except BaseException:
                    self._keep(leg, case, crowd.known())
                    raise
                self._crowd_results.append(result)
                self._keep(leg, case, records)
                await _quiet(play)
                if crowd.left is not None:
                    self._own.note(f"{plan.streams} at once, {case.place} ({leg})", crowd.left - WINDOW, crowd.left)
                if leg == "proxy" and all(record.unconnected for record in records):
                    await wait_listening(address, None, GREET_TIMEOUT)

    def _keep(self, leg: Leg, case: Case, records: Sequence[Record]) -> None:
        self._writer.write(records)
        for record in records:
            self._records[leg, record.load, CONTROL if record.way is Way.STAY else case].append(record)

    # ---- the report

    def report(self, options: dict[str, object], label: str = "") -> CancelReport:
        """What has been found so far, judged by nobody yet: requirements are the caller's."""
        records = [record for some in self._records.values() for record in some]
        tasks = None if self._tasks is None else self._tasks.result()
        proxy = metrics.overall(records, "proxy") | self._crowd_metrics("proxy") | _slots(self._served)
        proxy |= _drain_metrics(self._drain) | _tasks_metrics(tasks)
        direct = metrics.overall(records, "direct") | self._crowd_metrics("direct")
        own = self._own.usage()
        return CancelReport(
            target=self._target,
            label=label,
            machine=Machine(),
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
            tasks=tasks,
            served_at_once=self._served,
            proxy_cpu_share=self._cpu,
            own=own,
            error=self._error,
            void=void(own) if records else None,
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


def _tasks_metrics(result: TasksAlive | None) -> metrics.Metrics:
    if result is None:
        return {}
    return {
        "tasks_alive_0_ms": result.after_0_ms,
        "tasks_alive_10_ms": result.after_10_ms,
        "tasks_alive_100_ms": result.after_100_ms,
    }


def _slots(served: Sequence[int]) -> metrics.Metrics:
    if len(served) < 2:
        return {}
    return {"served_at_once": served[-1], "lost_slots": max(0, served[0] - served[-1])}


def _order(item: tuple[tuple[Leg, Load, Case], list[Record]]) -> tuple[bool, bool]:
    (leg, load, _), _ = item
    return leg != "proxy", load != "single"


def records_file(path: Path | None) -> RecordWriter:
    """Open the file of records.

    :raises TargetError: it cannot be written.
    """
    try:
        return RecordWriter(path)
    except OSError as error:
        raise TargetError(f"cannot write the records to {path}: {error.strerror}") from None


async def _greet(play: Play, address: Address, upstream: Address) -> None:
    """See a first request through. A proxy that has only just begun to listen may need a moment to know its upstream.

    :raises TargetError: none came to the model server in time.
    """
    until = time.monotonic() + GREET_TIMEOUT
    while True:
        record = await play_once(Request(play, CONTROL, "proxy", "single", address, 1024), lambda: None)
        if record.attempts:
            return
        if time.monotonic() > until:
            raise TargetError(
                f"a request to {address.url} did not come to the model server at {upstream.authority}, which is played"
                f" here: {record.why or 'nothing was answered'}. Does the proxy forward to there?"
            )
        await trio.sleep(_CHECK)


async def _quiet(play: Play) -> None:
    """Wait for what requests that were missed have left to do."""
    with trio.move_on_after(QUIET_TIMEOUT):
        await play.index.quiet()


async def watch_target(target: Target) -> None:
    """Raise ``TargetError`` as soon as the process of the target has ended; else until cancelled."""
    while True:
        target.check()
        await trio.sleep(_CHECK)


@asynccontextmanager
async def embedded(serve: ServeProxy, upstream: tuple[str, int], tasks: TaskWatch) -> AsyncGenerator[tuple[str, int]]:
    """Run a proxy in this process, and count its tasks."""

    async def root(*, task_status: trio.TaskStatus[tuple[str, int]]) -> None:  # noqa: ASYNC114, ASYNC128 - below
        tasks.watch_below(trio.lowlevel.current_task())
        await serve(upstream, task_status=task_status)  # which says when it has started

    trio.lowlevel.add_instrument(tasks)
    try:
        async with trio.open_nursery() as nursery:
            yield await nursery.start(root)
            nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.remove_instrument(tasks)
