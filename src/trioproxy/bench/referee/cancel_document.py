"""The report of ``trioproxy bench cancel`` as a document.

Lives here: which tables, plots and sentences its figures become. Does not live here: the forms (text.py, html.py, …).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .document import (
    Bars,
    Check,
    Document,
    Group,
    Lines,
    Part,
    Plot,
    Section,
    Series,
    Strips,
    Table,
    Tone,
    figures,
    own,
)
from .document import document as common
from .metrics import CANCEL, CaseResult
from .report import CancelReport, CrowdResult, DrainResult, TasksAlive
from .words import number

_SHORT: Final = {
    "never-reached": "unsent",
    "completed": "done",
    "kept": "kept",
    "served": "served",
    "failed": "FAILED",
    "false-abort": "FALSE",
}
"""Outcomes that are rare enough to share a column."""

_TONES: Final[dict[str, Tone]] = {
    "seen": "good",
    "late": "warn",
    "missed": "bad",
    "never-reached": "idle",
    "completed": "idle",
    "kept": "c",
    "served": "d",
    "false-abort": "bad",
    "failed": "bad",
}

_MEANINGS: Final = {
    "never-reached": "unsent: the request never came to the model server, so that there was nothing to abort",
    "completed": "done: the model server had finished before the client left",
    "kept": "kept: after a half-close the proxy goes on serving, which TCP allows it to",
    "served": "served: after a half-close the client got its whole answer, which TCP allows",
    "failed": "FAILED: the request did not come to its stage, so that nothing was measured",
    "false-abort": "FALSE: a client that stayed did not get its own whole answer",
}


def document(report: CancelReport) -> Document:
    """The document of a report, which may be of a run that came to nothing."""
    return common(
        report,
        title="What the model server sees when clients leave",
        verdict=_verdict(report),
        sections=[_cases(report), _crowds(report), _rest(report), figures(CANCEL, report)] if report.cases else [],
        checks=[check(case) for case in report.cases if case.leg == "proxy"],
    )


def _verdict(report: CancelReport) -> str:
    metrics, direct = report.metrics, report.direct
    if not report.cases:
        return "Nothing was measured."
    wrong = [
        f"{number(count)} {name}"
        for name, count in (
            ("missed", metrics["missed_aborts"]),
            ("late", metrics["late_aborts"]),
            ("false", metrics["false_aborts"]),
            ("failed", metrics["failed_requests"]),
        )
        if count
    ]
    said = ", ".join(wrong) if wrong else "none missed, none late"
    text = f"{report.label or report.target}: {number(metrics['aborted'])} aborts, {said}"
    if metrics["propagation_p50_ms"] is not None:
        text += (
            f"; the model server sees one after {number(metrics['propagation_p50_ms'])} ms"
            f" (p99 {number(metrics['propagation_p99_ms'])})"
        )
    if direct.get("propagation_p50_ms") is not None:
        text += (
            f"; without a proxy after {number(direct['propagation_p50_ms'])} ms"
            f" (p99 {number(direct['propagation_p99_ms'])})"
        )
    return text + "."


# ---- cases


def _cases(report: CancelReport) -> Section:
    left = [case for case in report.cases if case.leg == "proxy" and case.way != "stay"]
    header = ["stage", "way", "seen", "late", "missed", "other", "p50 ms", "p99 ms", "tokens", "slot ms"]
    rows = [
        [
            place(case),
            case.way,
            *(str(case.outcomes[name]) for name in ("seen", "late", "missed")),
            _other(case),
            number(case.propagation_ms.p50),
            number(case.propagation_ms.p99),
            str(case.tokens_for_nobody),
            number(case.slot_ms_for_nobody, 0),
        ]
        for case in left
    ]
    occurred = [name for name in _SHORT if any(case.outcomes[name] for case in report.cases if case.leg == "proxy")]
    notes = [_MEANINGS[name] for name in occurred]
    notes.append("tokens, slot ms: made for nobody, and for how long a slot was busy, until the model server was told")
    lines = [_direct(report), _controls(report.cases)]
    for case in report.cases:
        if case.leg == "proxy":
            lines += [f"  {place(case)}, {case.way}: {count} × {why}" for why, count in case.why.items()]
    return Section(
        title="Aborts by stage and way",
        tables=[Table(header=header, rows=rows, left=2)],
        lines=lines,
        notes=notes,
        plots=_case_plots(left) if left else (),
    )


def place(case: CaseResult) -> str:
    """The stage, for people: with how many at once, and whether the model server ignores disconnects."""
    crowd = f" ×{case.requests}" if case.load == "crowd" else ""
    return f"{case.stage}{crowd}{' (ignored)' if case.upstream == 'ignores' else ''}"


def _other(case: CaseResult) -> str:
    """The remaining outcomes that occurred, short."""
    return " ".join(f"{case.outcomes[name]} {short}" for name, short in _SHORT.items() if case.outcomes[name]) or "–"


def _direct(report: CancelReport) -> str:
    direct = report.direct
    text = (
        f"without a proxy: p50 {number(direct['propagation_p50_ms'])}, p99 {number(direct['propagation_p99_ms'])},"
        f" max {number(direct['propagation_max_ms'])} ms"
    )
    if direct["crowd_propagation_p50_ms"] is None:
        return text
    return (
        f"{text}; many at once: p50 {number(direct['crowd_propagation_p50_ms'])},"
        f" p99 {number(direct['crowd_propagation_p99_ms'])} ms"
    )


def _controls(cases: Sequence[CaseResult]) -> str:
    stayed = [case for case in cases if case.leg == "proxy" and case.way == "stay"]
    total = sum(case.requests for case in stayed)
    whole = sum(case.outcomes["whole"] for case in stayed)
    return f"{whole} of {total} clients that stayed got their whole answer"


def _case_plots(cases: Sequence[CaseResult]) -> list[Plot]:
    labels = [f"{place(case)}, {case.way}" for case in cases]
    seen = [
        Group(label, case.samples_ms, "b" if case.load == "crowd" else "a")
        for label, case in zip(labels, cases, strict=True)
        if case.samples_ms
    ]
    parts = [
        Part(name, [case.outcomes[name] / max(case.requests, 1) * 100 for case in cases], tone)
        for name, tone in _TONES.items()
    ]
    return [
        Strips(title="From the client's leaving to the model server's noticing", unit="ms", groups=seen),
        Bars(title="What became of the requests whose client left", unit="% of requests", labels=labels, parts=parts),
    ]


# ---- many at once, the drain, the tool


def _crowds(report: CancelReport) -> Section:
    header = ["at once", "way", "leg", "new: TTFT p99", "before", "survivors: ITL p99", "before", "stall ms", "lost"]
    rows = [
        [
            f"{crowd.streams} {crowd.stage}",
            crowd.way,
            crowd.leg,
            number(crowd.ttft_after.p99),
            number(crowd.ttft_before.p99),
            number(crowd.itl_after.p99),
            number(crowd.itl_before.p99),
            number(crowd.stall),
            str(crowd.lost_probes),
        ]
        for crowd in report.crowds
    ]
    notes = [
        "new requests and survivors: ms in the second after the disconnect, and in the second before; stall: the"
        " longest answer",
        "the direct leg pays for client and model server, which are one process; a proxy spreads its aborts in time",
    ]
    return Section(
        title="Many at once",
        tables=[Table(header=header, rows=rows, left=3)],
        notes=notes if rows else (),
        plots=_crowd_plots(report.crowds),
    )


def _crowd_plots(crowds: Sequence[CrowdResult]) -> list[Plot]:
    plots: list[Plot] = []
    for stage in dict.fromkeys(crowd.stage for crowd in crowds):
        legs = [crowd for crowd in crowds if crowd.stage == stage]
        tones: dict[str, Tone] = {"proxy": "a", "direct": "b"}
        name = f"{legs[0].streams} streams, {stage}, leave at once ({legs[0].way})"
        plots += [
            Lines(
                title=f"{name}: streams that the model server still works for",
                x="ms since the disconnect",
                y="streams",
                series=[Series(leg.leg, _running(leg), tones[leg.leg], step=True) for leg in legs],
            ),
            Lines(
                title=f"{name}: the answer to a probe every 20 ms",
                x="seconds since the disconnect, when the probe was due",
                y="ms",
                series=[Series(leg.leg, leg.probes, tones[leg.leg]) for leg in legs],
                marks=[(0.0, "the disconnect")],
            ),
        ]
    return plots


def _running(crowd: CrowdResult) -> list[tuple[float, float]]:
    count = float(crowd.streams)
    points = [(0.0, count)]
    for seen in crowd.seen_ms:
        count -= 1
        points.append((seen, count))
    return points


def _rest(report: CancelReport) -> Section:
    lines: list[str] = []
    if report.drain is not None:
        lines.append(_drain(report.drain))
    if report.tasks is not None:
        lines.append(_tasks(report.tasks))
    if len(report.served_at_once) > 1:
        before, after = report.served_at_once[0], report.served_at_once[-1]
        lines.append(f"requests served at the same time: {before} before the first abort, {after} after the last")
    if report.proxy_cpu_share is not None:
        lines.append(f"the proxy used {report.proxy_cpu_share:.0%} of a processor")
    lines.append(f"the tool: {own(report)}")
    return Section(title="Slots, drain, and the tool itself", lines=lines)


def _drain(result: DrainResult) -> str:
    idle = "does not end" if result.idle is None else f"ends after {number(result.idle, 0)} ms"
    busy = "does not end" if result.busy is None else f"ends {number(result.busy, 0)} ms after the last one"
    return f"at SIGTERM: idle it {idle}; with {result.streams} streams it {busy}, {result.cut} were cut"


def _tasks(tasks: TasksAlive) -> str:
    names = ", ".join(f"{count} × {name}" for name, count in tasks.names.items())
    text = f"tasks alive when their request has ended: {tasks.after_0_ms}, {tasks.after_10_ms} and {tasks.after_100_ms}"
    return f"{text} at most, after 0, 10 and 100 ms{': ' + names if names else ''}"


def check(case: CaseResult) -> Check:
    """A case as a test case: it fails if a request was missed, late, false or failed."""
    name = "clients that stay" if case.way == "stay" else f"{place(case)}, {case.way}"
    group = f"cancel.{case.load}"
    if not case.requests:
        return Check(group=group, name=name, skipped="not played")
    failure: str | None = None
    if case.bad:
        told = [f"{count} {outcome}" for outcome, count in case.outcomes.items() if count]
        failure = "\n".join([", ".join(told), *(f"{count} × {why}" for why, count in case.why.items())])
    return Check(group=group, name=name, failure=failure)
