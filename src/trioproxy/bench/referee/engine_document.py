"""The report of ``bench cancel --engine-metrics`` as a document.

Lives here: which tables, plots and sentences its figures become. Does not live here: the forms (text.py, html.py, …).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .document import Bars, Check, Document, Lines, Part, Plot, Section, Series, Table, Tone, figures, own
from .document import document as common
from .engine_report import ENGINE, EngineCase, EngineFacts, EngineReport
from .words import NONE, number, spread

_TONES: Final[dict[str, Tone]] = {
    "freed": "good",
    "missed": "bad",
    "never-started": "idle",
    "kept": "c",
    "served": "d",
    "failed": "bad",
}
_SHORT: Final = {"never-started": "unstarted", "kept": "kept", "served": "served", "failed": "FAILED"}
_MEANINGS: Final = {
    "never-started": "unstarted: the engine was not seen to work on any of them, so that there was nothing to free",
    "kept": "kept: after a half-close the gateway goes on serving, which TCP allows it to",
    "served": "served: after a half-close the client got its whole answer, which TCP allows",
    "failed": "FAILED: the request did not come to its stage, so that nothing was measured",
}


def document(report: EngineReport) -> Document:
    """The document of a report, which may be of a run that came to nothing."""
    sections = [_cases(report), _engine(report), figures(ENGINE, report)] if report.cases else []
    return common(
        report,
        title="What a real engine does when clients of a gateway leave",
        verdict=_verdict(report),
        sections=sections,
        checks=[_check(case) for case in report.cases if case.leg == "proxy"],
    )


def _verdict(report: EngineReport) -> str:
    metrics = report.metrics
    if not report.cases:
        return "Nothing was measured."
    said = [
        f"{number(metrics[name])} {word}"
        for name, word in (("missed_aborts", "missed"), ("false_aborts", "false"), ("failed_requests", "failed"))
        if metrics[name]
    ]
    text = f"{report.label or report.target}: {number(metrics['aborted'])} aborts, {', '.join(said) or 'none missed'}"
    text += f"; {number(metrics['tokens_for_nobody'])} tokens and"
    text += f" {number(metrics['engine_seconds_for_nobody'], 2)} engine-seconds for nobody"
    if report.direct:
        text += (
            f", without the gateway {number(report.direct['tokens_for_nobody'])} and"
            f" {number(report.direct['engine_seconds_for_nobody'], 2)}"
        )
    return text + "."


def _cases(report: EngineReport) -> Section:
    left = [case for case in report.cases if case.way != "stay"]
    through = [case for case in left if case.leg == "proxy"]
    header = ["stage", "way", "freed", "missed", "other", "freed after ms", "direct", "tokens", "direct", "engine s"]
    header.append("direct")
    rows: list[list[str]] = []
    for case in through:
        other = _direct(case, left)
        rows.append(
            [
                case.stage,
                case.way,
                str(case.outcomes["freed"]),
                str(case.outcomes["missed"]),
                _other(case),
                _freed(case),
                NONE if other is None else _freed(other),
                number(case.tokens_for_nobody),
                NONE if other is None else number(other.tokens_for_nobody),
                number(case.engine_seconds_for_nobody, 2),
                NONE if other is None else number(other.engine_seconds_for_nobody, 2),
            ]
        )
    notes = [text for name, text in _MEANINGS.items() if any(case.outcomes[name] for case in through)]
    if any(case.refreshed for case in left):
        notes.append(
            "≤: the gauges stood still until a request of ours made the engine step, so the time is a bound, and the"
            " engine-seconds count until the last work that it told of"
        )
    notes.append("engine s: the integral of running requests above the level before, over the group")
    return Section(
        title="Groups that left, by stage and way",
        tables=[Table(header=header, rows=rows, left=2)],
        lines=_lines(report),
        notes=notes,
        plots=_plots(through) if through else (),
    )


def _direct(case: EngineCase, cases: Sequence[EngineCase]) -> EngineCase | None:
    """The same without the gateway."""
    same = [one for one in cases if (one.leg, one.stage, one.way) == ("direct", case.stage, case.way)]
    return same[0] if same else None


def _freed(case: EngineCase) -> str:
    if case.freed_ms is None or not case.outcomes["freed"]:
        return NONE
    return f"{'≤ ' if case.refreshed else ''}{number(case.freed_ms, 0)}"


def _other(case: EngineCase) -> str:
    return " ".join(f"{case.outcomes[name]} {short}" for name, short in _SHORT.items() if case.outcomes[name]) or NONE


def _lines(report: EngineReport) -> list[str]:
    lines: list[str] = []
    for case in report.cases:
        if case.way == "stay":
            leg = "through the gateway" if case.leg == "proxy" else "without it"
            lines.append(
                f"{case.outcomes['whole']} of {case.requests} clients that stayed got their whole answer, {leg}"
            )
    for case in report.cases:
        place = f"  {case.stage}, {case.way} ({case.leg})"
        lines += [f"{place}: {count} × {why}" for why, count in case.why.items()]
    passed = [case for case in report.cases if case.leg == "proxy" and case.passed]
    for case in passed:
        lines += [f"  {case.stage}, {case.way}: {count} left when {what}" for what, count in case.passed.items()]
    return lines


def _engine(report: EngineReport) -> Section:
    lines = [] if report.engine is None else _watched(report.engine)
    return Section(title="The engine, and the tool itself", lines=[*lines, *report.notes, f"the tool: {own(report)}"])


def _watched(engine: EngineFacts) -> list[str]:
    shared = "; shared with others, so figures are estimates" if engine.shared else ""
    return [
        f"{engine.name} with {engine.model}, watched at {engine.metrics_url}{shared}",
        f"{engine.pages} pages, each fetched in {spread(engine.fetch_ms)} ms (p50 / p99 / max)",
        f"resolution of all times: {spread(engine.resolution_ms)} ms from asking for one page to having the next,",
        f"  and the engine's own: it brings its gauges up to date {engine.update}",
        f"time to the first token of clients that stayed: {spread(engine.ttft_ms)} ms",
    ]


def _plots(cases: Sequence[EngineCase]) -> list[Plot]:
    labels = [f"{case.stage}, {case.way}" for case in cases]
    parts = [
        Part(name, [case.outcomes[name] / max(case.requests, 1) * 100 for case in cases], tone)
        for name, tone in _TONES.items()
    ]
    plots: list[Plot] = [
        Bars(title="What became of the requests whose client left", unit="% of requests", labels=labels, parts=parts)
    ]
    tones: tuple[Tone, ...] = ("a", "b", "c", "d")
    for stage in dict.fromkeys(case.stage for case in cases):
        of_stage = [case for case in cases if case.stage == stage and case.running]
        series = [Series(case.way, case.running, tone, step=True) for case, tone in zip(of_stage, tones, strict=False)]
        plots.append(
            Lines(
                title=f"{stage}: requests that the engine runs",
                x="ms since the clients left",
                y="requests",
                series=series,
                marks=[(0.0, "the clients leave")],
            )
        )
    return plots


def _check(case: EngineCase) -> Check:
    """A case as a test case: it fails if a request was missed, false or failed."""
    name = "clients that stay" if case.way == "stay" else f"{case.stage}, {case.way}"
    if not case.requests:
        return Check(group="engine", name=name, skipped="not played")
    failure: str | None = None
    if case.bad:
        told = [f"{count} {outcome}" for outcome, count in case.outcomes.items() if count]
        failure = "\n".join([", ".join(told), *(f"{count} × {why}" for why, count in case.why.items())])
    return Check(group="engine", name=name, failure=failure)
