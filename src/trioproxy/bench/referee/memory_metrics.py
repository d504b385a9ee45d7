"""Figures of memory: their definitions, the straight lines laid through samples, and what a run's parts come to.

Lives here: arithmetic on what was measured, and the table from which the docs and the messages of ``--require`` are
made. Does not live here: measuring (memory_streams.py, memory_leaks.py, memory_unread.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from .metrics import Definition, Metrics

MEMORY: Final = (
    Definition("requests", "requests", "played through the proxy"),
    Definition("failed_requests", "requests", "that did not come to their stage or did not get their own whole answer"),
    Definition("idle_bytes", "bytes", "of the process tree after some small requests, the most of all processes"),
    Definition("waiting_bytes_per_stream", "bytes", "above idle while the upstream sends nothing; most of all sizes"),
    Definition("waiting_slope", "bytes per byte", "of them, retained for each byte of the body, over the sizes"),
    Definition("retained_bytes_per_stream", "bytes", "above idle after the first token; the most of all body sizes"),
    Definition("retained_bytes_smallest", "bytes", "the same, with the smallest body"),
    Definition("retained_bytes_largest", "bytes", "the same, with the largest body"),
    Definition("retained_slope", "bytes per byte", "retained after the first token for each byte of the body"),
    Definition("upload_peak_copies", "bodies", "the largest body's peak while uploaded alone, over its size"),
    Definition("given_back_share", "share", "of the growth at its peak, given back after the streams; largest body"),
    Definition("kept_after_bytes", "bytes", "above idle some seconds after the streams; the most of all sizes"),
    Definition("leak_completed_bytes", "bytes", "growth for each 1,000 requests completed, over rounds"),
    Definition("leak_cancelled_bytes", "bytes", "growth for each 1,000 requests cancelled, over rounds"),
    Definition("unread_bytes_held", "bytes", "the most above idle while a client reads nothing of a long stream"),
    Definition("unread_bytes_taken", "bytes", "of that stream, sent by the model server meanwhile; buffers included"),
    Definition("flowing_bytes_held", "bytes", "the most above idle once that client reads, as fast as it can"),
)
"""All figures of ``trioproxy bench memory``."""

NOISE: Final = 2**20
"""Bytes of growth below which no share of it is told: what an idle process moves by."""


class Line(msgspec.Struct, frozen=True):
    """A straight line by least squares."""

    slope: float
    intercept: float
    error: float | None
    """The slope's standard error; null for fewer than three points."""


def fit(points: Sequence[tuple[float, float]]) -> Line | None:
    """The line through points (x, y); None if their x are not at least two different ones."""
    xs = [x for x, _ in points]
    if len(set(xs)) < 2:
        return None
    slope, intercept = statistics.linear_regression(xs, [y for _, y in points])
    if len(points) < 3:
        return Line(slope, intercept, None)
    left = sum((y - intercept - slope * x) ** 2 for x, y in points)
    spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    return Line(slope, intercept, (left / (len(points) - 2) / spread) ** 0.5)


class SizeResult(msgspec.Struct, kw_only=True, frozen=True):
    """Streams with bodies of one size. Bytes above the idle proxy, null for what was not measured."""

    size: int
    """Bytes of each body."""
    process: int
    """Which of the run's processes it was."""
    streams: int
    """That were held: the failed are not among them."""
    failed: int
    why: dict[str, int]
    """What was said about the failed ones, and how often."""
    idle_bytes: int
    """Of the warm proxy before."""
    upload_peak_bytes: int | None = None
    """The most while the first body was uploaded alone."""
    peak_exact: bool = False
    """Whether that is the kernel's own peak (VmHWM), else the highest sample."""
    peak_bytes: int | None = None
    """The highest sample of all."""
    waiting_bytes: int | None = None
    """When the model server had all bodies and had sent nothing."""
    retained_bytes: int | None = None
    """When it had sent each stream's first token."""
    kept_bytes: int | None = None
    """When all streams had ended, some seconds later."""

    @property
    def waiting_per_stream(self) -> float | None:
        """Bytes."""
        return _each(self.waiting_bytes, self.streams)

    @property
    def retained_per_stream(self) -> float | None:
        """Bytes."""
        return _each(self.retained_bytes, self.streams)

    @property
    def upload_copies(self) -> float | None:
        """How many bodies the peak was."""
        return None if self.upload_peak_bytes is None else self.upload_peak_bytes / self.size

    @property
    def given_back(self) -> float | None:
        """Share of the growth at its peak; None if there was hardly any."""
        if self.kept_bytes is None or self.peak_bytes is None or self.peak_bytes < NOISE:
            return None
        return 1 - max(0, self.kept_bytes) / self.peak_bytes


