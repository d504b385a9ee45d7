"""What a proxy does at SIGTERM: how long it takes to end, and whether it cuts streams that are about to end anyway.

Lives here: two small runs, each with a process of its own. Only for proxies that were started here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio

from .play import CONTROL, Play, Request, play_once
from .report import DrainResult
from .target import Target

STREAMS: Final = 10
_LENGTH: Final = 1.0
"""Seconds that the streams in flight still take at SIGTERM, about."""
_WAIT: Final = 10.0
"""Seconds in which a proxy that drains has to end, beyond the streams' own time."""

Start = Callable[[], AbstractAsyncContextManager[Target]]


async def measure_drain(play: Play, start: Start, size: int) -> DrainResult:
    """Start a process twice and end it: idle, and with streams in flight.

    :raises TargetError: it does not start.
    """
    idle: float | None = None
    async with start() as target:
        await play_once(Request(play, CONTROL, "proxy", "single", target.address, size), lambda: None)
        told = time.monotonic()
        target.terminate()
        with trio.move_on_after(_WAIT):
            idle = (await target.ended() - told) * 1000
    async with start() as target:
        busy, cut = await _busy(play, target, size)
    return DrainResult(idle=idle, busy=busy, streams=STREAMS, cut=cut)


async def _busy(play: Play, target: Target, size: int) -> tuple[float | None, int]:
    tokens = int(_LENGTH / play.pace.interval)
    requests = [
        Request(play, CONTROL, "proxy", "single", target.address, size, more={"tokens": tokens}) for _ in range(STREAMS)
    ]
    busy: float | None = None
    try:
        async with trio.open_nursery() as nursery:
            for request in requests:
                await request.begin()
                nursery.start_soon(request.finish)
            await trio.sleep(_LENGTH / 4)
            told = time.monotonic()
            target.terminate()
            with trio.move_on_after(_LENGTH + _WAIT):
                ended = await target.ended()
                last = max((request.client.times.ended or told for request in requests if request.client), default=told)
                busy = max(0.0, ended - max(last, told)) * 1000
            nursery.cancel_scope.cancel()
        cut = sum(not request.response.complete for request in requests)
    finally:
        for request in requests:
            request.close()
            play.index.forget(request.id)
    return busy, cut
