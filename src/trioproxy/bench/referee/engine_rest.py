"""An engine at rest, or not: whether others use it, and whether ours is over.

Lives here: waiting for gauges and counters to stand still, telling others' work from our own, and the small requests
that make an engine bring its gauges up to date. Does not live here: what a group of requests shows (engine_judge.py).

vLLM does not bring its gauges up to date when all of its requests were aborted and no step follows
(vllm-project/vllm#29928), SGLang does so every 30 s (sgl-project/sglang#26495). So gauges that are up while no work is
counted are suspected of standing still, and a request of one token makes the engine step.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from .engine_judge import Level
from .engine_metrics import EngineError, Sample
from .engine_play import EnginePace
from .engine_watch import EngineWatch

FIRST_LOOK: Final = 1.0
"""Seconds for which the engine must be at rest before anything is played."""
CALM: Final = 0.2
"""Seconds for which it must be at rest before the next group."""
BELATED: Final = 0.3
"""Seconds in which counters of our own last requests may still grow; at least twice the time to a first token."""
SUSPECT: Final = 0.5
"""Seconds without any work counted, after which gauges that are up are suspected of standing still."""

Refresh = Callable[[], Awaitable[None]]


class ForeignError(EngineError):
    """Others use the engine."""

    def __init__(self, seen: str) -> None:
        super().__init__(
            f"the engine has other traffic: {seen}. Figures would be theirs as well as the gateway's: take the engine"
            " out of the others' reach, or say --shared for figures that are estimates"
        )


@final
class Rest:
    """Watches over what is ours on an engine and what is not.

    :param refresh: plays a request of one token; see above.
    :param pace: how fast the engine is, as it becomes known.
    """

    __slots__ = ("_pace", "_refresh", "_shared", "_watch", "level", "owed")

    def __init__(self, watch: EngineWatch, refresh: Refresh, *, shared: bool, pace: EnginePace) -> None:
        self._watch = watch
        self._refresh = refresh
        self._shared = shared
        self._pace = pace
        self.level = Level()
        self.owed = False
        """Whether requests of ours may still be at work whose clients have left."""

    async def first_look(self) -> None:
        """See that the engine is at rest, or what it does for others if it is shared.

        :raises ForeignError: it is not at rest, nor shared.
        """
        if self._shared:
            self.level = await self._look()
            return
        for attempt in range(2):
            before = self._watch.last
            busy, work = await self._seen(before)
            if not busy and not work:
                return
            if work or attempt:
                running = f"{busy:g} requests running or waiting before the start" if busy else ""
                raise ForeignError(running or "tokens are counted before the start")
            await self._refresh()
            await self._watch.fresh()

    async def _seen(self, before: Sample) -> tuple[float, bool]:
        await trio.sleep(FIRST_LOOK)
        last = await self._watch.fresh()
        return max(sample.busy for sample in [*self._watch.since(before.at), last]), last.work != before.work

    async def _look(self) -> Level:
        before = self._watch.last
        await trio.sleep(FIRST_LOOK)
        last = await self._watch.fresh()
        samples = self._watch.since(before.at)
        return Level(
            running=max(sample.running for sample in samples),
            busy=max(sample.busy for sample in samples),
            tokens_per_second=(last.tokens - before.tokens) / (last.at - before.at),
        )

    async def come(self) -> Level:
        """Wait until the engine is at rest; what it does for others, if it is shared.

        :raises ForeignError: something is counted that cannot be ours.
        :raises EngineError: it does not come to rest in time.
        """
        if self._shared:
            with trio.move_on_after(self._pace.patience if self.owed else 0):
                await self._watch.until(lambda sample: sample.busy <= self.level.busy)
            self.owed = False
            return await self._look()
        with trio.move_on_after(self._pace.patience):
            await self._calm()
            self.owed = False
            return self.level
        last = self._watch.last
        raise EngineError(
            f"the engine has not come to rest in {self._pace.patience:g} s: {last.busy:g} requests are running or"
            " waiting, though all of ours must be over"
        )

    async def _calm(self) -> None:
        began = previous = self._watch.last
        still = began.at
        while True:
            sample = await self._watch.until(lambda _: True)
            if sample.work != previous.work:
                still = sample.at
                belated = sample.asked - began.at <= max(BELATED, 2 * self._pace.ttft)
                if not self.owed and not belated and self._watch.engine.timely:
                    raise ForeignError("work was counted while none of ours was there")
            previous = sample
            if sample.busy <= self.level.busy:
                if sample.asked - still >= CALM:
                    return
            elif sample.asked - still >= SUSPECT:
                await self._refresh()
                began = previous = await self._watch.fresh()
                still = began.at

    async def gone(self, left: float, count: int, level: Level, *, settle: float, watch: float) -> list[float]:
        """Wait until the engine has nothing to do for a group that left, at most ``watch`` seconds after that.

        :param settle: seconds without any work counted after which it is over.
        :returns: when requests of our own were sent to bring the gauges up to date.
        :raises ForeignError: there is more than a group of this size, and it is not shared.
        """
        refreshed: list[float] = []
        with trio.move_on_after(max(0.0, left + watch - time.monotonic())):
            await self._gone(left, count, level, settle, refreshed)
        return refreshed

    async def _gone(self, left: float, count: int, level: Level, settle: float, refreshed: list[float]) -> None:
        still = left
        work: tuple[float, float] | None = None
        while True:
            sample = await self._watch.until(lambda sample: sample.asked >= left)
            self.check(sample, count + len(refreshed), level)
            if work is not None and sample.work != work:
                still = sample.at
            work = sample.work
            if sample.busy <= level.busy:
                if sample.at - still >= settle:
                    return
            elif sample.at - still >= max(SUSPECT, settle):
                refreshed.append(time.monotonic())
                await self._refresh()
                sample = await self._watch.fresh()
                still, work = sample.at, sample.work
                if sample.busy <= level.busy:
                    return

    def check(self, sample: Sample, count: int, level: Level) -> None:
        """Raise ``ForeignError`` if there is more than a group of this size, and it is not shared."""
        if not self._shared and sample.busy > level.busy + count:
            raise ForeignError(f"{sample.busy:g} requests are running or waiting, and only {count} are ours")
