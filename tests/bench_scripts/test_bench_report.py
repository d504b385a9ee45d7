"""Tables, ratios, checks and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import cost
from bench.event_leg import EventCost
from bench.report import Check, Rounds, status, table, verdict, write_json
from bench.request_leg import RequestCost


def costs(*us: float, late: int = 0) -> cost.Costs:
    events = [EventCost(one, 3000, 0.1, 0.2, 1000, late) for one in us]
    requests = [RequestCost(one, 10_000, 1000) for one in us]
    return cost.Costs(requests, requests, events, events)


def test_rounds() -> None:
    assert Rounds.of([3, 1, 2]) == Rounds(2, 1, 3)
    assert str(Rounds(2, 1, 3)) == "2.0 (1.0–3.0)"


def test_a_table_is_aligned() -> None:
    assert table(["a", "bb"], [["long", "1"]]) == "a     bb\n--------\nlong   1"


def test_ratios_are_those_of_neighbouring_rounds() -> None:
    seen = {"trioproxy": costs(40, 80, 60), "haproxy": costs(20, 40, 10)}
    assert cost.ratios(seen, "trioproxy")["event"] == Rounds(2, 2, 6)


@pytest.mark.parametrize(("require", "expected"), [(None, 0), (2.0, 0), (1.9, 1)])
def test_a_required_ratio_decides(require: float | None, expected: int) -> None:
    seen = {"trioproxy": costs(40), "haproxy": costs(20), cost.DIRECT: costs(0)}
    assert status(cost.check(seen, require), required=require is not None) == expected


def test_a_failed_check_is_told_and_counts_if_it_is_required() -> None:
    checks = [Check("one", True), Check("two", False)]
    assert verdict(checks) == "holds  one\nFAILS  two"
    assert [status(checks, required=required) for required in (False, True)] == [0, 1]


def test_merged_events_fail() -> None:
    assert [
        check.holds for check in cost.check({"haproxy": costs(20, late=10), "trioproxy": costs(20, late=11)}, None)
    ] == [
        True,
        False,
    ]


def test_the_table_shows_every_load_and_proxy() -> None:
    seen = {"trioproxy": costs(40), "haproxy": costs(20), cost.DIRECT: costs(0)}
    text = cost.render(seen)
    assert len(text.splitlines()) == 2 + 12
    assert "2.00 (2.00–2.00)" in text


def test_json(tmp_path: Path) -> None:
    write_json(tmp_path / "out", cost.as_json({"haproxy": costs(20)}), [Check("it is", True)])
    document = json.loads((tmp_path / "out").read_text())
    assert document["results"]["haproxy"]["requests"][0]["us_per_request"] == 20
    assert document["checks"] == [{"what": "it is", "holds": True}]
