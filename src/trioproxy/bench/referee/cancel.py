"""``trioproxy bench cancel``: clients that leave, at every stage and in every way, and what the model server sees.

Lives here: the order of a run and how its parts come together to a report. Does not live here: one request (play.py),
the mass disconnect (crowd.py), the drain (drain.py), arguments and exit (../cli.py).
"""

from __future__ import annotations

import random
import string
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast, final

import trio

from ..mock import MockServer
from . import metrics
from .cases import Case, Pace
from .client import Address
from .index import Index
from .payloads import Payloads
from .play import CONTROL, Play, Request, play_once
from .records import Leg, Outcome, Record, RecordWriter
from .report import CancelReport, Machine, difference, void
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
    rounds: int = 10
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
        "_error",
        "_own",
        "_plan",
        "_progress",
        "_records",
        "_result_cases",
        "_target",
        "_writer",
    )

    def __init__(self, plan: CancelPlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._records: dict[tuple[Leg, str, Case], list[Record]] = defaultdict(list)
        self._own: OwnWatch | None = None
        self._error: str | None = None
        self._cpu: float | None = None
        self._target = "" if plan.proxy is None else plan.proxy.url

    async def run(self) -> None:
        """Run to the end, or to what ends it: then ``report`` says why. Cancelled, nothing is left running."""
        try:
            await self._run()
        except* TargetError as group:
            self._error = str(_first(group))
        except* OSError as group:
            self._error = f"the system refuses what the tool needs: {_first(group)}"

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
                play = Play(_run_name(), payloads, index, plan.pace, plan.late_after)
                direct = Address(host=_reachable(upstream[0]), port=upstream[1], headers=plan.headers)
                async with self._target_of(upstream) as target:
                    self._target = target.address.url
                    await self._measure(play, direct, target)
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
        async with started(plan.command, (_reachable(upstream[0]), upstream[1]), plan.headers) as target:
            yield target

    async def _measure(self, play: Play, direct: Address, target: Target) -> None:
        cpu = None if target.pid is None else cpu_ns(target.pid)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch_target, target)
            await self._singles(play, {"direct": direct, "proxy": target.address})
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

    # ---- the report

    def report(self, version: str, options: dict[str, object]) -> CancelReport:
        """What has been found so far, judged by nobody yet: requirements are the caller's."""
        records = [record for some in self._records.values() for record in some]
        proxy, direct = metrics.overall(records, "proxy"), metrics.overall(records, "direct")
        own = None if self._own is None else self._own.usage()
        return CancelReport(
            target=self._target,
            machine=Machine(version=version),
            options=options,
            metrics=proxy,
            direct=direct,
            difference=difference(proxy, direct),
            cases=[
                metrics.summarize(case, leg, "single", found)
                for (leg, _, case), found in sorted(self._records.items(), key=_order)
            ],
            proxy_cpu_share=self._cpu,
            own=own,
            error=self._error,
            void=None if own is None else void(own),
        )


def _order(item: tuple[tuple[Leg, str, Case], list[Record]]) -> tuple[bool, str]:
    (leg, load, _), _ = item
    return leg != "proxy", load


async def _watch_target(target: Target) -> None:
    while True:
        target.check()
        await trio.sleep(_CHECK)


def _run_name() -> str:
    return "b" + "".join(random.choices(string.ascii_lowercase + string.digits, k=6))


def _reachable(host: str) -> str:
    """Where a server that listens on ``host`` is reached from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", first))
    return first
