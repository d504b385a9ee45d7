"""The judgement over one request: every outcome, from plain facts of both sides."""

from __future__ import annotations

import pytest

from trioproxy.bench.mock_record import RequestRecord
from trioproxy.bench.referee.join import ClientFacts, Verdict, judge
from trioproxy.bench.referee.records import Outcome

LEFT = 10.0


def server(
    seen: float = 9.0, *, abandoned: float | None = None, finished: float | None = None, tokens: int = 0, after: int = 0
) -> RequestRecord:
    return RequestRecord(
        id="x", path="/", seen=seen, abandoned=abandoned, finished=finished, tokens=tokens, tokens_after_abandon=after
    )


def verdict(client: ClientFacts, *records: RequestRecord, tokens_at_leave: int = 0) -> Verdict:
    return judge(client, records, tokens_at_leave=tokens_at_leave, until=12.0, late_after=0.25)


GONE = ClientFacts(left=LEFT)
HALF = ClientFacts(left=LEFT, may_be_served=True)
STAYED = ClientFacts(left=None, complete=True)


@pytest.mark.parametrize(
    ("client", "records", "outcome"),
    [
        (GONE, [server(abandoned=10.1)], Outcome.SEEN),
        (GONE, [server(abandoned=10.3)], Outcome.LATE),
        (GONE, [server()], Outcome.MISSED),
        (GONE, [server(finished=11.0)], Outcome.MISSED),
        (GONE, [server(finished=9.9)], Outcome.COMPLETED),
        (GONE, [server(finished=10.0005)], Outcome.COMPLETED),
        (GONE, [], Outcome.NEVER_REACHED),
        (GONE, [server(abandoned=9.5), server()], Outcome.MISSED),
        (GONE, [server(finished=9.5), server(abandoned=10.01)], Outcome.SEEN),
        (HALF, [server()], Outcome.KEPT),
        (HALF, [server(abandoned=10.01)], Outcome.SEEN),
        (ClientFacts(left=LEFT, may_be_served=True, complete=True), [server(finished=11.0)], Outcome.SERVED),
        (ClientFacts(left=LEFT, may_be_served=True, cut="closed"), [server()], Outcome.MISSED),
        (STAYED, [server(finished=9.9)], Outcome.WHOLE),
        (STAYED, [server(abandoned=9.9)], Outcome.FALSE_ABORT),
        (ClientFacts(left=None, cut="reset"), [server()], Outcome.FALSE_ABORT),
        (ClientFacts(left=None, complete=True, cross_delivered=3), [server(finished=9.9)], Outcome.FALSE_ABORT),
        (ClientFacts(left=None, complete=True, disordered=1), [server(finished=9.9)], Outcome.FALSE_ABORT),
        (ClientFacts(left=None, failed="refused"), [], Outcome.FAILED),
    ],
)
def test_outcomes(client: ClientFacts, records: list[RequestRecord], outcome: Outcome) -> None:
    assert verdict(client, *records).outcome is outcome


def test_what_was_wasted_ends_when_the_model_server_is_told() -> None:
    told = verdict(GONE, server(abandoned=10.1, tokens=9, after=2), tokens_at_leave=4)
    assert told.waste.tokens == 3
    assert told.waste.slot_ms == pytest.approx(100)
    assert told.propagation_ms == pytest.approx(100)
    missed = verdict(GONE, server(tokens=9), tokens_at_leave=4)
    assert missed.waste.tokens == 5
    assert missed.waste.slot_ms == pytest.approx(2000)
    assert missed.propagation_ms is None


def test_a_model_server_may_see_a_reset_before_the_clients_call_returns() -> None:
    assert verdict(GONE, server(abandoned=9.9999)).propagation_ms == 0.0
