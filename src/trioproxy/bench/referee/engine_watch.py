"""The engine's metrics, fetched again and again while requests are played.

Lives here: the task that fetches, the samples, and how to wait for one. Does not live here: reading a page
(engine_metrics.py), or what samples mean (engine_judge.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, final

import httpx
import trio

from .engine_metrics import Engine, EngineError, Sample, detect, read

GRACE: Final = 3.0
"""Seconds for which the metrics may fail before the engine counts as gone: a busy one is slow to answer."""


@final
class EngineWatch:
    """Watches one engine; ``open`` it, then run ``run`` in a task for as long as is to be watched.

    :param url: of the page.
    :param poll: seconds from one fetch to the next; an engine that answers slower is asked as often as it can.
    """

    __slots__ = ("_arrived", "_client", "_engine", "_headers", "_poll", "fetch_ms", "samples", "url")

    def __init__(
        self, client: httpx.AsyncClient, url: str, headers: Sequence[tuple[str, str]] = (), poll: float = 0.03
    ) -> None:
        self._client = client
        self._headers = list(headers)
        self._poll = poll
        self._engine: Engine | None = None
        self._arrived = trio.lowlevel.ParkingLot()
        self.url = url
        self.samples: list[Sample] = []
        """All of them, in order."""
        self.fetch_ms: list[float] = []
        """How long each fetch took."""

    @property
    def engine(self) -> Engine:
        """Which engine it is; known once it was opened."""
        if self._engine is None:
            raise RuntimeError("open() comes first")
        return self._engine

    @property
    def last(self) -> Sample:
        """The newest sample."""
        return self.samples[-1]

    async def open(self) -> None:
        """Fetch the first page and see which engine it is.

        :raises EngineError: nothing answers there, or nothing that is known.
        """
        asked = time.monotonic()
        page = await self._fetch()
        at = time.monotonic()
        try:
            self._engine = detect(page)
            self._add(read(self._engine, page, asked, at))
        except EngineError as error:
            raise EngineError(f"{self.url}: {error}") from None

    async def run(self) -> None:
        """Fetch until cancelled.

        :raises EngineError: it failed for 3 s, or counted backwards: the engine is gone, or another one now.
        """
        failing: float | None = None
        while True:
            due = trio.current_time() + self._poll
            asked = time.monotonic()
            try:
                with trio.fail_after(GRACE):
                    page = await self._fetch()
            except (EngineError, trio.TooSlowError) as error:
                failing = asked if failing is None else failing
                if time.monotonic() - failing > GRACE:
                    why = str(error) or f"{self.url}: no answer in {GRACE:g} s"
                    raise EngineError(f"the engine's metrics have been failing for {GRACE:g} s: {why}") from None
            else:
                failing = None
                self._add(read(self.engine, page, asked, time.monotonic()))
            await trio.sleep_until(due)

    async def _fetch(self) -> str:
        try:
            response = await self._client.get(self.url, headers=self._headers)
        except httpx.HTTPError as error:
            raise EngineError(f"{self.url}: {str(error) or type(error).__name__}") from None
        if response.status_code != 200:
            raise EngineError(f"{self.url}: answered with status {response.status_code}")
        return response.text

    def _add(self, sample: Sample) -> None:
        if self.samples and sample.tokens < self.last.tokens:
            raise EngineError("the engine has been started anew: it counts tokens from the beginning again")
        self.samples.append(sample)
        self.fetch_ms.append((sample.at - sample.asked) * 1000)
        self._arrived.unpark_all()

    async def fresh(self) -> Sample:
        """A sample of now or later. Its deadline is the caller's."""
        now = time.monotonic()
        return await self.until(lambda sample: sample.asked >= now)

    async def until(self, holds: Callable[[Sample], object]) -> Sample:
        """The next sample that arrives and of which this holds. Its deadline is the caller's."""
        while True:
            await self._arrived.park()
            if holds(self.last):
                return self.last

    def since(self, time_: float) -> list[Sample]:
        """The samples that arrived after this time."""
        found = len(self.samples)
        while found and self.samples[found - 1].at > time_:
            found -= 1
        return self.samples[found:]

    def gaps_ms(self) -> list[float]:
        """From the time for which one sample may stand to the end of that of the next: the resolution of all times."""
        return [(after.at - before.asked) * 1000 for before, after in zip(self.samples, self.samples[1:], strict=False)]
