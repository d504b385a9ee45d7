"""Rounds of requests, and memory after each: what a proxy loses with every request.

Lives here: playing many requests of one kind. Does not live here: the line through the rounds (memory_metrics.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import trio

from .cases import Case, Stage, Way
from .memory_lab import SHORT, Lab, failed, failures
from .memory_metrics import LeakResult
from .play import CONTROL, Request, play_once
from .records import Outcome, Record

WARM_UP: Final = 2
"""Rounds of which nothing is kept: a heap grows until it has what its load needs."""
_AT_ONCE: Final = 50
_LEAVING: Final = tuple(
    Case(stage, way) for way in (Way.RST, Way.FIN) for stage in (Stage.BEFORE_HEAD, Stage.STALL, Stage.MID_STREAM)
)
"""How clients leave, by turns."""
_HOLD: Final = 0.3
"""Seconds that the model server waits, so that a client can leave meanwhile, and that a proxy which does not tell it
keeps it busy beyond that: such requests are over, too, when memory is read."""

Kind = Literal["completed", "cancelled"]


class Rounds(NamedTuple):
    """How much is played."""

    rounds: int
    each: int
    """Requests of a round."""
    size: int
    """Bytes of each body."""


async def leak(lab: Lab, kind: Kind, plan: Rounds) -> LeakResult:
    """Play the rounds. Cancelled, every connection is closed.

    :raises TargetError: the proxy ends.
    """
    levels: list[tuple[int, int]] = []
    records: list[Record] = []
    for number in range(1 - WARM_UP, plan.rounds + 1):
        lab.phase(f"{kind} requests")
        found = await _round(lab, kind, plan)
        lab.phase(f"after {kind} requests")
        held = await lab.level()
        records += found
        if number > 0:
            levels.append((number * plan.each, held))
    return LeakResult(
        kind=kind,
        process=lab.number,
        failed=sum(map(failed, records)),
        why=failures(records),
        missed=sum(record.outcome is Outcome.MISSED for record in records),
        rounds=levels,
    )


async def _round(lab: Lab, kind: Kind, plan: Rounds) -> Sequence[Record]:
    records: list[Record] = []
    requests = (_request(lab, kind, number, plan.size) for number in range(plan.each))
    async with trio.open_nursery() as nursery:
        for _ in range(_AT_ONCE):
            nursery.start_soon(_play_all, lab, requests, records)
    return records


async def _play_all(lab: Lab, requests: Iterator[Request], records: list[Record]) -> None:
    for request in requests:
        left = trio.Event()
        with lab.counted():
            record = await play_once(request, left.set)
        lab.note([record])
        records.append(record)


def _request(lab: Lab, kind: Kind, number: int, size: int) -> Request:
    if kind == "completed":
        return lab.request(CONTROL, size, SHORT)
    case = next(itertools.islice(itertools.cycle(_LEAVING), number % len(_LEAVING), None))
    more: dict[str, object] = {"tokens": 15}
    if case.stage is Stage.BEFORE_HEAD:
        more |= {"prefill": _HOLD, "tokens": 2}
    elif case.stage is Stage.STALL:
        more |= {"stall": _HOLD, "tokens": 2}
    return lab.request(case, size, more)
