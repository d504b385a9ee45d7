"""The facts of one request to a real engine, as they are written.

Lives here: the record and how it is made. Does not live here: the judgement over its group (engine_judge.py).
"""

from __future__ import annotations

import msgspec

from .cases import Stage, Way
from .engine_judge import EngineOutcome, GroupVerdict
from .engine_play import EngineRequest
from .records import Leg


class EngineRecord(msgspec.Struct, kw_only=True):
    """One request. Times are seconds of the system's monotonic clock, null for what did not happen."""

    id: str
    group: int
    """Those of one group were played together, and are judged together."""
    leg: Leg
    stage: Stage
    way: Way
    fraction: float
    payload_bytes: int
    payload_sha256: str
    payload: str | None = None
    outcome: EngineOutcome
    why: str | None = None
    passed: str | None = None
    """What its client had got already that it should not have at its stage."""
    status: int | None = None
    tokens: int = 0
    """Events with data that its client received."""
    received_bytes: int = 0
    received: str | None = None
    complete: bool = False
    started: float | None = None
    sent: float | None = None
    left: float | None = None
    ended: float | None = None
    ttft_ms: float | None = None


def outcome_of(request: EngineRequest, verdict: GroupVerdict | None, gone: int) -> EngineOutcome:
    """What became of a request of a group of which ``gone`` left."""
    if request.left is None or verdict is None:
        return EngineOutcome.FAILED
    if verdict.served and request.response.complete:
        return EngineOutcome.SERVED
    if verdict.kept and request.case.way is Way.HALF_CLOSE and not request.over:
        return EngineOutcome.KEPT
    if verdict.missed:
        return EngineOutcome.MISSED if verdict.missed == gone else EngineOutcome.UNCLEAR
    return EngineOutcome.FREED if verdict.started else EngineOutcome.NEVER_STARTED


def record_of(request: EngineRequest, group: int, leg: Leg, outcome: EngineOutcome, why: str | None) -> EngineRecord:
    """The facts of a request that is over."""
    response, times = request.response, None if request.client is None else request.client.times
    first_token = response.first_token
    return EngineRecord(
        id=request.id,
        group=group,
        leg=leg,
        stage=request.case.stage,
        way=request.case.way,
        fraction=request.case.fraction,
        payload_bytes=request.payload.length,
        payload_sha256=request.payload.sha256,
        payload=request.kept,
        outcome=outcome,
        why=why,
        passed=request.passed,
        status=response.status,
        tokens=response.tokens,
        received_bytes=response.body_bytes,
        received=bytes(response.kept).decode(errors="replace") or None,
        complete=response.complete,
        started=None if times is None else times.started,
        sent=None if times is None else times.sent,
        left=None if times is None else times.left,
        ended=None if times is None else times.ended,
        ttft_ms=None if times is None or first_token is None else (first_token - times.started) * 1000,
    )
