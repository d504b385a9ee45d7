"""What processes have used, as the kernel counts it, and how late this one runs.

Lives here: the only readers of /proc, and the watch over the tool itself, which shares its machine with what it judges.
Linux only but for the watch.
"""

from __future__ import annotations

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


def available_memory() -> int | None:
    """Bytes that new work could take without swapping, by the kernel's own estimate; None if it does not tell."""
    try:
        match = re.search(r"^MemAvailable:\s+([0-9]+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else 1024 * int(match[1])


class OwnUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the tool itself took: figures of a tool that is late or busy are its own, not the proxy's."""

    lateness_ms: Spread
    """By how much a timer that fires every 5 ms was late."""
    cpu_share: float
    """Of one processor, over the run."""
    peak_rss_bytes: int
    seconds: float


@final
class OwnWatch:
    """Watches this process; run ``run`` in a task for as long as is to be watched."""

    __slots__ = ("_cpu", "_late", "_started")

    def __init__(self) -> None:
        self._late: list[float] = []
        self._started = time.monotonic()
        self._cpu = time.process_time()

    async def run(self) -> None:
        """Take notes until cancelled."""
        while True:
            due = trio.current_time() + _TICK
            await trio.sleep_until(due)
            self._late.append((trio.current_time() - due) * 1000)

    def usage(self) -> OwnUsage:
        """So far."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        return OwnUsage(
            lateness_ms=Spread.of(self._late),
            cpu_share=(time.process_time() - self._cpu) / seconds,
            peak_rss_bytes=_peak_rss(),
            seconds=seconds,
        )


def _peak_rss() -> int:
    try:
        match = re.search(r"^VmHWM:\s+([0-9]+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 0 if match is None else 1024 * int(match[1])
