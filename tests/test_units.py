"""Durations and sizes as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioproxy.units import DURATION, SIZE, Quantity


@pytest.mark.parametrize(
    ("quantity", "text", "number"),
    [
        (DURATION, "400ms", 0.4),
        (DURATION, "700ms", 0.7),
        (DURATION, "5s", 5),
        (DURATION, "1.5m", 90),
        (DURATION, "2 h", 7200),
        (DURATION, "0s", 0),
        (DURATION, "off", math.inf),
        (DURATION, "inf", math.inf),
        (SIZE, "16MiB", 16 << 20),
        (SIZE, "1.5KiB", 1536),
        (SIZE, "1MB", 1_000_000),
        (SIZE, "3B", 3),
    ],
)
def test_texts(quantity: Quantity, text: str, number: float) -> None:
    assert quantity.parse(text) == number


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-1s", "1e3s", "5S", "5 days", "٣s", "1_0s", "1s ", "9" * 16 + "s", ".5s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        DURATION.parse(text)


@pytest.mark.parametrize("text", ["off", "0B", "0.3B", "1mb", "16M"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="must be a"):
        SIZE.parse(text)


@pytest.mark.parametrize("number", [-1, math.nan, -math.inf, 10**15, 10**400])
@pytest.mark.parametrize(("quantity", "unit"), [(DURATION, "ms"), (SIZE, "MiB")])
def test_numbers_that_are_none(quantity: Quantity, unit: str, number: float) -> None:
    with pytest.raises(ValueError, match="must be a number of"):
        quantity.of_number(number, unit)


def test_numbers_with_a_unit() -> None:
    assert (DURATION.of_number(400, "ms"), DURATION.of_number(0.5, "h"), DURATION.of_number(math.inf, "s")) == (
        0.4,
        1800,
        math.inf,
    )
    assert SIZE.of_number(1.5, "KiB") == 1536
    with pytest.raises(ValueError, match="whole number of bytes"):
        SIZE.of_number(0.5, "B")


def test_the_unit_that_is_written_is_the_largest_that_fits() -> None:
    assert [DURATION.write(number) for number in (0, 0.4, 5, 90, 600, 7200, math.inf)] == [
        "0ms",
        "400ms",
        "5s",
        "90s",
        "10m",
        "2h",
        "off",
    ]
    assert [SIZE.write(number) for number in (1, 1000, 1024, 64 << 20, 10**9, 1500)] == [
        "1B",
        "1kB",
        "1KiB",
        "64MiB",
        "1GB",
        "1500B",
    ]


@given(st.floats(min_value=0, max_value=1e12, allow_subnormal=False) | st.just(math.inf))
def test_any_duration_is_read_as_it_was_written(number: float) -> None:
    number = 0 if number < 1e-20 else number
    assert DURATION.parse(DURATION.write(number)) == number


@given(st.integers(min_value=1, max_value=10**14))
def test_any_size_is_read_as_it_was_written(number: int) -> None:
    assert SIZE.parse(SIZE.write(number)) == number
