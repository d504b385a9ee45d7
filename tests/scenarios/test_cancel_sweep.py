"""The cancel sweep: scripted exchanges are ended at every step there is, in every way, and leave nothing behind.

A sweep plays an exchange again and again, with its move one step later each time, until the exchange is over before
the move is made. Then each step is swept once more with a second move in the middle of the clean-up after the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

import pytest

from tests.scenarios.exchanges import SCENARIOS
from tests.scenarios.play import Ending, Kind, Move, Scenario, play

LEAVES: Final = frozenset({Move.CANCEL, Move.CLIENT_CLOSES, Move.CLIENT_RESETS})
"""Moves after which nobody is left to serve."""

STREAM_MOVES: Final = (Move.CANCEL, Move.CLIENT_CLOSES, Move.UPSTREAM_CLOSES)
"""A stream knows no reset."""

TWICE: Final = (
    (Move.CANCEL, Move.CLIENT_RESETS),
    (Move.CLIENT_CLOSES, Move.CANCEL),
    (Move.CLIENT_RESETS, Move.UPSTREAM_RESETS),
    (Move.UPSTREAM_RESETS, Move.CANCEL),
    (Move.UPSTREAM_CLOSES, Move.CLIENT_CLOSES),
)
GAPS: Final = 4
"""The second move comes 0 to 3 steps after the first: most clean-ups take no more."""

_BY_NAME: Final = {scenario.name: scenario for scenario in SCENARIOS}


def check(scenario: Scenario, ending: Ending, moves: Sequence[Move], *, kind: Kind) -> None:
    """What holds whatever happened."""
    statistics = ending.statistics
    pool, outcomes = statistics.pool, statistics.outcomes
    assert not ending.log
    assert not ending.open_ends
    assert statistics.connections == 0
    assert not any(statistics.in_flight.values())
    assert (pool.idle, pool.held, pool.connecting) == (0, 0, 0)
    assert (statistics.body_bytes_held, statistics.body_violations) == (0, 0)
    assert sum(outcomes.values()) == ending.begun
    assert outcomes["internal_error"] == 0
    if Move.CANCEL not in moves:
        assert outcomes["drained"] == 0
    if not LEAVES & set(moves) and scenario.outcomes.get("client_closed") is None and not ending.moved:
        assert outcomes["client_closed"] == 0
    if scenario.framed:
        # What counts as completed was handed over whole, and nothing was that does not.
        own = outcomes["refused"] + outcomes["upstream_error"] + outcomes["upstream_timeout"]
        assert outcomes["completed"] <= ending.answers <= outcomes["completed"] + own
    if moves and moves[0] in LEAVES and (kind is Kind.SOCKETS or moves[0] is Move.CANCEL):
        assert ending.delay == 0


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("name", _BY_NAME)
def test_undisturbed(name: str, kind: Kind) -> None:
    scenario = _BY_NAME[name]
    ending = play(scenario, {}, kind=kind)
    assert {outcome: n for outcome, n in ending.statistics.outcomes.items() if n} == scenario.outcomes
    assert scenario.waits == (ending.delay > 0)
    check(scenario, ending, (), kind=kind)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("name", _BY_NAME)
def test_cancel_at_every_step(name: str, kind: Kind) -> None:
    scenario = _BY_NAME[name]
    for move in Move if kind is Kind.SOCKETS else STREAM_MOVES:
        for step in count(1):
            ending = play(scenario, {step: [move]}, kind=kind)
            if not ending.moved:
                break
            try:
                check(scenario, ending, [move], kind=kind)
            except AssertionError as error:
                error.add_note(f"{move.value} at step {step}: {ending}")
                raise


@pytest.mark.parametrize("name", _BY_NAME)
def test_second_move_during_clean_up(name: str) -> None:
    scenario = _BY_NAME[name]
    for number, (first, second) in enumerate(TWICE):
        for step in count(1):
            gap = (step + number) % GAPS
            moves = {step: [first, second]} if gap == 0 else {step: [first], step + gap: [second]}
            ending = play(scenario, moves, kind=Kind.SOCKETS)
            if not ending.moved:
                break
            try:
                check(scenario, ending, [first, second], kind=Kind.SOCKETS)
            except AssertionError as error:
                error.add_note(f"{first.value} at step {step}, {second.value} {gap} later: {ending}")
                raise


def test_play_is_repeatable() -> None:
    scenario = _BY_NAME["keep-alive"]
    for step in range(1, 25):
        moves = {step: [Move.CLIENT_RESETS]}
        assert play(scenario, moves, kind=Kind.SOCKETS) == play(scenario, moves, kind=Kind.SOCKETS)
