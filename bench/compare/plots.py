"""What a comparison has found, as one picture.

Lives here: drawing. The colours are told apart by people who cannot see red and green too, and words stand beside them.
"""

# matplotlib leaves types of keyword arguments unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from bench.compare.tables import Comparison, cases, seen
from trioproxy.bench.referee.memory_report import MemoryReport

_COLOURS: Final = {
    "seen": "#2a7f9e",
    "never-reached": "#9fc8d4",
    "completed": "#9fc8d4",
    "served": "#d9d9d9",
    "kept": "#d9d9d9",
    "late": "#f0b35a",
    "missed": "#c8442f",
    "false-abort": "#c8442f",
    "failed": "#777777",
    "none": "#ffffff",
}
_LEGEND: Final = (
    ("seen", "seen (ms)"),
    ("never-reached", "not passed on"),
    ("kept", "half-close served"),
    ("late", "late"),
    ("missed", "missed"),
    ("failed", "failed"),
)
_SHADES: Final = ("#9fc8d4", "#2a7f9e", "#0f3d4f")


def draw(comparison: Comparison, path: Path) -> None:
    """Write a PNG."""
    shown = cases(comparison)
    height = 3.2 + 0.26 * len(shown)
    figure, (top, left, right) = plt.subplots(
        3, 1, figsize=(11, height + 7.5), height_ratios=[height, 3.6, 3.6], layout="constrained"
    )
    _draw_cancel(top, comparison)
    _draw_memory(left, comparison)
    _draw_cost(right, comparison)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_cancel(axes: Axes, comparison: Comparison) -> None:
    shown = cases(comparison)
    for x, result in enumerate(comparison.results):
        for y, case in enumerate(shown):
            found = seen(result, case)
            kind = "none" if found is None else found.worst
            axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, color=_COLOURS[kind], linewidth=0))
            if found is not None and kind == "seen" and found.p50_ms is not None:
                axes.text(x, y, f"{found.p50_ms:.1f}", ha="center", va="center", color="white", fontsize=7)
            elif found is not None and kind == "missed":
                text = f"{found.outcomes['missed']}/{found.aborted}"
                axes.text(x, y, text, ha="center", va="center", color="white", fontsize=7)
    axes.set_xlim(-0.5, len(comparison.results) - 0.5)
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    axes.set_xticks(range(len(comparison.results)), comparison.names, rotation=20, ha="left")
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(shown)), [f"{case.stage}, {case.way}" for case in shown])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title("A client leaves: does the model server see it?", loc="left", fontweight="bold")
    handles = [Rectangle((0, 0), 1, 1, color=_COLOURS[kind]) for kind, _ in _LEGEND]
    axes.legend(handles, [name for _, name in _LEGEND], loc="upper left", bbox_to_anchor=(0, 0), ncols=6, frameon=False)


def _draw_memory(axes: Axes, comparison: Comparison) -> None:
    measured = [(result.name, _held(result.memory)) for result in comparison.results if result.memory is not None]
    sizes = sorted({size for _, held in measured for size in held})
    width = 0.8 / max(1, len(sizes))
    for number, size in enumerate(sizes):
        places = [x + (number - (len(sizes) - 1) / 2) * width for x in range(len(measured))]
        label = f"{size >> 10} KiB prompt" if size < 1 << 20 else f"{size >> 20} MiB prompt"
        heights = [held.get(size, 0.0) / 1024 for _, held in measured]
        axes.bar(places, heights, width, label=label, color=_SHADES[number % len(_SHADES)])
    _finish(axes, "Held while an answer streams", "KiB per stream", [name for name, _ in measured])


def _held(memory: MemoryReport) -> dict[int, float]:
    """Bytes per stream by body size; at least one, for a logarithmic axis."""
    return {one.size: max(1.0, one.retained_per_stream or 0.0) for one in memory.sizes}


def _draw_cost(axes: Axes, comparison: Comparison) -> None:
    found = [(result.name, result.cost) for result in comparison.results if result.cost is not None]
    for number, (label, values) in enumerate(
        (
            ("per small request", [statistics.median(cost.request) for _, cost in found]),
            ("per streamed event", [statistics.median(cost.event) for _, cost in found]),
        )
    ):
        places = [x + (number - 0.5) * 0.4 for x in range(len(found))]
        bars = axes.bar(places, values, 0.4, label=label, color=_SHADES[number])
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    _finish(axes, "CPU of the proxy", "µs", [name for name, _ in found])


def _finish(axes: Axes, title: str, unit: str, names: Sequence[str]) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_ylabel(unit)
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    if names:
        axes.set_yscale("log")
        axes.legend(frameon=False)
