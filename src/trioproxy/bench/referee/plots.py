"""Plots as SVG elements, coloured by classes that the page defines, so that they follow its dark and light.

Lives here: scales, and one function for each kind of plot in document.py. Does not live here: what is plotted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from .document import Bars, Lines, Plot, Series, Strips
from .metrics import percentile
from .words import number
from .xml import Element, add

WIDTH: Final = 960
_LEFT: Final = 190
_RIGHT: Final = 20
_ROW: Final = 24
_BOTTOM: Final = 44
_HEIGHT: Final = 260
_FLOOR: Final = 0.05
"""The least value that a logarithmic scale of milliseconds shows; what is below stands there."""

Scale = Callable[[float], float]


def draw(plot: Plot) -> Element:
    """The plot as an ``svg`` element."""
    match plot:
        case Strips():
            return _strips(plot)
        case Bars():
            return _bars(plot)
        case Lines():
            return _lines(plot)


# ---- scales


def _linear(low: float, high: float, start: float, end: float) -> Scale:
    width = (high - low) or 1.0
    return lambda value: start + (value - low) / width * (end - start)


def _logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    inner = _linear(math.log10(low), math.log10(high), start, end)
    return lambda value: inner(math.log10(max(value, low)))


def _ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, about as many."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """1, 2, 5 and so on; only the powers of ten where those were too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 5 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]


def _tick(value: float) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.0e}"
    return f"{value:,.10g}" if abs(value) < 1e4 else f"{value:,.0f}"


# ---- frames


def _svg(title: str, height: int) -> Element:
    svg = Element("svg", {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "aria-label": title})
    add(svg, "title", title)
    return svg


def _grid(svg: Element, ticks: Sequence[float], x: Scale, top: int, bottom: int, label: str) -> None:
    """Vertical lines with their values, and what they are."""
    for tick in ticks:
        at = x(tick)
        add(svg, "line", class_="grid", x1=at, x2=at, y1=top, y2=bottom)
        add(svg, "text", _tick(tick), class_="tick", x=at, y=bottom + 16, text_anchor="middle")
    add(svg, "text", label, class_="axis", x=(_LEFT + WIDTH - _RIGHT) / 2, y=bottom + 36, text_anchor="middle")


def _label(svg: Element, text: str, y: float) -> None:
    add(svg, "text", text, class_="label", x=_LEFT - 10, y=y + 4, text_anchor="end")


# ---- kinds


def _strips(plot: Strips) -> Element:
    values = [value for group in plot.groups for value in group.values]
    bottom = _ROW * len(plot.groups) + 6
    svg = _svg(plot.title, bottom + _BOTTOM)
    low = _down(max(_FLOOR, min(values, default=_FLOOR)))
    high = max(max(values, default=1.0) * 1.1, low * 10)
    x = _logarithmic(low, high, _LEFT, WIDTH - _RIGHT)
    _grid(svg, _decades(low, high), x, 0, bottom, plot.unit)
    for row, group in enumerate(plot.groups):
        y = _ROW * (row + 0.5) + 3
        _label(svg, group.label, y)
        if not group.values:
            add(svg, "text", "none", class_="tick", x=_LEFT + 6, y=y + 4)
            continue
        for place, value in enumerate(sorted(group.values)):
            # Spread over the row's height in a fixed order, so that equal values are seen as several.
            shift = ((place * 7) % 11 - 5) * 0.8
            add(svg, "circle", class_=f"dot {group.tone}", cx=x(value), cy=y + shift, r=2.4)
        median, most = percentile(group.values, 0.5), percentile(group.values, 0.99)
        assert median is not None
        assert most is not None
        said = f"{group.label}: p50 {number(median, 2)}, p99 {number(most, 2)} {plot.unit}, of {len(group.values)}"
        for value, kind in ((median, "median"), (most, "p99")):
            mark = add(svg, "line", class_=f"mark {kind}", x1=x(value), x2=x(value), y1=y - 9, y2=y + 9)
            add(mark, "title", said)
    return svg


