"""The cancel sweep: scripted exchanges are ended at every step there is, in every way, and leave nothing behind.

A sweep plays an exchange again and again, with its move one step later each time, until the exchange is over before
the move is made. Then each step is swept once more with a second move in the middle of the clean-up after the first.
With TLS, whose handshakes and goodbyes are steps too, a step costs four times as much: a cancel comes at every one, and
every move at every one of some exchanges; of the others, moves take turns at the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pytest
import trio

from network import Peer

from .exchanges import OK, SCENARIOS, SMALL, TLS_SCENARIOS, answers, chat, says_nothing, scenario
from .play import Ending, Kind, Move, Scenario, play

GOODBYE: Final = 1.0
"""Seconds that one may take."""
STALLS: Final = frozenset({Move.CLIENT_STALLS, Move.UPSTREAM_STALLS})

MOVES: Final[Mapping[Kind, Sequence[Move]]] = {
    Kind.SOCKETS: [move for move in Move if move not in (Move.CLIENT_CUTS, Move.UPSTREAM_CUTS)],
    # A stream knows no reset, and what an upstream does is the same on both.
    Kind.STREAMS: [Move.CANCEL, Move.CLIENT_CLOSES, Move.DEADLINE_PASSES],
    Kind.TLS: list(Move),
}
TWICE: Final = (
    (Move.CANCEL, Move.CLIENT_RESETS),
    (Move.CLIENT_CLOSES, Move.CANCEL),
    (Move.CLIENT_RESETS, Move.UPSTREAM_RESETS),
    (Move.UPSTREAM_RESETS, Move.CANCEL),
    (Move.UPSTREAM_CLOSES, Move.CLIENT_CLOSES),
)
STREAM_TWICE: Final = ((Move.CLIENT_CLOSES, Move.CANCEL), (Move.UPSTREAM_CLOSES, Move.CANCEL))
TLS_TWICE: Final = (
    (Move.CLIENT_STALLS, Move.CANCEL),  # nobody takes the goodbye
    (Move.UPSTREAM_STALLS, Move.CANCEL),
    (Move.CANCEL, Move.CLIENT_STALLS),
    (Move.CLIENT_CLOSES, Move.CANCEL),
    (Move.CLIENT_CUTS, Move.UPSTREAM_CUTS),
    (Move.UPSTREAM_CUTS, Move.CLIENT_RESETS),
    (Move.DEADLINE_PASSES, Move.CANCEL),
)
PAIRS: Final[Mapping[Kind, Sequence[tuple[Move, Move]]]] = {
    Kind.SOCKETS: TWICE,
    Kind.STREAMS: STREAM_TWICE,
    Kind.TLS: TLS_TWICE,
}
GAPS: Final = 4
"""The second move comes 0 to 3 steps after the first: most clean-ups take no more."""

TURNS: Final = 4
"""So many steps lie between two that a move comes at, with TLS."""
IN_FULL: Final = frozenset(
    {
        "streamed response",
        "chunked upload, streamed through",
        "keep-alive",
        "second endpoint",
        "HTTP/1.0",
    }
)
"""Exchanges that every move comes to at every step, with TLS too."""

_BY_NAME: Final = {each.name: each for each in (*SCENARIOS, *TLS_SCENARIOS)}
_PLAYS: Final = [
    pytest.param(each.name, kind, id=f"{each.name}-{kind.name}")
    for kind in Kind
    for each in (*SCENARIOS, *(TLS_SCENARIOS if kind is Kind.TLS else ()))
]
all_plays: Final = pytest.mark.parametrize(("name", "kind"), _PLAYS)


def check(played: Scenario, ending: Ending, moves: Sequence[Move], *, kind: Kind) -> None:
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
    assert ending.forwarded_late == 0
    if Move.CANCEL not in moves:
        assert outcomes["drained"] == 0
    if not moves:
        assert outcomes["client_closed"] == played.outcomes.get("client_closed", 0)
    if played.framed:
        # What counts as completed was handed over whole, and nothing was that does not.
        own = outcomes["refused"] + outcomes["upstream_error"] + outcomes["upstream_timeout"]
        assert outcomes["completed"] <= ending.answers <= outcomes["completed"] + own
    if ending.left is Move.CANCEL or (ending.left is not None and kind is not Kind.STREAMS):
        # At once, but for a goodbye of TLS that nobody takes.
        assert ending.delay <= (GOODBYE if kind is Kind.TLS and STALLS & set(moves) else 0)


@all_plays
def test_undisturbed(name: str, kind: Kind) -> None:
    undisturbed = _BY_NAME[name]
    ending = play(undisturbed, {}, kind=kind)
    assert {outcome: n for outcome, n in ending.statistics.outcomes.items() if n} == undisturbed.outcomes
    assert undisturbed.waits == (ending.delay > 0)
    check(undisturbed, ending, (), kind=kind)


def play_and_check(played: Scenario, moves: Mapping[int, Sequence[Move]], kind: Kind) -> bool:
    """Play with these moves; returns whether the exchange was not over before the first of them."""
    try:
        ending = play(played, moves, kind=kind)
        if ending.moved:
            check(played, ending, [move for step in moves.values() for move in step], kind=kind)
    except Exception as error:
        error.add_note(f"moves by step: {moves}")
        raise
    return ending.moved


@all_plays
def test_cancel_at_every_step(name: str, kind: Kind) -> None:
    number = list(_BY_NAME).index(name)
    for turn, move in enumerate(MOVES[kind], number):
        every = kind is not Kind.TLS or move is Move.CANCEL or name in IN_FULL
        step = 1 if every else 1 + turn % TURNS
        while play_and_check(_BY_NAME[name], {step: [move]}, kind):
            step += 1 if every else TURNS
        assert step > 5


@all_plays
def test_second_move_during_clean_up(name: str, kind: Kind) -> None:
    # Every step, and every gap at a step, for some of the pairs: all of them take minutes.
    stride = 6 if kind is Kind.TLS else 2
    for number, (first, second) in enumerate(PAIRS[kind], list(_BY_NAME).index(name)):
        step, moved = 1 + number % stride, True
        while moved:
            gap = (step // stride + number) % GAPS
            moves = {step: [first], step + gap: [second]} if gap else {step: [first, second]}
            moved = play_and_check(_BY_NAME[name], moves, kind)
            step += stride


def test_leaving_with_the_whole_request() -> None:
    """Request and farewell are read before the request's task has run: no upstream is asked."""

    async def client(peer: Peer) -> None:
        await trio.sleep(1)
        peer.end.send_nowait([chat(SMALL)])  # and closes in the same step

    for kind in Kind:
        ending = play(scenario("request and FIN", client, answers(OK)), {}, kind=kind)
        assert ending.statistics.outcomes["client_closed"] == ending.begun == 1
        assert ending.forwarded == 0


