"""What processes have used, as the kernel counts it, and how late this one runs.

Lives here: the only readers of /proc, and the watch over the tool itself, which shares its machine with what it judges.
Linux only but for the watch.
"""

from __future__ import annotations

import array
import bisect
import platform
import re
import time
from pathlib import Path
from typing import Final, final

import msgspec
import trio

from .metrics import Spread

_CPUCLOCK_SCHED: Final = 2
_PSS: Final = re.compile(r"^(?:Pss_(?:Anon|Shmem)|SwapPss):\s+([0-9]+) kB$", re.MULTILINE)
_TICK: Final = 0.005
_MEMORY_EVERY: Final = 100
_MEMINFO: Final = Path("/proc/meminfo")


def tree(pid: int) -> list[int]:
    """``pid`` and all its descendants; processes that end meanwhile are left out."""
    pids = [pid]
    for parent in pids:  # grows while it is walked
        try:
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                pids += map(int, children.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pids


def cpu_ns(pid: int) -> int:
    """CPU time of the process tree, user and system, in nanoseconds.

    Read through the process's CPU clock (``clock_getcpuclockid``): /proc counts in ticks of 10 ms.
    """
    total = 0
    for process in tree(pid):
        try:
            total += time.clock_gettime_ns((~process) << 3 | _CPUCLOCK_SCHED)
        except OSError:  # it has ended since
            continue
    return total


def pss(pid: int) -> int:
    """Memory of the process tree in bytes: its proportional set size, so that pages shared by two count once.

    Mapped files (the interpreter, libraries) are left out: their share grows and shrinks as strangers that map them
    come and go. What was swapped out is counted: it is held all the same.

    :raises OSError: /proc does not tell: another user's process, or no Linux.
    """
    total = 0
    for process in tree(pid):
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            if process == pid:
                raise
            continue
        total += own_bytes(rollup)
    return total


def own_bytes(rollup: str) -> int:
    """The part of a process's ``smaps_rollup`` that ``pss`` counts, in bytes.

    :raises OSError: the kernel does not tell it.
    """
    parts: list[str] = _PSS.findall(rollup)
    if not parts:
        raise OSError("no Pss_Anon in smaps_rollup: this kernel does not tell a process's own memory")
    return 1024 * sum(map(int, parts))


def processor() -> str:
    """What the processor is called, as far as the system tells."""
    try:
        match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return platform.machine() if match is None else match[1]


class OwnPhase(msgspec.Struct, frozen=True, kw_only=True):
    """The tool in a part of a run whose times are reported."""

    name: str
    lateness_ms: Spread
    cpu_share: float


class OwnUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the tool itself took: figures of a tool that is late or busy are its own, not the proxy's."""

    lateness_ms: Spread
    """By how much a timer that fires every 5 ms was late."""
    cpu_share: float
    """Of one processor, over the run."""
    peak_rss_bytes: int
    seconds: float
    phases: list[OwnPhase] = []
    swapped_bytes: int = 0
    """Of the tool, at the end."""
    least_available: float | None = None
    """The least share of the machine's memory that was to be had; null where the system does not tell."""


@final
class OwnWatch:
    """Watches this process; run ``run`` in a task for as long as is to be watched."""

    __slots__ = ("_available", "_cpu", "_late", "_phases", "_started", "_times")

    def __init__(self) -> None:
        self._times = array.array("d")
        self._late = array.array("d")
        self._cpu = array.array("d", [time.process_time()])
        self._started = time.monotonic()
        self._phases: list[OwnPhase] = []
        self._available: float | None = None

    async def run(self) -> None:
        """Take notes until cancelled."""
        while True:
            due = trio.current_time() + _TICK
            await trio.sleep_until(due)
            self._late.append((trio.current_time() - due) * 1000)
            self._times.append(time.monotonic())
            self._cpu.append(time.process_time())
            if len(self._late) % _MEMORY_EVERY == 1:
                self._look_at_memory()

    def note(self, name: str, start: float, end: float) -> None:
        """Between these times of the monotonic clock something was measured."""
        first, last = bisect.bisect_left(self._times, start), bisect.bisect_right(self._times, end)
        used = self._cpu[min(last, len(self._cpu) - 1)] - self._cpu[min(first, len(self._cpu) - 1)]
        phase = OwnPhase(
            name=name,
            lateness_ms=Spread.of(self._late[first:last]),
            cpu_share=used / max(end - start, 1e-9),
        )
        self._phases.append(phase)

    def usage(self) -> OwnUsage:
        """So far."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        return OwnUsage(
            lateness_ms=Spread.of(self._late),
            cpu_share=(time.process_time() - self._cpu[0]) / seconds,
            peak_rss_bytes=_own_status("VmHWM"),
            seconds=seconds,
            phases=list(self._phases),
            swapped_bytes=_own_status("VmSwap"),
            least_available=self._available,
        )

    def _look_at_memory(self) -> None:
        share = _available_share()
        if share is not None:
            self._available = share if self._available is None else min(share, self._available)


def _available_share() -> float | None:
    found = _memory_info()
    return None if found is None else found[0] / found[1]


def available_memory() -> int | None:
    """Bytes that new work could take without swapping, by the kernel's own estimate; None if it does not tell."""
    found = _memory_info()
    return None if found is None else found[0]


def _memory_info() -> tuple[int, int] | None:
    """Bytes of the machine's memory that are available, and all of them."""
    try:
        found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+([0-9]+) kB$", _MEMINFO.read_text(), re.MULTILINE))
        return 1024 * int(found["MemAvailable"]), 1024 * int(found["MemTotal"])
    except (OSError, KeyError):
        return None


def _own_status(name: str) -> int:
    """A figure of this process in bytes; 0 where the system does not tell."""
    try:
        match = re.search(rf"^{name}:\s+([0-9]+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 0 if match is None else 1024 * int(match[1])
