"""A report before it takes a form: sections with lines, tables and plots, and what was checked.

Lives here: plain values, without any markup. A measurement makes one of its report (cancel_document.py); text.py,
markdown.py, junit.py and html.py each write any of them. Does not live here: how a figure is written (words.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from . import words
from .metrics import Definition
from .report import Report
from .require import Finding

Tone = Literal["good", "warn", "bad", "idle", "a", "b", "c", "d"]
"""A colour by its meaning; the letters mean nothing but themselves."""

PLAIN: Final[Sequence[Tone]] = ("a", "b", "c", "d")


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of text.

    :param left: columns that are words; those to the right of them are figures.
    :param remark: whether the last column is words again.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    remark: bool = False


class Group(msgspec.Struct, frozen=True):
    """Values of one row of a ``Strips``."""

    label: str
    values: Sequence[float]
    tone: Tone = "a"


class Strips(msgspec.Struct, frozen=True, kw_only=True):
    """Each group a row: every value a dot, with its median and 99th percentile. The scale is logarithmic."""

    title: str
    unit: str
    groups: Sequence[Group]


class Part(msgspec.Struct, frozen=True):
    """One kind of what bars are made of: a value for each bar."""

    name: str
    values: Sequence[float]
    tone: Tone


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Each label a bar, made of parts."""

    title: str
    unit: str
    labels: Sequence[str]
    parts: Sequence[Part]


class Series(msgspec.Struct, frozen=True):
    """One line.

    :param step: whether a value holds until the next one, so that the line has steps.
    """

    name: str
    points: Sequence[tuple[float, float]]
    tone: Tone = "a"
    step: bool = False


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over a common axis.

    :param log: whether both axes are logarithmic; then values are above 0.
    :param marks: places on the horizontal axis that have a name.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log: bool = False
    marks: Sequence[tuple[float, str]] = ()


Plot = Strips | Bars | Lines


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a report.

    :param notes: what is to be known to read the tables.
    :param terminal: whether a terminal shows it.
    """

    title: str
    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    terminal: bool = True


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What a test report has as a test case. At most one of the last three is there."""

    group: str
    name: str
    seconds: float = 0.0
    failure: str | None = None
    error: str | None = None
    skipped: str | None = None


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report.

    :param verdict: in one sentence.
    :param facts: name and value of what must be known to have the figures again.
    :param error: why the run could not be finished; it may have several lines.
    :param void: why the figures must not be believed.
    """

    title: str
    verdict: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    checks: Sequence[Check]
    requirements: Sequence[Finding] = ()
    error: str | None = None
    void: str | None = None


def document(
    report: Report, *, title: str, verdict: str, sections: Sequence[Section], checks: Sequence[Check] = ()
) -> Document:
    """A document with what all reports have: where and how it was measured, requirements, and how the run ended."""
    return Document(
        title=title,
        verdict=verdict,
        facts=_facts(report),
        sections=sections,
        checks=[*checks, *_checks(report)],
        requirements=report.requirements,
        error=report.error,
        void=report.void,
    )


def figures(definitions: Sequence[Definition], report: Report) -> Section:
    """All figures with unit and definition; with those without a proxy, if there are any."""
    direct = report.direct
    header = ["figure", "unit", "proxy", *(["direct", "added"] if direct else []), "definition"]
    rows: list[list[str]] = []
    for definition in definitions:
        values = [report.metrics.get(definition.name)]
        if direct:
            values += [direct.get(definition.name), report.difference.get(definition.name)]
        shown = [words.number(value, 2) for value in values]
        rows.append([definition.name, definition.unit, *shown, definition.text])
    return Section(
        title="Figures and their definitions",
        tables=[Table(header=header, rows=rows, left=2, remark=True)],
        terminal=False,
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    machine = report.machine
    facts = [("proxy", report.label or report.target)]
    if report.label:
        facts.append(("address", report.target))
    facts += [
        ("command", str(report.options.get("command", ""))),
        ("measured by", f"trioproxy {machine.version}, Python {machine.python}"),
        ("machine", f"{machine.processors} × {machine.processor}, {machine.system}"),
        ("date", machine.date),
    ]
    if report.own is not None:
        facts.append(("the tool itself", own(report)))
    return [(name, value) for name, value in facts if value]


def own(report: Report) -> str:
    """What the tool itself took."""
    usage = report.own
    if usage is None:
        return words.NONE
    return (
        f"timers late by {words.spread(usage.lateness_ms)} ms (p50 / p99 / max), {usage.cpu_share:.0%} of a processor,"
        f" {words.size(usage.peak_rss_bytes)} at most, {usage.seconds:.0f} s"
    )


def finding(one: Finding) -> str:
    """One line about a requirement."""
    value = "not measured" if one.value is None else words.number(one.value, 3)
    return f"{'holds' if one.holds else 'FAILS'}  {one.text}  (is {value})"


def _checks(report: Report) -> list[Check]:
    checks = [
        Check(group="require", name=one.text, failure=None if one.holds else finding(one))
        for one in report.requirements
    ]
    why = report.error or report.void
    seconds = 0.0 if report.own is None else report.own.seconds
    return [*checks, Check(group="run", name="the run itself", seconds=seconds, error=why)]