def test_leaving_with_the_whole_second_request() -> None:
    """The same where a connection to the upstream is at hand: it is not wasted either."""

    async def client(peer: Peer) -> None:
        await peer.send(chat(SMALL))
        await peer.until(b"ok")
        await trio.sleep(1)
        peer.end.send_nowait([chat(SMALL)])  # and closes in the same step

    ending = play(scenario("request and FIN", client, answers(OK)), {}, kind=Kind.SOCKETS)
    assert ending.statistics.outcomes["completed"] == ending.statistics.outcomes["client_closed"] == 1
    assert ending.forwarded == 1
    assert ending.pooled == 1


@pytest.mark.parametrize("kind", Kind)
def test_abort_is_synchronous(kind: Kind) -> None:
    """The upstream is reset by the reader that sees the client leave, before the request's task is unwound."""

    async def client(peer: Peer) -> None:
        await peer.send(chat(SMALL))
        await trio.sleep(1)

    ending = play(scenario("leaves in prefill", client, says_nothing), {}, kind=kind)
    assert ending.statistics.outcomes["client_closed"] == ending.begun == 1
    assert ending.delay == 1
    # The reader runs in the task that serves the client.
    tasks = {Kind.SOCKETS: "_serve_connection", Kind.STREAMS: "_serve_stream", Kind.TLS: "_serve_accepted"}
    assert ending.closed_by.rpartition(".")[2] == tasks[kind]


@pytest.mark.parametrize("kind", [Kind.SOCKETS, Kind.TLS])
def test_play_is_repeatable(kind: Kind) -> None:
    for step in range(1, 25):
        moves = {step: [Move.CLIENT_RESETS]}
        first, second = (play(_BY_NAME["keep-alive"], moves, kind=kind) for _ in range(2))
        assert first == second
