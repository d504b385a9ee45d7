"""Figures of memory: lines through samples, and what /proc says."""

from __future__ import annotations

import os

import pytest

from trioproxy.bench.memory_cli import size
from trioproxy.bench.referee.memory_metrics import (
    MEMORY,
    NOISE,
    LeakResult,
    Line,
    SizeResult,
    UnreadResult,
    fit,
    overall,
)
from trioproxy.bench.referee.memory_samples import HighWater, Resident, unsupported
from trioproxy.bench.referee.usage import own_bytes

ROLLUP = """\
557bf0e87000-7ffecd260000 ---p 00000000 00:00 0                          [rollup]
Rss:                2216 kB
Pss:                 613 kB
Pss_Anon:            148 kB
Pss_File:            465 kB
Pss_Shmem:            12 kB
Swap:                 40 kB
SwapPss:              20 kB
"""
STATUS = "Name:\tx\nVmHWM:\t 2268 kB\nVmRSS:\t 2200 kB\nRssAnon:\t 148 kB\nRssFile:\t 2000 kB\nRssShmem:\t 52 kB\n"


def test_the_own_part_of_a_process_is_what_is_no_mapped_file_and_what_was_swapped_out() -> None:
    assert own_bytes(ROLLUP) == (148 + 12 + 20) * 1024


def test_a_kernel_that_does_not_tell_is_an_error() -> None:
    with pytest.raises(OSError, match="no Pss_Anon"):
        own_bytes("Rss: 12 kB\n")


def test_resident_memory_is_read_from_the_status() -> None:
    assert Resident.parse(STATUS) == Resident(own=200 * 1024, file=2000 * 1024, peak=2268 * 1024)
    assert Resident.parse("Name:\tzombie\n") is None


@pytest.mark.skipif(unsupported() is not None, reason=f"memory cannot be read: {unsupported()}")
def test_the_kernels_peak_sees_what_is_gone_again() -> None:
    high = HighWater(os.getpid())
    block = bytearray(b"x") * (32 * 2**20)
    del block
    growth = high.growth()
    assert growth is not None
    assert 30 * 2**20 < growth < 70 * 2**20
    later = HighWater(os.getpid()).growth()
    assert later is not None
    assert later < 8 * 2**20


def test_a_line_by_least_squares() -> None:
    assert fit([(0, 1), (1, 3), (2, 5)]) == Line(slope=2.0, intercept=1.0, error=0.0)
    line = fit([(0, 0), (1, 2), (2, 1), (3, 3)])
    assert line is not None
    assert line.slope == pytest.approx(0.8)
    assert line.error == pytest.approx((1.8 / 2 / 5) ** 0.5)


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)]])
def test_no_line_through_less_than_two_places(points: list[tuple[float, float]]) -> None:
    assert fit(points) is None


def test_two_points_have_no_error() -> None:
    assert fit([(0, 1), (2, 5)]) == Line(2.0, 1.0, None)


def result(body: int, retained: int, *, streams: int = 10, kept: int = 0, peak: int = 10 * NOISE) -> SizeResult:
    return SizeResult(
        size=body,
        process=1,
        streams=streams,
        failed=0,
        why={},
        idle_bytes=1000,
        upload_peak_bytes=3 * body,
        peak_bytes=peak,
        waiting_bytes=2 * retained,
        retained_bytes=retained,
        kept_bytes=kept,
    )


def test_a_run_without_anything_has_all_names_and_zeros_for_counts() -> None:
    metrics = overall(0, [], [], None)
    assert list(metrics) == [definition.name for definition in MEMORY]
    assert {name: value for name, value in metrics.items() if value is not None} == {
        "requests": 0,
        "failed_requests": 0,
    }


def test_the_figures_of_a_run() -> None:
    leak = LeakResult(kind="cancelled", process=2, failed=3, why={"x": 3}, missed=0, rounds=[(100, 50), (200, 70)])
    unread = UnreadResult(process=2, size=10, held=7, taken=9, flowing=8, why="cut")
    sizes = [result(1000, 10_000, kept=500), result(3000, 30_000, kept=NOISE)]
    metrics = overall(42, sizes, [leak], unread)
    assert set(metrics) == {definition.name for definition in MEMORY}
    assert metrics["requests"] == 42
    assert metrics["failed_requests"] == 4
    assert metrics["retained_bytes_smallest"] == 1000
    assert metrics["retained_bytes_largest"] == metrics["retained_bytes_per_stream"] == 3000
    assert metrics["retained_slope"] == pytest.approx(1.0)
    assert metrics["waiting_slope"] == pytest.approx(2.0)
    assert metrics["upload_peak_copies"] == 3
    assert metrics["given_back_share"] == pytest.approx(0.9)
    assert metrics["kept_after_bytes"] == NOISE
    assert metrics["leak_cancelled_bytes"] == pytest.approx(200)
    assert metrics["leak_completed_bytes"] is None
    assert metrics["unread_bytes_held"] == 7
    assert metrics["flowing_bytes_held"] == 8


def test_no_share_of_hardly_any_growth() -> None:
    assert result(1000, 10, peak=NOISE - 1, kept=5).given_back is None


def test_streams_that_all_failed_have_no_figure_each() -> None:
    assert result(1000, 10, streams=0).retained_per_stream is None


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("12B", 12), ("4K", 4096), ("4KiB", 4096), ("2M", 2 << 20)])
def test_sizes(text: str, expected: int) -> None:
    assert size(text) == expected
