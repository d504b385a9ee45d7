"""Figures over many requests.

Lives here: percentiles, sums, and the table of all figures with unit and definition, from which the docs and the
messages of ``--require`` are made. Does not live here: judging one request (join.py), measuring.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from .cases import Case
from .records import Leg, Load, Outcome, Record


class Definition(NamedTuple):
    """What a figure is."""

    name: str
    unit: str
    text: str


CANCEL: Final = (
    Definition("requests", "requests", "played through the proxy: those whose client left, and the controls"),
    Definition("aborted", "requests", "whose client left at its stage: all but the failed and the controls"),
    Definition(
        "propagation_p50_ms",
        "ms",
        "from the client's call to close to the model server's noticing, one at a"
        " time, median of the aborts that were seen",
    ),
    Definition("propagation_p90_ms", "ms", "the same, 90th percentile"),
    Definition("propagation_p99_ms", "ms", "the same, 99th percentile"),
    Definition("propagation_max_ms", "ms", "the same, the longest"),
    Definition("crowd_propagation_p50_ms", "ms", "the same in the mass disconnects, median"),
    Definition("crowd_propagation_p99_ms", "ms", "the same in the mass disconnects, 99th percentile"),
    Definition("crowd_propagation_max_ms", "ms", "the same in the mass disconnects, the longest"),
    Definition("missed_aborts", "requests", "the model server was not told while it was watched"),
    Definition("late_aborts", "requests", "it was told later than --late"),
    Definition("never_reached", "requests", "that never came to the model server: nothing to abort, nothing wasted"),
    Definition("sent_after_leave", "requests", "that came to the model server only after their client had left"),
    Definition("half_closes_served", "requests", "whose client half-closed and was still served, which TCP allows"),
    Definition("false_aborts", "requests", "whose client stayed and did not get its own whole answer, in order"),
    Definition("failed_requests", "requests", "that did not come to their stage, so that nothing was measured"),
    Definition("cross_delivered_bytes", "bytes", "of tokens that came to another client than the one who asked"),
    Definition("tokens_for_nobody", "tokens", "made after the client left and before the model server was told"),
    Definition("slot_ms_for_nobody", "ms", "a slot was busy from the client's leaving to the model server's noticing"),
    Definition("survivor_ttft_p99_ms", "ms", "to the first token, of new requests within 1 s of a mass disconnect"),
    Definition("survivor_ttft_added_ms", "ms", "its excess over the 99th percentile of the second before that"),
    Definition("survivor_itl_p99_ms", "ms", "between tokens, of streams that go on while many others are aborted"),
    Definition("survivor_itl_added_ms", "ms", "its excess over the 99th percentile of the second before that"),
    Definition("loop_stall_ms", "ms", "the longest answer to a fixed-rate probe within 1 s of a mass disconnect"),
    Definition("lost_probes", "requests", "of that probe, that were not answered or not whole"),
    Definition(
        "served_at_once",
        "requests",
        "of --slots sent at once, with the model server at the same time, after all aborts",
    ),
    Definition("lost_slots", "requests", "by which that is less than it was before the first abort"),
    Definition("drain_idle_ms", "ms", "from SIGTERM to the end of a proxy with nothing in flight"),
    Definition("drain_busy_ms", "ms", "from the end of the last of some streams to that of a proxy draining them"),
    Definition("drain_cut", "requests", "of those streams, cut by the drain although they end within a second"),
    Definition("tasks_alive_0_ms", "tasks", "of ended requests that are alive right after it, at most (library mode)"),
    Definition("tasks_alive_10_ms", "tasks", "the same, 10 ms later"),
    Definition("tasks_alive_100_ms", "tasks", "the same, 100 ms later"),
)
"""All figures of ``trioproxy bench cancel``."""

Metrics = dict[str, float | None]
"""By the names of the definitions; None for what was not measured. Counts are never None: 0."""


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed (nearest rank); None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def thin(ordered: Sequence[float], most: int = 200) -> Sequence[float]:
    """At most so many of the values, evenly by rank, with both ends."""
    if len(ordered) <= most:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (most - 1))] for place in range(most)]


class Spread(msgspec.Struct, frozen=True):
    """How values are spread, in their own unit."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of any number of values."""
        values = list(values)
        return cls(
            len(values),
            percentile(values, 0.5),
            percentile(values, 0.9),
            percentile(values, 0.99),
            max(values, default=None),
        )


