"""A report for a terminal: tables of at most 100 columns.

Lives here: the form. Does not live here: what it says (document.py and the documents made there).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .document import Document, Section, finding


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


def render(document: Document) -> str:
    """The whole report, without an end of line."""
    sections = [section for section in document.sections if section.terminal and _filled(section)]
    parts = [f"{document.title}\n{document.verdict}"] if sections else []
    for section in sections:
        parts += [table(one.header, one.rows, one.left) for one in section.tables if one.rows]
        if section.lines or section.notes:
            parts.append("\n".join([*section.lines, *section.notes]))
    endings = [finding(one) for one in document.requirements]
    if document.void is not None:
        endings.append(f"VOID: {document.void}")
    if document.error is not None:
        endings.append(f"error: {document.error}")
    if endings:
        parts.append("\n".join(endings))
    return "\n\n".join(parts)


def _filled(section: Section) -> bool:
    return bool(section.lines) or any(one.rows for one in section.tables)
