"""How an endpoint does, and whom a request goes to: on the virtual clock, without connections."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from trioproxy.config import Health
from trioproxy.net import connect
from trioproxy.upstream.group import Group, Groups
from trioproxy.upstream.health import HealthState

PLAN = Health(path="/health", fall=2, rise=2, failures=3, aside=10, aside_most=30, slow_start=10)


def group_of(count: int, plan: Health = PLAN) -> Group:
    groups = Groups(connect)
    groups.replace({"g": [f"http://10.0.0.{n}" for n in range(count)]}, keep_alive=4, tls=None, health=plan)
    return groups.by_name["g"]


def firsts(group: Group, requests: int) -> Counter[str]:
    """How often each endpoint was the first to be tried."""
    return Counter(group.candidates()[0].pool.endpoint.host for _ in range(requests))


def fail(group: Group, number: int, times: int) -> None:
    for _ in range(times):
        group.failed(group.members[number], "a reason")


def test_it_is_set_aside_for_a_time_that_doubles() -> None:
    state = HealthState(PLAN)
    assert [state.request_failed() for _ in range(3)] == [False, False, True]
    times: list[float] = []
    now = 0.0
    for _ in range(4):
        times.append(state.set_aside(now))
        assert not state.available(now + times[-1] - 0.01)
        now += times[-1]
        assert state.available(now)
        assert state.request_failed()  # the first failure is enough now
    assert times == [10, 20, 30, 30]
    assert state.request_succeeded(now)
    assert not state.failing
    assert [state.request_failed() for _ in range(3)] == [False, False, True]
    assert state.set_aside(now) == 10


def test_failures_that_are_not_in_a_row_are_forgotten() -> None:
    state = HealthState(PLAN)
    for _ in range(10):
        assert not state.request_failed()
        assert not state.request_failed()
        assert not state.request_succeeded(0)


def test_probes_take_it_down_and_up() -> None:
    state = HealthState(PLAN)
    assert [state.probed(ok, 0) for ok in (False, True, False, False, False)] == [False, False, False, True, False]
    assert not state.available(0)
    assert [state.probed(ok, 5) for ok in (True, False, True, True)] == [False, False, False, True]
    assert state.available(5)
    assert [state.share(now) for now in (5, 10, 15)] == [0.1, 0.5, 1.0]


def test_a_probe_that_succeeds_ends_its_time_aside() -> None:
    state = HealthState(PLAN)
    for _ in range(3):
        state.request_failed()
    state.set_aside(0)
    assert not state.available(1)
    state.probed(True, 1)
    assert state.available(1)


@given(st.lists(st.sampled_from(["fail", "succeed", "ok", "bad", "wait"]), max_size=60))
def test_whatever_happens_it_can_come_back(steps: list[str]) -> None:
    state, now = HealthState(PLAN), 0.0
    for step in steps:
        match step:
            case "fail":
                if state.request_failed():
                    state.set_aside(now)
            case "succeed":
                state.request_succeeded(now)
            case "ok" | "bad":
                state.probed(step == "ok", now)
            case _:
                now += 7
        assert 0 < state.share(now) <= 1
    state.probed(True, now)
    state.probed(True, now)
    assert state.available(now)
    state.request_succeeded(now)
    assert not state.failing


async def test_endpoints_take_turns(autojump_clock: MockClock) -> None:  # noqa: ASYNC124 - the clock is Trio's
    group = group_of(3)
    assert firsts(group, 300) == {"10.0.0.0": 100, "10.0.0.1": 100, "10.0.0.2": 100}
    for _ in range(5):
        assert len({member.pool.endpoint.host for member in group.candidates()}) == 3


async def test_one_that_fails_comes_last_until_its_time_is_over(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    group = group_of(3)
    fail(group, 1, 3)
    assert "upstream http://10.0.0.1 is set aside for 10 s: 3 requests in a row failed, the last since a reason" in (
        caplog.text
    )
    assert firsts(group, 100) == {"10.0.0.0": 50, "10.0.0.2": 50}
    assert group.candidates()[-1].pool.endpoint.host == "10.0.0.1"
    await trio.sleep(10.01)
    assert 1 <= firsts(group, 100)["10.0.0.1"] <= 10  # a tenth of its share, at first
    fail(group, 1, 1)
    assert firsts(group, 100)["10.0.0.1"] == 0
    await trio.sleep(19)
    assert firsts(group, 100)["10.0.0.1"] == 0
    await trio.sleep(12)
    assert firsts(group, 99)["10.0.0.1"] >= 30
    with caplog.at_level(logging.WARNING):
        group.succeeded(group.members[1])
    assert "http://10.0.0.1 serves requests again" in caplog.text


async def test_never_the_last_and_at_most_a_share(autojump_clock: MockClock) -> None:  # noqa: ASYNC124 - the clock is Trio's
    alone = group_of(1)
    fail(alone, 0, 50)
    assert firsts(alone, 10) == {"10.0.0.0": 10}
    assert not alone.ready
    two = group_of(2)
    fail(two, 0, 50)
    fail(two, 1, 50)
    assert set(firsts(two, 10)) == {"10.0.0.1"}
    four = group_of(4)
    for number in range(4):
        fail(four, number, 50)
    assert set(firsts(four, 10)) == {"10.0.0.2", "10.0.0.3"}
    assert not four.ready
    four.succeeded(four.members[3])
    assert four.ready


async def test_when_all_are_down_they_are_tried_all_the_same(autojump_clock: MockClock) -> None:  # noqa: ASYNC124 - the clock is Trio's
    group = group_of(2)
    for member in group.members:
        for _ in range(2):
            group.probed(member, "no answer")
    assert not group.ready
    assert len(group.candidates()) == 2


async def test_a_drained_one_gets_nothing(autojump_clock: MockClock) -> None:  # noqa: ASYNC124 - the clock is Trio's
    group = group_of(2)
    assert group.drain("http://10.0.0.0")
    assert not group.drain("http://10.0.0.9")
    for _ in range(5):
        assert [member.pool.endpoint.host for member in group.candidates()] == ["10.0.0.1"]
    fail(group, 1, 50)
    assert [member.pool.endpoint.host for member in group.candidates()] == ["10.0.0.1"]
    assert group.drain("http://10.0.0.0", drained=False)
    assert set(firsts(group, 10)) == {"10.0.0.0"} | set(firsts(group, 10))
