"""What became of a group of requests whose clients left, from what the engine tells.

Lives here: the judgement, synchronous and on plain values. An engine's metrics name no request, so a group is judged
as one: how many of it are still there, how many came to their end for nobody. Definitions: docs/bench-engines.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, final

from .engine_metrics import Sample

_MOSTLY: Final = 0.9
"""Of the tokens that a request had left: with these it counts as having come to its end."""


@final
class EngineOutcome(enum.Enum):
    """What became of one request."""

    FREED = "freed"
    """The engine gave up its work before it had come to its end."""
    MISSED = "missed"
    """The engine was still at it when the watch ended, or brought it to its end, for nobody."""
    UNCLEAR = "unclear"
    """One of a group of which a part was missed: the engine does not tell which."""
    NEVER_STARTED = "never-started"
    """The engine was never seen to work on any of its group: there was nothing to free."""
    KEPT = "kept"
    """After a half-close the gateway goes on serving, which TCP allows."""
    SERVED = "served"
    """After a half-close the client got its whole answer."""
    WHOLE = "whole"
    """A client that stayed got its whole answer."""
    FALSE_ABORT = "false-abort"
    """A client that stayed did not."""
    FAILED = "failed"
    """It did not come to its stage, so nothing was measured."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What an engine has to do for others: nothing, unless it is shared."""

    running: float = 0.0
    busy: float = 0.0
    tokens_per_second: float = 0.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group of requests that left, and the engine around it.

    :param count: of those that left.
    :param asked: tokens that each asks for.
    :param seen: tokens that their clients had received, all together.
    :param began: the sample before the first of them was sent.
    :param leaving: the last sample before they left.
    :param after: the samples since then, in order.
    :param live: see ``Engine.live``.
    :param refreshed: when requests of our own, of one token each, made the engine bring its metrics up to date.
    :param served: clients that half-closed and got their whole answer.
    :param connected: clients that half-closed and are still connected.
    """

    count: int
    asked: int
    seen: int
    level: Level
    began: Sample
    leaving: Sample
    left: float
    after: Sequence[Sample]
    live: bool
    refreshed: Sequence[float] = ()
    served: int = 0
    connected: int = 0


class GroupVerdict(NamedTuple):
    """The judgement over a group."""

    missed: int
    served: int
    kept: int
    started: bool
    freed_ms: float | None
    """From the last leaving to the arrival of the first page whose gauges were down to stay so, and after which no
    work was told; None if there was none."""
    worked_ms: float | None
    """From the last leaving to the arrival of the last page that told of more work than the one before."""
    tokens: int
    engine_seconds: float
    refreshed: bool


def judge(facts: GroupFacts) -> GroupVerdict:
    """What became of a group."""
    last = facts.after[-1] if facts.after else facts.leaving
    own = len(facts.refreshed)
    tokens = _tokens(facts, last)
    still = min(facts.count, max(0, math.ceil(last.busy - facts.level.busy)))
    ended = _ended(facts, last, tokens)
    gone_on = min(facts.count, still + ended)
    served = min(facts.served, facts.count)
    kept = min(facts.connected, max(0, gone_on - served))
    missed = max(0, gone_on - served - kept)
    wasted = missed > 0 or not (served or kept)
    worked = _worked(facts)
    moved = any(sample.work != facts.began.work for sample in [facts.leaving, *facts.after])
    return GroupVerdict(
        missed=missed,
        served=served,
        kept=kept,
        started=moved or any(sample.busy > facts.level.busy for sample in [facts.leaving, *facts.after]),
        freed_ms=None if still else _freed(facts, worked),
        worked_ms=None if worked is None else max(0.0, worked - facts.left) * 1000,
        tokens=tokens if wasted else 0,
        engine_seconds=_engine_seconds(facts, worked) if wasted else 0.0,
        refreshed=own > 0,
    )


def _tokens(facts: GroupFacts, last: Sample) -> int:
    """Made after the group left, as far as the engine has counted them."""
    own = len(facts.refreshed)
    since = facts.leaving if facts.live else facts.began
    others = facts.level.tokens_per_second * (last.at - since.at)
    # What is counted when a request ends is counted all at once, with what its client has received.
    received = 0 if facts.live else facts.seen
    return max(0, round(last.tokens - since.tokens - own - others - received))


def _ended(facts: GroupFacts, last: Sample, tokens: int) -> int:
    """How many came to their end after the group had left."""
    shared = facts.level.busy > 0 or facts.level.tokens_per_second > 0
    if last.finished is not None and facts.leaving.finished is not None and not shared:
        return max(0, round(last.finished - facts.leaving.finished) - len(facts.refreshed))
    left_to_make = facts.asked - facts.seen / max(facts.count, 1)
    return math.floor(tokens / (_MOSTLY * max(left_to_make, 1.0)))


def _freed(facts: GroupFacts, worked: float | None) -> float | None:
    """From the last leaving to the first page from which on the gauges were down and no work was told."""
    down: float | None = None
    for sample in facts.after:
        if sample.busy > facts.level.busy:
            down = None
        elif down is None:
            down = sample.at
    if down is None:
        return None
    # A gauge that has not risen yet, in a prefill that is one step, is no gauge that has fallen.
    return max(0.0, max(down, worked or down) - facts.left) * 1000


def _worked(facts: GroupFacts) -> float | None:
    """When the last page that told of work arrived, but for the work that was asked for to refresh the page."""
    until = min(facts.refreshed, default=math.inf)
    found: float | None = None
    for before, after in pairwise([facts.leaving, *facts.after]):
        if after.at > until:
            break
        if after.work != before.work:
            found = after.at
    return found


def _engine_seconds(facts: GroupFacts, worked: float | None) -> float:
    """The integral of what was running above the level, from the leaving on; each value holds until the next."""
    stale_from = math.inf
    if facts.refreshed and facts.after and facts.after[-1].busy <= facts.level.busy:
        # The gauge stood still though nothing was done any more.
        stale_from = facts.left if worked is None else worked
    total = 0.0
    for before, after in pairwise([facts.leaving, *facts.after]):
        start, end = max(before.at, facts.left), min(after.at, stale_from)
        above = min(max(0.0, before.running - facts.level.running), facts.count)
        total += above * max(0.0, end - start)
    return total