def _down(value: float) -> float:
    """The next lower of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= value * 1.0001)


def _bars(plot: Bars) -> Element:
    bottom = _ROW * len(plot.labels) + 6
    svg = _svg(plot.title, bottom + _BOTTOM)
    totals = [sum(part.values[row] for part in plot.parts) for row in range(len(plot.labels))]
    high = max(totals, default=0.0) or 1.0
    x = _linear(0.0, high, _LEFT, WIDTH - _RIGHT)
    _grid(svg, _ticks(0.0, high), x, 0, bottom, plot.unit)
    for row, label in enumerate(plot.labels):
        y = _ROW * row + 6
        _label(svg, label, y + 8)
        start = 0.0
        for part in plot.parts:
            value = part.values[row]
            if value <= 0:
                continue
            width = x(start + value) - x(start)
            bar = add(svg, "rect", class_=f"bar {part.tone}", x=x(start), y=y, width=max(width - 1, 1.0), height=16)
            add(bar, "title", f"{label}: {number(value)} {part.name}")
            start += value
    return svg


def _lines(plot: Lines) -> Element:
    points = [point for series in plot.series for point in series.points]
    svg = _svg(plot.title, _HEIGHT + _BOTTOM)
    xs = [x for x, _ in points] + [x for x, _ in plot.marks] or [0.0]
    ys = [y for _, y in points] or [0.0]
    end = WIDTH - _RIGHT
    left = 80
    if plot.log:
        low, high = min(ys), max(max(ys), min(ys) * 10)
        x, y = _logarithmic(min(xs), max(max(xs), min(xs) * 10), left, end), _logarithmic(low, high, _HEIGHT, 8)
        x_ticks, y_ticks = _decades(min(xs), max(xs)), _decades(low, high)
    else:
        low, high = min(0.0, *ys), max(ys) * 1.05 or 1.0
        x, y = _linear(min(xs), max(xs), left, end), _linear(low, high, _HEIGHT, 8)
        x_ticks, y_ticks = _ticks(min(xs), max(xs), 10), _ticks(low, high, 5)
    _grid(svg, x_ticks, x, 8, _HEIGHT, plot.x)
    for tick in y_ticks:
        at = y(tick)
        add(svg, "line", class_="grid", x1=left, x2=end, y1=at, y2=at)
        add(svg, "text", _tick(tick), class_="tick", x=left - 8, y=at + 4, text_anchor="end")
    add(svg, "text", plot.y, class_="axis", transform=f"translate(16 {_HEIGHT / 2}) rotate(-90)", text_anchor="middle")
    for place, name in plot.marks:
        add(svg, "line", class_="mark median", x1=x(place), x2=x(place), y1=8, y2=_HEIGHT)
        add(svg, "text", name, class_="tick", x=x(place) + 5, y=18)
    for series in plot.series:
        _series(svg, series, x, y)
    return svg


def _series(svg: Element, series: Series, x: Scale, y: Scale) -> None:
    path: list[str] = []
    for number_, (at, value) in enumerate(series.points):
        if not number_:
            path.append(f"M{x(at):.1f} {y(value):.1f}")
        elif series.step:
            path.append(f"H{x(at):.1f}V{y(value):.1f}")
        else:
            path.append(f"L{x(at):.1f} {y(value):.1f}")
    line = add(svg, "path", class_=f"line {series.tone}", d="".join(path))
    add(line, "title", series.name)
    if not series.step and len(series.points) <= 60:
        for at, value in series.points:
            dot = add(svg, "circle", class_=f"dot {series.tone}", cx=x(at), cy=y(value), r=3.0)
            add(dot, "title", f"{series.name}: {_tick(value)} at {_tick(at)}")


def legend(plot: Plot) -> list[tuple[str, str]]:
    """Tone and name of what is told apart by colour."""
    match plot:
        case Strips():
            return []
        case Bars():
            return [(part.tone, part.name) for part in plot.parts if any(part.values)]
        case Lines():
            return [(series.tone, series.name) for series in plot.series]
