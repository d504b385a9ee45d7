"""A report in Markdown, ready to paste into a bug report.

Lives here: the form (GitHub's tables and fences). Does not live here: what it says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .document import Document, Section, Table, finding


def render(document: Document) -> str:
    """The whole report, with an end of line."""
    parts = [f"## {_text(document.title)}", f"**{_text(document.verdict)}**"]
    if document.void is not None:
        parts.append(f"**Void, not to be believed:** {_text(document.void)}")
    if document.error is not None:
        parts += ["**The run could not be finished:**", _fence(document.error)]
    parts.append(_facts(document.facts))
    if document.requirements:
        parts.append("\n".join(f"- {_text(finding(one))}" for one in document.requirements))
    for section in document.sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"- {name}: {_code(value) if name == 'command' else _text(value)}" for name, value in facts)


def _section(section: Section) -> list[str]:
    body = [_table(one) for one in section.tables if one.rows]
    if section.lines:
        body.append("\n".join(f"- {_text(line.strip())}" for line in section.lines))
    if section.notes and body:
        body.append("\n".join(f"- _{_text(note)}_" for note in section.notes))
    return [f"### {_text(section.title)}", *body] if body else []


def _table(table: Table) -> str:
    marks = ["---"] * table.left + ["---:"] * (len(table.header) - table.left)
    if table.remark:
        marks[-1] = "---"
    lines = [table.header, marks, *([_text(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(text: str) -> str:
    """Without anything that Markdown would take for markup."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    ticks = "`" * (_longest(text) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def _fence(text: str) -> str:
    ticks = "`" * max(3, _longest(text) + 1)
    return f"{ticks}text\n{text}\n{ticks}"


def _longest(text: str) -> int:
    """The longest run of backticks."""
    return max(map(len, re.findall("`+", text)), default=0)
