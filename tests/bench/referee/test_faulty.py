"""Each faulty proxy is caught by the figure that is meant for its fault, and by no other; a correct one by none.

On real sockets, with short plans. The figure for a retained body is ``bench memory``'s.
"""

from __future__ import annotations

from functools import partial

import pytest
import trio

import faulty
import trioproxy
from trioproxy.bench.referee.cases import Case, Pace, Stage, Way, cases
from trioproxy.bench.referee.library import CancelPlan, CancelReport, measure

PACE = Pace(prefill=0.3, stall=0.3, interval=0.01, dwell=0.01, watch=0.7)
STAGES = (Stage.BEFORE_HEAD, Stage.STALL, Stage.MID_STREAM, Stage.WHOLE)
FAULTS = (
    "missed_aborts",
    "late_aborts",
    "false_aborts",
    "failed_requests",
    "cross_delivered_bytes",
    "sent_after_leave",
    "lost_probes",
    "lost_slots",
    "tasks_alive_100_ms",
)
"""Figures that are 0 for a proxy without fault."""


def plan(chosen: list[Case], *, streams: int = 0) -> CancelPlan:
    return CancelPlan(
        cases=chosen,
        crowd_cases=[Case(Stage.STALL, Way.RST)] if streams else (),
        rounds=1,
        streams=streams,
        survivors=3,
        slots=faulty.SLOTS,
        size=2048,
        upload_size=200_000,
        pace=PACE,
        late_after=faulty.LATE / 2,
    )


def caught(report: CancelReport) -> set[str]:
    assert report.error is None
    assert report.metrics["aborted"]
    return {name for name in FAULTS if report.metrics[name]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("correct", set[str]()),
        ("never", {"missed_aborts"}),
        ("late", {"late_aborts"}),
        ("task", {"tasks_alive_100_ms"}),
        ("slot", {"lost_slots"}),
        ("again", {"missed_aborts", "sent_after_leave"}),
        ("body", set[str]()),
    ],
)
async def test_each_fault_has_its_figure(name: str, expected: set[str]) -> None:
    report = await measure(partial(faulty.serve, name), plan(cases(STAGES, (Way.FIN, Way.RST))))
    assert caught(report) == expected
    if name == "never":
        assert report.metrics["missed_aborts"] == 8
        assert report.metrics["tokens_for_nobody"]
    if name == "slot":
        assert report.metrics["lost_slots"] == 4  # of the 8 aborts, those before the answer
    if name == "again":
        assert report.metrics["missed_aborts"] == report.metrics["sent_after_leave"] == 4
    if name == "task":
        assert report.tasks is not None
        assert set(report.tasks.names) == {"forgotten"}


async def test_trioproxy_embedded_has_no_fault_at_any_stage() -> None:
    async def serve(upstream: tuple[str, int], *, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        proxy = trioproxy.Proxy([f"http://{upstream[0]}:{upstream[1]}"])
        async with trio.open_nursery() as nursery:
            [address] = await nursery.start(proxy.serve)
            task_status.started(address)

    report = await measure(serve, plan(cases(), streams=10))
    assert caught(report) == set()
    assert report.metrics["never_reached"] == 4
    assert {(case.stage, case.way) for case in report.cases if case.leg == "proxy" and case.load == "single"} > {
        (case.place, case.way.value) for case in cases()
    }


async def test_the_tool_itself_has_no_fault_without_a_proxy() -> None:
    report = await measure(partial(faulty.serve, "never"), plan(cases(STAGES)))
    assert report.direct["missed_aborts"] == report.direct["false_aborts"] == report.direct["failed_requests"] == 0
    assert report.direct["late_aborts"] == 0
