"""The judgement over a group, on plain values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trioproxy.bench.referee.engine_judge import GroupFacts, Level, judge
from trioproxy.bench.referee.engine_metrics import Sample


def at(time: float, running: float, tokens: float, *, finished: float | None = 0, waiting: float = 0) -> Sample:
    return Sample(time - 0.01, time, running, waiting, tokens, 0.0, finished)


BEGAN = at(0, 0, 1000)
LEAVING = at(2, 5, 1050)
FREED = [at(2.1, 5, 1060), at(2.2, 0, 1062), at(2.3, 0, 1062)]
GROUP = GroupFacts(
    count=5,
    asked=300,
    seen=50,
    level=Level(),
    began=BEGAN,
    leaving=LEAVING,
    left=2.05,
    after=FREED,
    live=True,
)


def test_a_group_that_is_freed() -> None:
    verdict = judge(GROUP)
    assert (verdict.missed, verdict.served, verdict.kept, verdict.started) == (0, 0, 0, True)
    assert verdict.freed_ms == pytest.approx(150)
    assert verdict.worked_ms == pytest.approx(150)
    assert verdict.tokens == 12
    assert verdict.engine_seconds == pytest.approx(5 * 0.15), "from the leaving to the page that told of the fall"


def test_one_that_is_not_while_it_is_watched() -> None:
    verdict = judge(replace(GROUP, after=[at(2.1, 5, 1100), at(4.05, 3, 1500)]))
    assert (verdict.missed, verdict.freed_ms, verdict.tokens) == (3, None, 450)
    assert verdict.engine_seconds == pytest.approx(5 * 2.0)


def test_one_that_comes_to_its_end_is_missed_although_the_gauge_falls() -> None:
    verdict = judge(replace(GROUP, after=[at(2.1, 5, 1100), at(3, 0, 2500, finished=5)]))
    assert (verdict.missed, verdict.tokens) == (5, 1450)


def test_an_engine_that_does_not_say_how_many_ended_is_judged_by_tokens() -> None:
    leaving = replace(LEAVING, finished=None)
    after = [replace(sample, finished=None) for sample in (at(2.1, 5, 1100), at(3, 0, 1650))]
    assert judge(replace(GROUP, leaving=leaving, after=after)).missed == 2, "600 of the 290 that each had left"


def test_tokens_that_are_counted_when_a_request_ends() -> None:
    began, leaving = replace(BEGAN, finished=None), replace(LEAVING, tokens=1000, finished=None)
    group = replace(GROUP, began=began, leaving=leaving, live=False)
    freed = judge(replace(group, after=[at(2.2, 0, 1000, finished=None)]))
    assert (freed.missed, freed.tokens) == (0, 0)
    ran_on = judge(replace(group, after=[at(2.2, 5, 1000, finished=None), at(4, 0, 2500, finished=None)]))
    assert (ran_on.missed, ran_on.tokens) == (5, 1450)


def test_nothing_was_there_to_be_freed() -> None:
    verdict = judge(replace(GROUP, leaving=at(2, 0, 1000), after=[at(2.2, 0, 1000)], seen=0))
    assert (verdict.started, verdict.missed, verdict.tokens) == (False, 0, 0)


def test_a_gauge_that_has_not_risen_yet_is_none_that_has_fallen() -> None:
    verdict = judge(replace(GROUP, leaving=at(2, 0, 1000), after=[at(2.1, 0, 1000), at(2.9, 0, 1005)]))
    assert verdict.started
    assert verdict.freed_ms == pytest.approx(850)


def test_a_gauge_that_stood_still_counts_until_the_last_work() -> None:
    after = [at(2.1, 5, 1060), at(2.3, 5, 1060), at(2.7, 5, 1060), at(2.9, 0, 1061)]
    verdict = judge(replace(GROUP, after=after, refreshed=[2.75]))
    assert (verdict.refreshed, verdict.missed, verdict.tokens) == (True, 0, 10)
    assert verdict.freed_ms == pytest.approx(850)
    assert verdict.worked_ms == pytest.approx(50)
    assert verdict.engine_seconds == pytest.approx(5 * 0.05)


def test_half_closes_that_are_served_waste_nothing() -> None:
    after = [at(2.1, 5, 1100), at(3, 2, 2000, finished=3)]
    verdict = judge(replace(GROUP, after=after, served=3, connected=2))
    assert (verdict.missed, verdict.served, verdict.kept) == (0, 3, 2)
    assert (verdict.tokens, verdict.engine_seconds) == (0, 0)


def test_half_closes_that_are_freed_waste_what_others_do() -> None:
    assert judge(GROUP) == judge(replace(GROUP, connected=5)), "connected still, but nobody works for them"


def test_what_others_do_is_taken_off() -> None:
    level = Level(running=2, busy=3, tokens_per_second=100)
    after = [at(2.1, 7, 1070, waiting=1), at(3, 2, 1200, waiting=1)]
    verdict = judge(replace(GROUP, level=level, after=after))
    assert (verdict.missed, verdict.tokens) == (0, 50)
    assert verdict.engine_seconds == pytest.approx(3 * 0.05 + 5 * 0.9)
