"""How results are told: numbers of several rounds, tables, JSON, checks.

Lives here: formatting and the exit status. Nothing here measures.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Rounds(NamedTuple):
    """The median of several rounds, and how far they were apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Rounds:
        """Of at least one value."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.low:.1f}–{self.high:.1f})"


class Check(NamedTuple):
    """Something that has to hold."""

    what: str
    holds: bool


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need to be, the first to the left, figures to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, figures, widths[1:])]).rstrip() for first, *figures in lines
    ]
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:]])


def verdict(checks: Sequence[Check]) -> str:
    """One line a check."""
    return "\n".join(f"{'holds' if check.holds else 'FAILS'}  {check.what}" for check in checks)


def told(error: Exception) -> str:
    """An error and its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def status(checks: Sequence[Check], *, required: bool) -> int:
    """The exit status: 1 if the checks are required and one does not hold."""
    return 1 if required and not all(check.holds for check in checks) else 0


def write_json(path: Path, results: dict[str, object], checks: Sequence[Check]) -> None:
    """Write the results, the checks and what they were measured on."""
    document = {
        "machine": {"system": platform.platform(), "python": platform.python_version()},
        "results": results,
        "checks": [check._asdict() for check in checks],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
