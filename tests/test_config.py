"""Settings: the defaults that are promised, and what is refused."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

import pytest

from trioproxy import Deadlines, Limits, Settings


def test_the_defaults() -> None:
    assert dataclasses.asdict(Deadlines()) == {
        "connect": 5,
        "first_byte": 600,
        "first_event": 600,
        "idle": 300,
        "total": math.inf,
        "handshake": 10,
        "head": 10,
        "body_stall": 30,
        "write_stall": 60,
        "client_keep_alive": 75,
        "upstream_keep_alive": 4,
        "linger": 5,
        "overload": 5,
        "drain": 30,
        "vanished": 30,
    }
    limits = Limits()
    assert (limits.head_size, limits.head_fields, limits.target_size) == (65536, 100, 8192)
    assert limits.body_size <= limits.bodies_size
    assert (Settings().body, Settings().client_half_close, Settings().codec) == ("auto", "cancel", "llhttp")


@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(Deadlines)])
@pytest.mark.parametrize("value", [-1.0, -math.inf, math.nan])
def test_a_deadline_that_is_none(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"deadline '{name}' must be a number of seconds ≥ 0"):
        Deadlines(**{name: value})


@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(Deadlines) if item.name != "vanished"])
@pytest.mark.parametrize("value", [0, 0.5, math.inf])
def test_a_deadline(name: str, value: float) -> None:
    assert getattr(Deadlines(**{name: value}), name) == value


@pytest.mark.parametrize("value", [4, 7.5, 32767, math.inf])
def test_when_a_peer_counts_as_vanished(value: float) -> None:
    assert Deadlines(vanished=value).vanished == value


@pytest.mark.parametrize("value", [0, 3.9, 32768, 1e300])
def test_when_no_system_could_tell_that_a_peer_has_vanished(value: float) -> None:
    with pytest.raises(ValueError, match="deadline 'vanished' must be from 4 to 32767 s, or inf"):
        Deadlines(vanished=value)


@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(Limits)])
def test_a_limit(name: str) -> None:
    smallest = Limits(**{"body_size": 1, name: 1})
    assert getattr(smallest, name) == 1
    for value in (0, -1):
        with pytest.raises(ValueError, match=f"limit '{name}' must be a whole number above 0"):
            Limits(**{name: value})


@pytest.mark.parametrize("settings", [Deadlines(), Limits(), Settings()])
def test_settings_cannot_be_changed(settings: Deadlines | Limits | Settings) -> None:
    name = dataclasses.fields(settings)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(settings, name, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Settings(body="x"), "setting 'body' must be one of 'auto', 'buffer', 'stream', got 'x'"),  # type: ignore[arg-type]
        (lambda: Settings(client_half_close="no"), "must be one of 'cancel', 'allow', got 'no'"),  # type: ignore[arg-type]
        (lambda: Settings(codec="h12"), "setting 'codec' must be one of 'llhttp'"),  # type: ignore[arg-type]
        (lambda: Settings(resolve_interval=0), "'resolve_interval' must be above 0 s"),
        (lambda: Limits(body_size=1.5), "limit 'body_size' must be a whole number above 0, got 1.5"),  # type: ignore[arg-type]
        (lambda: Limits(bodies_size=10), "must not be below 'body_size'"),
        (lambda: Deadlines(idle="5"), "deadline 'idle' must be a number of seconds ≥ 0, got '5'"),  # type: ignore[arg-type]
    ],
)
def test_what_no_setting_can_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