def _each(total: int | None, streams: int) -> float | None:
    return None if total is None or streams == 0 else total / streams


class LeakResult(msgspec.Struct, kw_only=True, frozen=True):
    """Memory over rounds of requests of one kind."""

    kind: str
    """``completed`` or ``cancelled``."""
    process: int
    failed: int
    why: dict[str, int]
    missed: int
    """Whose leaving the model server was not told of."""
    rounds: list[tuple[int, int]]
    """After each round: requests so far and bytes, the rounds of warming up not among them."""

    @property
    def line(self) -> Line | None:
        """Bytes over requests."""
        return fit([(float(requests), float(held)) for requests, held in self.rounds])

    @property
    def per_thousand(self) -> float | None:
        """Bytes for each 1,000 requests."""
        line = self.line
        return None if line is None else 1000 * line.slope


class UnreadResult(msgspec.Struct, kw_only=True, frozen=True):
    """A long stream to a client that reads nothing for some seconds, then everything. Bytes."""

    process: int
    size: int
    """Of all tokens' text."""
    held: int
    """The most above idle while nothing was read."""
    taken: int
    """Sent by the model server meanwhile: to the proxy, and to the system's buffers on both sides of it."""
    flowing: int | None
    """The most above idle while everything was read."""
    why: str | None
    """What was wrong with the answer, null if it came whole."""


def overall(
    requests: int,
    sizes: Sequence[SizeResult],
    leaks: Sequence[LeakResult],
    unread: UnreadResult | None,
) -> Metrics:
    """All figures by name; None for what was not measured."""
    metrics: Metrics = {definition.name: None for definition in MEMORY}
    lost = sum(size.failed for size in sizes) + sum(leak.failed for leak in leaks)
    metrics |= {"requests": requests, "failed_requests": lost + (unread is not None and unread.why is not None)}
    if sizes:
        largest = max(sizes, key=lambda one: one.size)
        smallest = min(sizes, key=lambda one: one.size)
        metrics |= {
            "idle_bytes": max(one.idle_bytes for one in sizes),
            "waiting_bytes_per_stream": _most(one.waiting_per_stream for one in sizes),
            "waiting_slope": over_size(sizes, lambda one: one.waiting_per_stream),
            "retained_bytes_per_stream": _most(one.retained_per_stream for one in sizes),
            "retained_bytes_smallest": smallest.retained_per_stream,
            "retained_bytes_largest": largest.retained_per_stream,
            "retained_slope": over_size(sizes, lambda one: one.retained_per_stream),
            "upload_peak_copies": largest.upload_copies,
            "given_back_share": largest.given_back,
            "kept_after_bytes": _most(one.kept_bytes for one in sizes),
        }
    for leak in leaks:
        metrics[f"leak_{leak.kind}_bytes"] = leak.per_thousand
    if unread is not None:
        metrics |= {
            "unread_bytes_held": unread.held,
            "unread_bytes_taken": unread.taken,
            "flowing_bytes_held": unread.flowing,
        }
    return metrics


def over_size(sizes: Iterable[SizeResult], value: Callable[[SizeResult], float | None]) -> float | None:
    """Bytes of ``value`` for each byte of the body."""
    points = [(float(one.size), found) for one in sizes if (found := value(one)) is not None]
    line = fit(points)
    return None if line is None else line.slope


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
