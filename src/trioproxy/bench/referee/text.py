"""The report for a terminal: tables of at most 100 columns.

Lives here: how figures are written for people. Does not live here: getting or judging them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .metrics import CaseResult, Spread
from .report import CancelReport, CrowdResult, DrainResult
from .require import Finding
from .usage import OwnUsage

_OUTCOMES: Final = ("seen", "late", "missed", "never-reached", "failed")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Columns as wide as they need to be, the first ``left`` to the left, figures to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:]])


def number(value: float | None, digits: int = 1) -> str:
    """A figure; a dash for none."""
    if value is None:
        return "–"
    if abs(value) < 0.05:
        return "0"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:,.{digits}f}"


def size(value: float) -> str:
    """Bytes, in the largest binary unit that leaves a figure above 1."""
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if value == int(value) or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def case_header() -> list[str]:
    """The columns of ``case_rows``."""
    return ["stage", "way", "seen", "late", "missed", "other", "p50 ms", "p99 ms", "tokens", "slot ms"]


def case_rows(cases: Sequence[CaseResult]) -> list[list[str]]:
    """One row for each case of the proxy's."""
    rows: list[list[str]] = []
    for case in cases:
        if case.leg != "proxy" or case.way == "stay":
            continue
        ignoring = " (ignored)" if case.upstream == "ignores" else ""
        rows.append(
            [
                f"{case.stage}{' ×' + str(case.requests) if case.load == 'crowd' else ''}{ignoring}",
                case.way,
                *(str(case.outcomes[name]) for name in ("seen", "late", "missed")),
                other(case),
                number(case.propagation_ms.p50),
                number(case.propagation_ms.p99),
                str(case.tokens_for_nobody),
                number(case.slot_ms_for_nobody, 0),
            ]
        )
    return rows


_SHORT: Final = {
    "never-reached": "unsent",
    "completed": "done",
    "kept": "kept",
    "served": "served",
    "failed": "FAILED",
    "false-abort": "FALSE",
}


def other(case: CaseResult) -> str:
    """The remaining outcomes that occurred, short."""
    return " ".join(f"{case.outcomes[name]} {short}" for name, short in _SHORT.items() if case.outcomes[name]) or "–"


def spread(value: Spread) -> str:
    """Median, 99th percentile and maximum."""
    return f"{number(value.p50)} / {number(value.p99)} / {number(value.max)}"


def crowd_header() -> list[str]:
    """The columns of ``crowd_rows``."""
    return ["at once", "way", "leg", "new: TTFT p99", "before", "survivors: ITL p99", "before", "stall ms", "lost"]


def crowd_rows(crowds: Sequence[CrowdResult]) -> list[list[str]]:
    """One row for each mass disconnect."""
    return [
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
        for crowd in crowds
    ]


def drain(result: DrainResult) -> str:
    """One line about SIGTERM."""
    idle = "does not end" if result.idle is None else f"ends after {number(result.idle, 0)} ms"
    busy = "does not end" if result.busy is None else f"ends {number(result.busy, 0)} ms after the last one"
    return f"at SIGTERM: idle it {idle}; with {result.streams} streams it {busy}, {result.cut} were cut"


def controls(cases: Sequence[CaseResult]) -> str:
    """One line about the clients that stayed."""
    stayed = [case for case in cases if case.leg == "proxy" and case.way == "stay"]
    total = sum(case.requests for case in stayed)
    whole = sum(case.outcomes["whole"] for case in stayed)
    return f"{whole} of {total} clients that stayed got their whole answer"


def own(usage: OwnUsage) -> str:
    """One line about the tool itself."""
    return (
        f"the tool: timers late by {spread(usage.lateness_ms)} ms (p50 / p99 / max),"
        f" {usage.cpu_share:.0%} of a processor, {size(usage.peak_rss_bytes)} at most, {usage.seconds:.0f} s"
    )


def finding(one: Finding) -> str:
    """One line about a requirement."""
    return f"{'holds' if one.holds else 'FAILS'}  {one.text}  (is {number(one.value, 3)})"


def endings(error: str | None, void: str | None, requirements: Sequence[Finding]) -> list[str]:
    """What decides the exit status."""
    lines = [finding(one) for one in requirements]
    if void is not None:
        lines.append(f"VOID: {void}")
    if error is not None:
        lines.append(f"error: {error}")
    return lines


def cancel(report: CancelReport) -> str:
    """The whole report."""
    parts = [f"{report.target}: what the model server sees when clients leave"]
    rows = case_rows(report.cases)
    if rows:
        parts.append(table(case_header(), rows, left=2))
    lines = [
        f"direct, without a proxy: p50 {number(report.direct['propagation_p50_ms'])},"
        f" p99 {number(report.direct['propagation_p99_ms'])}, max {number(report.direct['propagation_max_ms'])} ms",
        controls(report.cases),
    ]
    for case in report.cases:
        if case.leg == "proxy":
            lines += [f"  {case.stage}, {case.way}: {count} × {why}" for why, count in case.why.items()]
    parts.append("\n".join(lines))
    if report.crowds:
        parts.append(table(crowd_header(), crowd_rows(report.crowds), left=3))
    lines = []
    if report.drain is not None:
        lines.append(drain(report.drain))
    if report.own is not None:
        lines.append(own(report.own))
    if report.proxy_cpu_share is not None:
        lines.append(f"the proxy: {report.proxy_cpu_share:.0%} of a processor")
    parts.append("\n".join(lines))
    ends = endings(report.error, report.void, report.requirements)
    if ends:
        parts.append("\n".join(ends))
    return "\n\n".join(parts)
