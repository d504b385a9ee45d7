"""What the measurements of memory share: one process of the proxy, how requests are played on it, and its samples.

Lives here: the bench that one process of the proxy stands on. Does not live here: what is measured
(memory_streams.py, memory_leaks.py, memory_unread.py), which processes there are (memory.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, final

import trio

from ..mock_gate import Gate
from .cases import Case
from .memory_samples import Sample, Sampler
from .play import CONTROL, Play, Request, play_once
from .records import Outcome, Record, RecordWriter
from .target import GREET_TIMEOUT, Target, TargetError

PATIENCE: Final = 30.0
"""Seconds for any number of requests to come where they should be; only a proxy that fails takes so long."""
SHORT: Final[dict[str, object]] = {"tokens": 2, "interval": 0.0}
"""Asks the model server for two tokens without a pause."""
_CHECK: Final = 0.1
"""Seconds between two first requests, while none comes through."""
_WARM_UP: Final = 10
"""Requests after which a process is warm: its modules loaded, its connections there."""


@final
@dataclass(slots=True)
class Run:
    """What all processes of a run share.

    :param gate: the model server's.
    :param progress: is told what is being done.
    """

    play: Play
    gate: Gate
    writer: RecordWriter
    progress: Callable[[str], None]
    settle: float
    """Seconds that memory gets to come to rest."""
    after: float
    """The same, when streams have ended."""
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list[Sample])
    requests: int = 0


@final
class Lab:
    """One process of the proxy. Its sampler must be run in a task."""

    __slots__ = ("_streams", "number", "run", "sampler", "target")

    def __init__(self, run: Run, target: Target, number: int) -> None:
        self.run = run
        self.target = target
        self.number = number
        self._streams = 0
        self.sampler = Sampler(target, number, lambda: self._streams, run.samples.append, run.began)

    def phase(self, name: str) -> None:
        """Samples belong to this from now on."""
        self.sampler.phase = name
        self.run.progress(f"process {self.number}: {name}")

    def request(self, case: Case, size: int, more: dict[str, object]) -> Request:
        """A request that has sent nothing yet.

        :param more: asked of the model server, beside what the case needs.
        """
        return Request(self.run.play, case, "proxy", "single", self.target.address, size, more=more)

    @contextmanager
    def counted(self) -> Generator[None]:
        """One more request is in flight."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def note(self, records: Sequence[Record]) -> None:
        """Requests are over."""
        self.run.requests += len(records)
        self.run.writer.write(records)

    async def level(self, seconds: float | None = None) -> int:
        """Memory at rest, in bytes, after the run's ``settle`` seconds or these."""
        return await self.sampler.level(self.run.settle if seconds is None else seconds)

    async def idle(self, size: int) -> int:
        """Memory of the warm process with nothing in flight, in bytes: some requests are played before.

        :raises TargetError: none comes back whole: a proxy that is not set up.
        """
        self.phase("warming up")
        until = time.monotonic() + GREET_TIMEOUT
        while (record := await self._warm_up(size)).outcome is not Outcome.WHOLE:
            # One that has only just begun to listen may need a moment to know its upstream.
            if time.monotonic() > until:
                raise TargetError(self.target.explain(f"the proxy does not forward: {record.why}"))
            await trio.sleep(_CHECK)
        for _ in range(_WARM_UP - 1):
            await self._warm_up(size)
        self.phase("idle")
        return await self.level()

    async def _warm_up(self, size: int) -> Record:
        with self.counted():
            record = await play_once(self.request(CONTROL, size, SHORT), _nothing)
        self.note([record])
        return record


def failures(records: Sequence[Record]) -> dict[str, int]:
    """What was said about those that failed, and how often."""
    why: dict[str, int] = {}
    for record in records:
        if failed(record):
            text = record.why or record.outcome.value
            why[text] = why.get(text, 0) + 1
    return why


def failed(record: Record) -> bool:
    """Whether a request did not come to its stage, or its client, who stayed, did not get its answer."""
    return record.outcome in (Outcome.FAILED, Outcome.FALSE_ABORT)


def _nothing() -> None:
    """Nobody waits for the client's leaving."""
