"""How many requests a proxy serves at the same time: a slot that an abort has lost is missing afterwards.

Lives here: one wave of requests that nobody aborts. Does not live here: when it is asked, and what follows (cancel.py).

Whether a slot was lost cannot be seen at the abort itself: the model server is told, and all is well until the pool is
empty. So the same wave is sent before the first abort and after the last.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import trio

from ..mock_record import RequestRecord
from .client import Address
from .play import CONTROL, Play, Request

_HOLD: Final = 1.0
"""Seconds that each request keeps its slot, so that all of a wave overlap, and a millisecond more for each of them."""


async def served_at_once(play: Play, address: Address, wave: int, size: int) -> int:
    """The most of ``wave`` requests, sent at once, that were with the model server at the same time.

    Those that a proxy has not sent on after twice their time are given up. Cancelled, all connections are closed.
    """
    hold = _HOLD + wave / 1000
    more: dict[str, object] = {"prefill": hold, "tokens": 1}
    requests = [Request(play, CONTROL, "proxy", "crowd", address, size, more=more) for _ in range(wave)]
    try:
        with trio.move_on_after(2 * hold + 0.5):
            async with trio.open_nursery() as nursery:
                for request in requests:
                    nursery.start_soon(_ask, request)
        now = time.monotonic()
        seen = [record for request in requests for record in play.index.seen(request.id)]
        return most_at_once(seen, now)
    finally:
        for request in requests:
            request.close()
            play.index.forget(request.id)


async def _ask(request: Request) -> None:
    await request.begin()
    await request.finish()
    request.close()


def most_at_once(records: Iterable[RequestRecord], now: float) -> int:
    """The most requests that a model server was at work on at the same time."""
    steps: list[tuple[float, int]] = []
    for record in records:
        if record.body_read is not None:
            ended = record.finished or record.abandoned or now
            steps += [(record.body_read, 1), (ended, -1)]
    most = running = 0
    for _, step in sorted(steps):
        running += step
        most = max(most, running)
    return most
