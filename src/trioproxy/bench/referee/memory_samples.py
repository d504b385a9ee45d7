"""The memory of a proxy's process tree over time, and its exact peak between two moments.

Lives here: taking samples, and the kernel's high-water mark. Does not live here: what goes on meanwhile, or how a
process's own memory is read (usage.py). Linux only.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, final

import msgspec
import trio

from .target import Target, TargetError
from .usage import pss, tree

PERIOD: Final = 0.05
"""Seconds between two samples."""
LEVEL: Final = 5
"""Samples whose median is the level at rest."""
_FIELDS: Final = re.compile(r"^(VmHWM|RssAnon|RssShmem|RssFile):\s+([0-9]+) kB$", re.MULTILINE)
_RESET_PEAK: Final = "5"


def unsupported() -> str | None:
    """Why memory cannot be measured on this system; None if it can."""
    if not sys.platform.startswith("linux"):
        return f"memory is read from /proc, which Linux alone has (this is {sys.platform})"
    if not Path("/proc/self/smaps_rollup").exists():
        return "this kernel has no /proc/PID/smaps_rollup (CONFIG_PROC_PAGE_MONITOR)"
    return None


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One look at the proxy, as an array: ``[at, process, phase, streams, bytes]``."""

    at: float
    """Seconds since the run began."""
    process: int
    """Which of the run's processes."""
    phase: str
    streams: int
    """Requests in flight."""
    held: int
    """Bytes of the process tree."""


@final
class Sampler:
    """Samples one process tree; run ``run`` in a task.

    :param target: whose tree it is; its ``pid`` is known.
    :param streams: tells how many requests are in flight.
    :param keep: is given each sample.
    :param began: the run's beginning, by the monotonic clock.
    """

    __slots__ = ("_began", "_keep", "_number", "_recent", "_streams", "_target", "peak", "phase")

    def __init__(
        self, target: Target, number: int, streams: Callable[[], int], keep: Callable[[Sample], None], began: float
    ) -> None:
        self._target = target
        self._number = number
        self._streams = streams
        self._keep = keep
        self._began = began
        self._recent: list[int] = []
        self.phase = "starting"
        self.peak = 0
        """The highest sample since it was last set to 0, in bytes."""

    async def run(self) -> None:
        """Sample until cancelled.

        :raises TargetError: the process is gone, or is somebody else's.
        """
        while True:
            self.take()
            await trio.sleep(PERIOD)

    def take(self) -> int:
        """One sample now, in bytes.

        :raises TargetError: the process is gone, or is somebody else's.
        """
        held = self._read()
        self.peak = max(self.peak, held)
        self._recent = [*self._recent[1 - LEVEL :], held]
        self._keep(Sample(time.monotonic() - self._began, self._number, self.phase, self._streams(), held))
        return held

    def _read(self) -> int:
        pid = self._target.pid
        assert pid is not None
        try:
            return pss(pid)
        except (FileNotFoundError, ProcessLookupError):
            self._target.check()
            raise TargetError(f"the proxy has ended: there is no process {pid} any more") from None
        except PermissionError:
            raise TargetError(f"the memory of process {pid} may not be read: it takes its owner, or root") from None

    async def level(self, seconds: float) -> int:
        """The memory when it has come to rest: the median of the last samples, after some seconds. Bytes."""
        await trio.sleep(max(seconds, LEVEL * PERIOD))
        return int(statistics.median(self._recent))


class Resident(NamedTuple):
    """What ``/proc/PID/status`` says of a process's resident memory, in bytes."""

    own: int
    """Anonymous and shared memory."""
    file: int
    """Mapped files."""
    peak: int
    """The most that was resident, of all kinds, since it was reset."""

    @classmethod
    def parse(cls, status: str) -> Resident | None:
        """Read it; None of a process without memory of its own: one that has ended, or the kernel's."""
        found = {name: 1024 * int(number) for name, number in _FIELDS.findall(status)}
        if len(found) < 4:
            return None
        return cls(found["RssAnon"] + found["RssShmem"], found["RssFile"], found["VmHWM"])


@final
class HighWater:
    """The peak of a process tree from this moment on, as the kernel keeps it: no sample can miss it.

    Where it cannot be reset (it takes the process's owner, or root), there is none.
    """

    __slots__ = ("_before",)

    def __init__(self, pid: int) -> None:
        self._before: dict[int, Resident] = {}
        for process in tree(pid):
            try:
                Path(f"/proc/{process}/clear_refs").write_text(_RESET_PEAK)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError:
                self._before.clear()
                return
            resident = _resident(process)
            if resident is not None:
                self._before[process] = resident

    def growth(self) -> int | None:
        """By how much own memory was above that of the beginning, at its peak. Bytes.

        The peaks of several processes are added up, as if they had come at once. Mapped files that became resident
        meanwhile are taken off.
        """
        if not self._before:
            return None
        total = 0
        for process, before in self._before.items():
            now = _resident(process)
            if now is not None:
                total += max(0, now.peak - now.file - before.own)
        return total


def _resident(pid: int) -> Resident | None:
    try:
        return Resident.parse(Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