class CaseResult(msgspec.Struct, kw_only=True, frozen=True):
    """What one case has shown, on one leg."""

    leg: Leg
    load: Load
    stage: str
    way: str
    upstream: str
    requests: int
    outcomes: dict[str, int]
    """How many of each; those that did not occur are there with 0."""
    propagation_ms: Spread
    samples_ms: list[float]
    """The values behind it; of more than 200 every so many by rank, the least and the greatest included."""
    tokens_for_nobody: int
    slot_ms_for_nobody: float
    why: dict[str, int]
    """What was said about failed and false ones, and how often."""

    @property
    def bad(self) -> int:
        """Requests that a proxy without fault does not have."""
        return sum(self.outcomes[one.value] for one in _BAD)


_BAD: Final = (Outcome.MISSED, Outcome.LATE, Outcome.FALSE_ABORT, Outcome.FAILED)


def summarize(case: Case, leg: Leg, load: Load, records: Sequence[Record]) -> CaseResult:
    """The result of a case, which may have no records."""
    why: dict[str, int] = {}
    for record in records:
        if record.why is not None:
            why[record.why] = why.get(record.why, 0) + 1
    return CaseResult(
        leg=leg,
        load=load,
        stage=case.place,
        way=case.way.value,
        upstream=case.upstream.value,
        requests=len(records),
        outcomes=count_outcomes(records),
        propagation_ms=Spread.of(_propagation(records)),
        samples_ms=[round(value, 3) for value in thin(sorted(_propagation(records)))],
        tokens_for_nobody=sum(record.tokens_for_nobody for record in records),
        slot_ms_for_nobody=sum(record.slot_ms_for_nobody for record in records),
        why=why,
    )


def count_outcomes(records: Iterable[Record]) -> dict[str, int]:
    """How many of each outcome, zeros included."""
    counts = {outcome.value: 0 for outcome in Outcome}
    for record in records:
        counts[record.outcome.value] += 1
    return counts


def _propagation(records: Iterable[Record]) -> list[float]:
    return [record.propagation_ms for record in records if record.propagation_ms is not None]


def overall(records: Sequence[Record], leg: Leg) -> Metrics:
    """The figures of a leg that come from its records. All names are there; others fill in what is None."""
    of_leg = [record for record in records if record.leg == leg]
    counts = count_outcomes(of_leg)
    spread = Spread.of(_propagation(record for record in of_leg if record.load == "single"))
    crowd = Spread.of(_propagation(record for record in of_leg if record.load == "crowd"))
    controls = counts[Outcome.WHOLE.value] + counts[Outcome.FALSE_ABORT.value]
    metrics: Metrics = {definition.name: None for definition in CANCEL}
    metrics |= {
        "requests": len(of_leg),
        "aborted": len(of_leg) - controls - counts[Outcome.FAILED.value],
        "propagation_p50_ms": spread.p50,
        "propagation_p90_ms": spread.p90,
        "propagation_p99_ms": spread.p99,
        "propagation_max_ms": spread.max,
        "crowd_propagation_p50_ms": crowd.p50,
        "crowd_propagation_p99_ms": crowd.p99,
        "crowd_propagation_max_ms": crowd.max,
        "missed_aborts": counts[Outcome.MISSED.value],
        "late_aborts": counts[Outcome.LATE.value],
        "never_reached": counts[Outcome.NEVER_REACHED.value],
        "sent_after_leave": sum(record.sent_after_leave for record in of_leg),
        "half_closes_served": counts[Outcome.KEPT.value] + counts[Outcome.SERVED.value],
        "false_aborts": counts[Outcome.FALSE_ABORT.value],
        "failed_requests": counts[Outcome.FAILED.value],
        "cross_delivered_bytes": sum(record.cross_delivered_bytes for record in of_leg),
        "tokens_for_nobody": sum(record.tokens_for_nobody for record in of_leg),
        "slot_ms_for_nobody": sum(record.slot_ms_for_nobody for record in of_leg),
    }
    return metrics
