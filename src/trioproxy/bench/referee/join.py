"""Both sides of one request, joined to an outcome.

Lives here: the judgement, synchronous and on plain values, so that each rule can be tested by itself. The definitions
stand in docs/bench.md; the words are those of ``Outcome``. Does not live here: figures over many requests (metrics.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from ..mock_record import RequestRecord
from .records import Outcome

IN_FLIGHT: Final = 0.001
"""Seconds after the client's leaving within which a model server that finishes was done already: nobody could have
told it in time."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """What the client knows of its request.

    :param may_be_served: whether a proxy may go on serving it: it has only shut down its sending side, and that after
        it had sent its whole request.
    :param failed: why it did not come to its stage.
    :param cut: why its answer is not whole although it stayed, or why its connection ended after a half-close.
    """

    left: float | None
    may_be_served: bool = False
    complete: bool = False
    failed: str | None = None
    cut: str | None = None
    cross_delivered: int = 0
    disordered: int = 0


class Waste(NamedTuple):
    """What a model server did for one request after its client had left."""

    tokens: int
    slot_ms: float


class Verdict(NamedTuple):
    """The judgement over one request."""

    outcome: Outcome
    propagation_ms: float | None = None
    waste: Waste = Waste(0, 0.0)
    why: str | None = None


def judge(
    client: ClientFacts,
    server: Sequence[RequestRecord],
    *,
    tokens_at_leave: int,
    until: float,
    late_after: float,
) -> Verdict:
    """What became of a request.

    :param server: the model server's records of it: several, if the proxy has tried again.
    :param tokens_at_leave: made by the model server, over all records, when the client left.
    :param until: when watching ended.
    :param late_after: seconds from which on a propagated abort is late.
    """
    if client.failed is not None:
        return Verdict(Outcome.FAILED, why=client.failed)
    if client.left is None:
        return _stayed(client, server)
    if not server:
        return Verdict(Outcome.NEVER_REACHED)
    left = client.left
    waste = _waste(server, left, tokens_at_leave, until)
    if all(_was_done(record, left) for record in server):
        return Verdict(Outcome.COMPLETED)
    if all(_told(record) or _was_done(record, left) for record in server):
        told = [record.abandoned for record in server if record.abandoned is not None]
        after = max(told) - left
        outcome = Outcome.SEEN if after <= late_after else Outcome.LATE
        # The model server can see a disconnect first: a reset that the kernel delivered before our call returned.
        return Verdict(outcome, max(0.0, after) * 1000, waste)
    if client.may_be_served:
        if client.complete:
            return Verdict(Outcome.SERVED)
        if client.cut is None:
            return Verdict(Outcome.KEPT)
    return Verdict(Outcome.MISSED, None, waste)


def _stayed(client: ClientFacts, server: Sequence[RequestRecord]) -> Verdict:
    why: str | None = None
    if client.cut is not None:
        why = client.cut
    elif any(record.abandoned is not None for record in server[-1:]):
        why = "the model server saw a disconnect"
    elif client.cross_delivered:
        why = f"{client.cross_delivered} bytes are another request's"
    elif client.disordered:
        why = f"{client.disordered} tokens are lost, doubled or out of order"
    return Verdict(Outcome.WHOLE if why is None else Outcome.FALSE_ABORT, why=why)


def _told(record: RequestRecord) -> bool:
    return record.abandoned is not None


def _was_done(record: RequestRecord, left: float) -> bool:
    return record.finished is not None and record.finished <= left + IN_FLIGHT


def _ends(record: RequestRecord) -> float:
    """When the proxy's part in what was wasted ended: at the disconnect, if the model server saw one."""
    if record.abandoned is not None:
        return record.abandoned
    return float("inf") if record.finished is None else record.finished


def _waste(server: Sequence[RequestRecord], left: float, tokens_at_leave: int, until: float) -> Waste:
    # What a model server does after it was told is its own fault, and not counted here.
    made = sum(record.tokens - record.tokens_after_abandon for record in server)
    busy = sum(max(0.0, min(_ends(record), until) - max(left, record.seen)) for record in server)
    return Waste(max(0, made - tokens_at_leave), busy * 1000)
