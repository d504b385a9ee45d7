"""``trioproxy bench memory``: what a proxy holds while answers stream, and what it keeps for good.

Lives here: which processes of the proxy there are, what is measured on each, and how it comes together to a report.
Does not live here: one measurement (memory_streams.py, memory_leaks.py, memory_unread.py), arguments and exit
(../cli.py).

Each body size has a fresh process: what an allocator keeps of large bodies hides what smaller ones cost. One more
process is for the leaks, which come first on it, and for the client that does not read, who may leave it swollen.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import trio

from ..mock import MockServer
from .cases import Pace
from .client import Address
from .index import Index
from .memory_lab import PATIENCE, Lab, Run
from .memory_leaks import Kind, Rounds, leak
from .memory_metrics import LeakResult, SizeResult, UnreadResult, overall
from .memory_report import MemoryReport, memory_void
from .memory_streams import hold_streams
from .memory_unread import unread
from .payloads import Payloads
from .play import Play, run_name
from .records import RecordWriter
from .report import Machine
from .target import Target, TargetError, interrupted, play_model_server, reachable, started, wait_listening, what_ends
from .usage import OwnWatch, available_memory

SIZES: Final = (4 * 2**10, 512 * 2**10, 4 * 2**20)
"""Bytes of a body."""
QUICK: Final[dict[str, Any]] = {
    "streams": 20,
    "settle": 0.5,
    "after": 1.5,
    "rounds": 4,
    "each": 100,
    "flood": 32 * 2**20,
    "hold": 1.5,
}
"""What a plan has for half a minute: enough to see what is grossly wrong."""
_COPIES: Final = 4
"""Of all bodies that a proxy may hold at once: so much memory must be free before a run."""
_PACE: Final = Pace(prefill=0.0, stall=0.0, interval=0.02, dwell=0.01, watch=2.0, patience=PATIENCE)
_LATE: Final = 0.25
"""Seconds from which on a propagated abort is late; here it is only told in the records."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What is to be measured. Seconds and bytes.

    :param proxy: one that runs already and forwards to ``upstream_listen``, and its ``pid``; else ``command`` is
        started, several times.
    :param sizes: of bodies; none leaves that measurement out.
    :param rounds: of ``each`` requests completed, and the same cancelled; 0 leaves them out.
    :param flood: of the stream that a client does not read; 0 leaves it out.
    """

    proxy: Address | None = None
    pid: int | None = None
    command: Sequence[str] | None = None
    upstream_listen: tuple[str, int] = ("127.0.0.1", 0)
    headers: tuple[tuple[str, str], ...] = ()
    model: str = "mock-model"
    sizes: Sequence[int] = SIZES
    streams: int = 50
    settle: float = 1.0
    after: float = 3.0
    rounds: int = 8
    each: int = 250
    flood: int = 64 * 2**20
    hold: float = 3.0
    records: Path | None = None
    keep_payloads: bool = False

    @property
    def smallest(self) -> int:
        """The size of bodies that are not what a measurement is about."""
        return min(self.sizes, default=SIZES[0])


@final
@dataclass(slots=True)
class MemoryRun:
    """A run; ``report`` may be asked for at any time, after a failure too."""

    plan: MemoryPlan
    progress: Callable[[str], None]
    _run_state: Run | None = None
    _sizes: list[SizeResult] = field(default_factory=list[SizeResult])
    _leaks: list[LeakResult] = field(default_factory=list[LeakResult])
    _unread: UnreadResult | None = None
    _own: OwnWatch | None = None
    _error: str | None = None
    _processes: int = 0
    _target: str = ""

    async def run(self) -> None:
        """Run to the end, or to what ends it: then ``report`` says why. Cancelled, nothing is left running."""
        self._error = await what_ends(self._run)

    def interrupted(self, by: str) -> None:
        """Somebody has cancelled it."""
        self._error = interrupted(by)

    async def _run(self) -> None:
        plan = self.plan
        self._check_room()
        index = Index()
        server = MockServer(on_name=index.note)
        own = self._own = OwnWatch()
        largest = max(plan.sizes, default=plan.smallest)
        with (
            Payloads(largest, model=plan.model, keep=plan.keep_payloads) as payloads,
            RecordWriter(plan.records) as writer,
        ):
            play = Play(run_name(), payloads, index, _PACE, _LATE)
            self._run_state = Run(play, server.gate, writer, self.progress, plan.settle, plan.after)
            async with trio.open_nursery() as nursery:
                host, port = await play_model_server(server, plan.upstream_listen, nursery)
                nursery.start_soon(own.run)
                await self._measure((reachable(host), port))
                nursery.cancel_scope.cancel()

    def _check_room(self) -> None:
        """
        :raises TargetError: a proxy that holds bodies could bring the machine to swap, which falsifies everything.
        """
        needed = _COPIES * self.plan.streams * max(self.plan.sizes, default=0) + 2 * self.plan.flood
        free = available_memory()
        if free is not None and needed > free:
            raise TargetError(
                f"{self.plan.streams} streams of the largest body may need {needed >> 20} MiB, and {free >> 20} MiB are"
                " free: take fewer --streams or a smaller --size"
            )

    async def _measure(self, upstream: tuple[str, int]) -> None:
        plan = self.plan
        async with self._shared() as shared:
            for size in plan.sizes:
                async with self._process(shared, upstream) as lab:
                    self._sizes.append(await hold_streams(lab, size, plan.smallest, plan.streams))
            if not plan.rounds and not plan.flood:
                return
            async with self._process(shared, upstream) as lab:
                kinds: tuple[Kind, ...] = ("completed", "cancelled") if plan.rounds else ()
                for kind in kinds:
                    self._leaks.append(await leak(lab, kind, Rounds(plan.rounds, plan.each, plan.smallest)))
                if plan.flood:
                    self._unread = await unread(lab, plan.flood, plan.hold, plan.smallest)

    # ---- processes

    @asynccontextmanager
    async def _shared(self) -> AsyncGenerator[Target | None]:
        """The proxy that runs already; None if each measurement starts its own."""
        plan = self.plan
        if plan.proxy is None:
            yield None
            return
        self._target = plan.proxy.url
        await wait_listening(plan.proxy, None, 2.0)
        yield Target(plan.proxy, plan.pid)

    @asynccontextmanager
    async def _process(self, shared: Target | None, upstream: tuple[str, int]) -> AsyncGenerator[Lab]:
        """A fresh process, or the shared one, under the eyes of a sampler."""
        assert self._run_state is not None
        async with self._started(upstream) if shared is None else _as_it_is(shared) as target:
            self._target = target.address.url
            self._processes += shared is None or not self._processes
            lab = Lab(self._run_state, target, self._processes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lab.sampler.run)
                yield lab
                nursery.cancel_scope.cancel()

    def _started(self, upstream: tuple[str, int]) -> AbstractAsyncContextManager[Target]:
        assert self.plan.command is not None
        self.progress("starting the proxy")
        return started(self.plan.command, upstream, self.plan.headers)

    # ---- the report

    def report(self, options: dict[str, object], label: str = "") -> MemoryReport:
        """What has been found so far, judged by nobody yet: requirements are the caller's."""
        own = None if self._own is None else self._own.usage()
        state = self._run_state
        return MemoryReport(
            target=self._target,
            label=label,
            machine=Machine(),
            options=options,
            metrics=overall(0 if state is None else state.requests, self._sizes, self._leaks, self._unread),
            fresh=self.plan.proxy is None,
            sizes=self._sizes,
            leaks=self._leaks,
            unread=self._unread,
            samples=[] if state is None else state.samples,
            own=own,
            error=self._error,
            void=None if own is None else memory_void(own),
        )


def _as_it_is(target: Target) -> AbstractAsyncContextManager[Target]:
    return nullcontext(target)
