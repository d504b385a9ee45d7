"""A report as one HTML page: plots as inline SVG, no script, nothing loaded from anywhere, dark and light.

Lives here: the page and its looks. Does not live here: what it says, the plots themselves (plots.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .document import Document, Plot, Section, Strips, Table, finding
from .plots import draw, legend
from .xml import Element, add, serialize

_STYLE: Final = """
:root { color-scheme: light dark;
  --page: #fff; --text: #1c2430; --soft: #5b6675; --line: #dfe3e8; --shade: #f5f7f9;
  --good: #1f8f5f; --warn: #c77d00; --bad: #cc2f3c; --idle: #97a1ae;
  --a: #2f6bd0; --b: #c8621b; --c: #7a4cc2; --d: #13858c; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14181e; --text: #e3e7ec; --soft: #9aa5b3; --line: #303842; --shade: #1c222a;
  --good: #45bd88; --warn: #e6a23c; --bad: #f0616d; --idle: #6c7784;
  --a: #6fa3f5; --b: #ea9455; --c: #ad87ee; --d: #4fc3c9; } }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: .95rem; margin: 1.5rem 0 .4rem; }
.verdict { font-size: 1.05rem; margin: 0 0 1.25rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem; margin: 0; font-size: .875rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: .8125rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { background: var(--shade); padding: .75rem 1rem; border-radius: 6px; overflow-x: auto; white-space: pre-wrap; }
.scroll { overflow-x: auto; margin-top: 1rem; }
table { border-collapse: collapse; font-size: .8125rem; width: 100%; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th, td { padding: .28rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
.word { text-align: left; } td.remark { white-space: normal; text-align: left; color: var(--soft); min-width: 16rem; }
th.remark { text-align: left; }
ul { padding-left: 1.2rem; font-size: .9rem; } .notes { color: var(--soft); font-size: .8125rem; }
.alert { border-left: 4px solid var(--bad); padding: .5rem 1rem; background: var(--shade); margin: 1rem 0; }
.alert pre { padding: 0; margin: .25rem 0 0; }
.require { list-style: none; padding: 0; }
.require .holds { color: var(--good); } .require .fails { color: var(--bad); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 12px system-ui, sans-serif; fill: var(--text); } svg .tick, svg .axis { fill: var(--soft); }
.grid { stroke: var(--line); } .mark { stroke: var(--text); stroke-width: 2; } .p99 { stroke-dasharray: 3 2; }
.dot { opacity: .55; } .line { fill: none; stroke-width: 1.75; stroke-linejoin: round; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .8125rem; color: var(--soft);
  margin: .2rem 0 .5rem; }
.key i { display: inline-block; width: .75rem; height: .75rem; border-radius: 2px; margin-right: .4rem; }
.key b { display: inline-block; height: .8rem; border-left: 2px solid var(--text); margin-right: .4rem; }
.key b.p99 { border-left-style: dashed; }
""" + "".join(
    f".dot.{tone}, .bar.{tone} {{ fill: var(--{tone}); }} .line.{tone} {{ stroke: var(--{tone}); }}"
    f" i.{tone} {{ background: var(--{tone}); }}\n"
    for tone in ("good", "warn", "bad", "idle", "a", "b", "c", "d")
)


def render(document: Document) -> bytes:
    """The whole page, in UTF-8."""
    html = Element("html", {"lang": "en"})
    head = add(html, "head")
    add(head, "meta", charset="utf-8")
    add(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    add(head, "title", document.title)
    add(head, "style", _STYLE)
    main = add(add(html, "body"), "main")
    add(main, "h1", document.title)
    add(main, "p", document.verdict, class_="verdict")
    _alerts(main, document)
    facts = add(main, "dl")
    for name, value in document.facts:
        add(facts, "dt", name)
        add(add(facts, "dd"), "code" if name == "command" else "span", value)
    if document.requirements:
        listed = add(main, "ul", class_="require")
        for one in document.requirements:
            add(listed, "li", finding(one), class_="holds" if one.holds else "fails")
    for section in document.sections:
        _section(main, section)
    return b"<!doctype html>\n" + serialize(html, "html")


def _alerts(main: Element, document: Document) -> None:
    for title, text in (
        ("Void: these figures must not be believed", document.void),
        ("The run could not be finished", document.error),
    ):
        if text is not None:
            alert = add(main, "div", class_="alert")
            add(alert, "strong", title)
            add(alert, "pre", text)


def _section(main: Element, section: Section) -> None:
    tables = [one for one in section.tables if one.rows]
    if not (tables or section.lines or section.plots):
        return
    add(main, "h2", section.title)
    for plot in section.plots:
        add(main, "h3", plot.title)
        _key(main, plot)
        main.append(draw(plot))
    for one in tables:
        _table(main, one)
    for lines, kind in ((section.lines, "lines"), (section.notes, "notes")):
        if lines:
            listed = add(main, "ul", class_=kind)
            for line in lines:
                add(listed, "li", line.strip())


def _key(main: Element, plot: Plot) -> None:
    key = add(main, "div", class_="key")
    if isinstance(plot, Strips):
        for kind, name in (("median", "median"), ("p99", "99th percentile")):
            _entry(key, "b", kind, name)
    for tone, name in legend(plot):
        _entry(key, "i", tone, name)


def _entry(key: Element, tag: str, kind: str, name: str) -> None:
    add(add(key, "span"), tag, class_=kind).tail = name


def _table(main: Element, table: Table) -> None:
    kinds = _kinds(table)
    grid = add(add(main, "div", class_="scroll"), "table")
    header = add(add(grid, "thead"), "tr")
    for cell, kind in zip(table.header, kinds, strict=True):
        add(header, "th", cell, class_=kind)
    body = add(grid, "tbody")
    for row in table.rows:
        line = add(body, "tr")
        for cell, kind in zip(row, kinds, strict=True):
            add(line, "td", cell, class_=kind)


def _kinds(table: Table) -> Sequence[str]:
    kinds = ["word" if number < table.left else "figure" for number in range(len(table.header))]
    if table.remark:
        kinds[-1] = "remark"
    return kinds
