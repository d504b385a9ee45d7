"""What ``bench cancel --engine-metrics`` has found: its figures and its report.

Lives here: shapes, definitions and sums. Names are stable. Does not live here: how they are shown
(engine_document.py), or how a group is judged (engine_judge.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from .cases import Case, Stage, Way
from .engine_judge import EngineOutcome, GroupVerdict
from .engine_records import EngineRecord
from .metrics import Definition, Metrics, Spread
from .records import Leg
from .report import Report

ENGINE: Final = (
    Definition("requests", "requests", "played through the gateway: those whose client left, and the controls"),
    Definition("aborted", "requests", "whose client left at its stage"),
    Definition("missed_aborts", "requests", "the engine was still at it when the watch ended, or ended it for nobody"),
    Definition("never_started", "requests", "the engine was not seen to work on any of its group: nothing to free"),
    Definition("half_closes_served", "requests", "whose client half-closed and was still served, which TCP allows"),
    Definition("false_aborts", "requests", "whose client stayed and did not get its whole answer"),
    Definition("failed_requests", "requests", "that did not come to their stage, so that nothing was measured"),
    Definition("freed_p50_ms", "ms", "from a group's leaving to the gauges' fall, as told by the engine; median"),
    Definition("freed_max_ms", "ms", "the same, the longest"),
    Definition("tokens_for_nobody", "tokens", "generated after the clients had left, as the engine counts them"),
    Definition("engine_seconds_for_nobody", "s", "the integral of running requests above the level before"),
    Definition("refreshed_gauges", "groups", "whose gauges fell only with a request of ours that made the engine step"),
    Definition("resolution_ms", "ms", "from asking for one page to having the next, 99th percentile"),
)
"""All figures of ``trioproxy bench cancel --engine-metrics``."""


class EngineCase(msgspec.Struct, kw_only=True, frozen=True):
    """What one group has shown, on one leg; or all clients of a leg that stayed."""

    leg: Leg
    stage: str
    way: str
    requests: int
    outcomes: dict[str, int]
    """How many of each; those that did not occur are there with 0."""
    freed_ms: float | None = None
    """See ``GroupVerdict``, here and below."""
    worked_ms: float | None = None
    tokens_for_nobody: int = 0
    engine_seconds_for_nobody: float = 0.0
    refreshed: bool = False
    passed: dict[str, int] = {}
    why: dict[str, int] = {}
    running: list[tuple[float, float]] = []
    """What the engine told: ms since the leaving, and running requests."""

    @property
    def bad(self) -> int:
        """Requests that a gateway without fault does not have."""
        return sum(self.outcomes[one.value] for one in _BAD)


_BAD: Final = (EngineOutcome.MISSED, EngineOutcome.FALSE_ABORT, EngineOutcome.FAILED)


class EngineFacts(msgspec.Struct, kw_only=True, frozen=True):
    """The engine, and how closely it was watched."""

    name: str
    metrics_url: str
    direct_url: str | None
    """Of its API, for the direct leg; null if there is none."""
    model: str
    update: str
    """When it brings its gauges up to date."""
    pages: int
    fetch_ms: Spread
    resolution_ms: Spread
    """From asking for one page to having the next: within this a change was, and by as much a time may be too long."""
    ttft_ms: Spread
    """Of clients that stayed, through the gateway."""
    shared: bool


class EngineReport(Report, kw_only=True):
    """Everything that ``trioproxy bench cancel --engine-metrics`` has found."""

    kind: str = "engine"
    engine: EngineFacts | None = None
    """Null if it was not there."""
    cases: list[EngineCase]
    notes: list[str] = msgspec.field(default_factory=list[str])
    """What was left out, and why."""


def count(outcomes: Iterable[EngineOutcome]) -> dict[str, int]:
    """How many of each outcome, zeros included."""
    counts = {outcome.value: 0 for outcome in EngineOutcome}
    for outcome in outcomes:
        counts[outcome.value] += 1
    return counts


def tally(texts: Iterable[str | None]) -> dict[str, int]:
    """How often each text was said."""
    counts: dict[str, int] = {}
    for text in texts:
        if text is not None:
            counts[text] = counts.get(text, 0) + 1
    return counts


def controls(leg: Leg, records: Sequence[EngineRecord]) -> EngineCase:
    """The clients of a leg that stayed."""
    return EngineCase(
        leg=leg,
        stage=Stage.NONE.value,
        way=Way.STAY.value,
        requests=len(records),
        outcomes=count(record.outcome for record in records),
        why=tally(record.why for record in records),
    )


def outcomes(verdict: GroupVerdict | None, left: int) -> list[EngineOutcome]:
    """The outcomes of the requests of a group that left, in no order: an engine names none."""
    if verdict is None:
        return []
    gone = min(left, verdict.missed + verdict.served + verdict.kept)
    told = [EngineOutcome.SERVED] * verdict.served + [EngineOutcome.KEPT] * verdict.kept
    told += [EngineOutcome.MISSED] * (gone - len(told))
    rest = EngineOutcome.FREED if verdict.started else EngineOutcome.NEVER_STARTED
    return told + [rest] * (left - len(told))


def overall(cases: Sequence[EngineCase], leg: Leg, resolution: Spread) -> Metrics:
    """The figures of a leg."""
    of_leg = [case for case in cases if case.leg == leg]

    def total(*some: EngineOutcome) -> int:
        return sum(case.outcomes[one.value] for case in of_leg for one in some)

    left = [case for case in of_leg if case.way != Way.STAY.value]
    freed = Spread.of(case.freed_ms for case in left if case.freed_ms is not None and case.outcomes["freed"])
    requests = sum(case.requests for case in of_leg)
    stayed = sum(case.requests for case in of_leg if case.way == Way.STAY.value)
    return {
        "requests": requests,
        "aborted": requests - stayed - total(EngineOutcome.FAILED),
        "missed_aborts": total(EngineOutcome.MISSED),
        "never_started": total(EngineOutcome.NEVER_STARTED),
        "half_closes_served": total(EngineOutcome.KEPT, EngineOutcome.SERVED),
        "false_aborts": total(EngineOutcome.FALSE_ABORT),
        "failed_requests": total(EngineOutcome.FAILED),
        "freed_p50_ms": freed.p50,
        "freed_max_ms": freed.max,
        "tokens_for_nobody": sum(case.tokens_for_nobody for case in left),
        "engine_seconds_for_nobody": sum(case.engine_seconds_for_nobody for case in left),
        "refreshed_gauges": sum(case.refreshed for case in left),
        "resolution_ms": resolution.p99,
    }


def summarize(
    case: Case,
    leg: Leg,
    records: Sequence[EngineRecord],
    verdict: GroupVerdict | None,
    running: list[tuple[float, float]],
) -> EngineCase:
    """The result of a group; without a verdict nobody left."""
    failed = [record for record in records if record.outcome is EngineOutcome.FAILED]
    told = outcomes(verdict, len(records) - len(failed)) + [EngineOutcome.FAILED] * len(failed)
    return EngineCase(
        leg=leg,
        stage=case.place,
        way=case.way.value,
        requests=len(records),
        outcomes=count(told),
        freed_ms=None if verdict is None or not verdict.started else verdict.freed_ms,
        worked_ms=None if verdict is None else verdict.worked_ms,
        tokens_for_nobody=0 if verdict is None else verdict.tokens,
        engine_seconds_for_nobody=0.0 if verdict is None else verdict.engine_seconds,
        refreshed=verdict is not None and verdict.refreshed,
        passed=tally(record.passed for record in records),
        why=tally(record.why for record in records),
        running=running,
    )
