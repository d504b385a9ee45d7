"""Figures over many requests, conditions on them, and what makes a run void."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from trioproxy.bench.mock_record import RequestRecord
from trioproxy.bench.referee import junit, markdown
from trioproxy.bench.referee.capacity import most_at_once
from trioproxy.bench.referee.document import Check, Document, Section, Table
from trioproxy.bench.referee.html import render as render_html
from trioproxy.bench.referee.metrics import CANCEL, Spread, overall, thin
from trioproxy.bench.referee.report import EXIT_BROKEN, EXIT_OK, EXIT_UNMET, exit_status, void
from trioproxy.bench.referee.require import Requirement
from trioproxy.bench.referee.usage import OwnPhase, OwnUsage


def test_percentiles_are_by_nearest_rank_and_of_nothing_there_are_none() -> None:
    assert Spread.of(range(1, 101)) == Spread(100, 50, 90, 99, 100)
    assert Spread.of([7.0]) == Spread(1, 7.0, 7.0, 7.0, 7.0)
    assert Spread.of([]) == Spread(0, None, None, None, None)


def test_thinned_values_have_both_ends() -> None:
    values = [float(number) for number in range(1000)]
    found = thin(values, 5)
    assert (found[0], found[-1], len(found)) == (0.0, 999.0, 5)
    assert thin(values[:5], 5) == values[:5]


def test_a_run_without_records_has_every_figure_and_zeros_for_counts() -> None:
    found = overall([], "proxy")
    assert list(found) == [definition.name for definition in CANCEL]
    counts = ("requests", "aborted", "missed_aborts", "late_aborts", "false_aborts", "failed_requests")
    assert [found[name] for name in counts] == [0] * len(counts)


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("x==0", 0, True),
        ("x == 0", 1, False),
        ("x!=0", 1, True),
        ("x<=1.5", 1.5, True),
        ("x>=2", 1.5, False),
        ("x<2", 1.5, True),
        ("x>1e3", 1000.0, False),
        ("x==0", None, False),
        ("x!=0", None, False),
    ],
)
def test_conditions(text: str, value: float | None, holds: bool) -> None:
    assert Requirement.parse(text, ["x"]).check({"x": value}).holds is holds


@pytest.mark.parametrize("text", ["x", "x=0", "x==", "==0", "y==0", "x==1-2", "x==0; y==0"])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError):
        Requirement.parse(text, ["x"])


def test_exit_statuses() -> None:
    holds, fails = (Requirement.parse("x==0", ["x"]).check({"x": value}) for value in (0, 1))
    assert exit_status(None, None, [holds]) == EXIT_OK
    assert exit_status(None, None, [holds, fails]) == EXIT_UNMET
    assert exit_status("gone", None, [holds]) == exit_status(None, "late", [fails]) == EXIT_BROKEN


def usage(*, late: float = 1.0, cpu: float = 0.2, swapped: int = 0, available: float | None = 0.5) -> OwnUsage:
    spread = Spread.of([late])
    return OwnUsage(
        lateness_ms=Spread.of([1000.0]),  # outside the parts that count
        cpu_share=1.0,
        peak_rss_bytes=1,
        seconds=1.0,
        phases=[OwnPhase(name="a part", lateness_ms=spread, cpu_share=cpu)],
        swapped_bytes=swapped,
        least_available=available,
    )


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (usage(late=26.0), "timers were 26 ms late"),
        (usage(cpu=0.95), "95% of a processor"),
        (usage(swapped=32 << 20), "32 MiB of the tool were swapped out"),
        (usage(available=0.01), "1.0% of the machine's memory"),
    ],
)
def test_what_voids_a_run(own: OwnUsage, why: str) -> None:
    said = void(own)
    assert said is not None
    assert why in said


def test_what_does_not() -> None:
    assert void(usage()) is None
    assert void(usage(available=None)) is None


def test_the_most_at_once_is_counted_by_the_model_servers_times() -> None:
    def record(read: float | None, finished: float | None) -> RequestRecord:
        return RequestRecord(id="x", path="/", seen=0.0, body_read=read, finished=finished)

    records = [record(1.0, 2.0), record(2.0, 3.0), record(2.5, 4.0), record(2.6, None), record(None, None)]
    assert most_at_once(records, 5.0) == 3
    assert most_at_once([], 5.0) == 0


def test_every_form_carries_what_a_proxy_printed_whatever_it_is() -> None:
    nasty = "a\x00b\x1b[31m <script>alert(1)</script> ``` | \ud800"
    document = Document(
        title=nasty,
        verdict=nasty,
        facts=[("command", nasty)],
        sections=[Section(title="s", tables=[Table(header=["h"], rows=[[nasty]])], lines=[nasty], notes=[nasty])],
        checks=[Check(group="g", name="n", error=nasty)],
        error=nasty,
    )
    suite = ElementTree.fromstring(junit.render(document))[0]
    assert suite.get("errors") == "1"
    assert b"<script" not in render_html(document)
    text = markdown.render(document)
    assert "````text\n" in text
    assert "\\<script\\>" in text
