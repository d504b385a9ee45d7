"""How figures are written for people, the same in every form of a report.

Lives here: one figure at a time. Does not live here: tables and pages (text.py, markdown.py, html.py).
"""

from __future__ import annotations

from typing import Final

from .metrics import Spread

NONE: Final = "–"
"""Stands for what was not measured."""


def number(value: float | None, digits: int = 1) -> str:
    """A figure; a dash for none."""
    if value is None:
        return NONE
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return "0" if abs(value) < 0.5 * 10**-digits else f"{value:,.{digits}f}"


def size(value: float) -> str:
    """Bytes, in the largest binary unit that leaves a figure above 1."""
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if value == int(value) or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def spread(value: Spread) -> str:
    """Median, 99th percentile and maximum."""
    return f"{number(value.p50)} / {number(value.p99)} / {number(value.max)}"
