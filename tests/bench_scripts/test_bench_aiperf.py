"""AIPerf's records against the mock's: read as AIPerf writes them, and each disagreement caught by the check for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.aiperf_records import RECORDS, SUMMARY, End, Joined, Outcome, read_records, read_summary
from trioproxy.bench.mock import RequestRecord

COMPLETED = End(Outcome.COMPLETED, 50)
CANCELLED = End(Outcome.CANCELLED, 0)


def client_line(name: str, *, cancelled: bool) -> dict[str, object]:
    """A record as AIPerf 0.13 writes it, without most of its metrics and times."""
    metadata = {"session_num": 5, "x_request_id": name, "was_cancelled": cancelled, "benchmark_phase": "profiling"}
    if cancelled:
        error = {
            "code": 499,
            "type": "RequestCancellationError",
            "message": "Request cancelled 0.300s after sent",
        }
        return {"metadata": metadata, "metrics": {"error_isl": {"value": 100, "unit": "tokens"}}, "error": error}
    metrics = {"output_sequence_length": {"value": 50, "unit": "tokens"}, "inter_chunk_latency": {"value": [8.1, 19.7]}}
    return {"metadata": metadata, "metrics": metrics}


def total(value: float) -> dict[str, object]:
    return {"unit": "requests", "avg": value}


def write(directory: Path, lines: list[dict[str, object]], summary: dict[str, object] | None) -> None:
    (directory / RECORDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary is not None:
        (directory / SUMMARY).write_text(json.dumps(summary))


def seen(name: str, *, left: bool = False, tokens: int = 50) -> RequestRecord:
    """A record of the mock's."""
    record = RequestRecord(id=name, path="/v1/chat/completions", seen=1.0, status=200, tokens=tokens)
    record.abandoned, record.finished = (2.0, None) if left else (None, 2.0)
    return record


def failing(
    sent: list[tuple[str, End]], records: list[RequestRecord], *, requests: int = 2, at_once: bool = False
) -> list[str]:
    checks = Joined(sent, records).checks(requests, None, at_once=at_once)[:-1]  # the last is the summary's
    return [check.what for check in checks if not check.holds]


def test_reads_what_aiperf_writes_and_agrees(tmp_path: Path) -> None:
    lines = [client_line("a", cancelled=False), client_line("b", cancelled=True)]
    write(tmp_path, lines, {"request_count": total(1), "error_request_count": total(1), "total_osl": total(50)})
    joined = Joined(read_records(tmp_path), [seen("a"), seen("b", left=True, tokens=15)])
    checks = joined.checks(2, read_summary(tmp_path), at_once=False)
    assert all(check.holds for check in checks)
    rows = {name: (ours, theirs) for name, ours, theirs in joined.rows()}
    assert rows["completed"] == rows["cancelled"] == ("1", "1")
    assert rows["tokens of completed answers"] == ("50", "50")
    assert rows["tokens of cancelled answers"] == ("–", "15")


def test_a_summary_that_tells_something_else_does_not_hold(tmp_path: Path) -> None:
    write(tmp_path, [client_line("a", cancelled=False)], {"request_count": total(2), "total_osl": total(50)})
    checks = Joined(read_records(tmp_path), [seen("a")]).checks(1, read_summary(tmp_path), at_once=False)
    assert [check.what for check in checks if not check.holds] == ["AIPerf's summary has the totals of its records"]


def test_no_summary_is_right_only_if_nothing_was_completed(tmp_path: Path) -> None:
    write(tmp_path, [client_line("b", cancelled=True)], None)
    assert read_summary(tmp_path) is None
    assert Joined([("b", CANCELLED)], [seen("b", left=True)]).checks(1, None, at_once=False)[-1].holds
    assert not Joined([("a", COMPLETED)], [seen("a")]).checks(1, None, at_once=False)[-1].holds


@pytest.mark.parametrize(
    ("records", "check"),
    [
        ([seen("a"), seen("b")], "both sides tell the same end of every request"),  # the abort was not passed on
        ([seen("a", left=True), seen("b", left=True)], "both sides tell the same end of every request"),  # a false one
        ([seen("a")], "both sides tell the same end of every request"),  # the mock never saw it
        ([seen("a"), seen("b", left=True), seen("b", left=True)], "no request came to the mock twice"),  # sent again
        ([seen("a"), seen("b", left=True), seen("c")], "nothing came to the mock but AIPerf's requests"),
        ([seen("a", tokens=51), seen("b", left=True)], "both sides count the same tokens in each completed answer"),
    ],
)
def test_a_disagreement_is_caught(records: list[RequestRecord], check: str) -> None:
    assert failing([("a", COMPLETED), ("b", CANCELLED)], records) == [check]


def test_a_request_still_in_flight_is_no_agreement() -> None:
    record = seen("b")
    record.finished = None
    assert failing([("a", COMPLETED), ("b", CANCELLED)], [seen("a"), record]) == [
        "both sides tell the same end of every request"
    ]


def test_tokens_made_for_nobody_are_caught() -> None:
    record = seen("b", left=True)
    record.tokens_after_abandon = 1
    assert failing([("a", COMPLETED), ("b", CANCELLED)], [seen("a"), record]) == [
        "no token was made after the mock had seen its client leave"
    ]


def test_a_request_cancelled_at_once_need_not_arrive() -> None:
    assert failing([("a", COMPLETED), ("b", CANCELLED)], [seen("a")], at_once=True) == []
    assert failing([("a", COMPLETED), ("b", COMPLETED)], [seen("a")], at_once=True) != []


def test_missing_records_are_caught() -> None:
    assert failing([("a", COMPLETED)], [seen("a")]) == ["AIPerf has records of 2 requests"]
