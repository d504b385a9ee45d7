"""How much of a request's body is still in memory, measured from the allocator's side.

Lives here: what ``tracemalloc`` and the system say about this process. Does not live here: the proxy's own counter,
which would be wrong in just the cases that this is for.

A request in flight costs memory of its own, whatever its body: tasks, buffers, bookkeeping. So two requests are
compared that stand at the same place: a control with a small body, and the one in question. What is live in the
second and not in the first belongs to the body if it is a block too large to be anything else. That is exactly 0
when nothing is kept and at least the body's size when somebody has it, whole or in pieces, the original or a copy.
Something that kept the body in tiny pieces would show in the sum of all the rest, so that is bounded too.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, final

CONTROL_SIZE: Final = 4096
"""Bytes of the control's body."""
LARGE_BLOCK: Final = 16384
"""Bytes from which on a block counts for the body: the largest of the bookkeeping has 8 KiB (Trio's heap of deadlines),
and what is received comes in pieces of up to 64 KiB."""
SMALL_BLOCKS: Final = 1 << 19
"""Bytes that the small blocks may grow by: each send of a large body has a deadline, and Trio removes those that are
over a thousand at a time, of 300 bytes. 18 to 28 KiB were seen with 16 MiB."""
_SMAPS: Final = Path("/proc/self/smaps_rollup")
_OWN_FILES: Final = frozenset({tracemalloc.__file__, __file__})


class Block(NamedTuple):
    """A kind of block: where it was allocated, and its bytes."""

    file: str
    line: int
    size: int


@final
@dataclass(frozen=True, slots=True)
class Live:
    """What was live at one moment, of all that had been allocated since tracing began."""

    large: Counter[Block]
    """How many blocks of each kind, of those from ``LARGE_BLOCK`` on."""
    small_bytes: int

    @property
    def total(self) -> int:
        """Bytes of all of it."""
        return self.small_bytes + sum(block.size * count for block, count in self.large.items())


@final
@dataclass(frozen=True, slots=True)
class Held:
    """What a request in flight holds on account of its body, in bytes."""

    allocated: int
    """Live memory that belongs to the body: 0 if nothing of it is kept."""
    other: int
    """What else is live beyond the control's; below ``SMALL_BLOCKS`` it is no part of ``allocated``."""

    @classmethod
    def between(cls, control: Live, live: Live) -> Held:
        """Compare a request with its control."""
        large = sum(block.size * count for block, count in (live.large - control.large).items())
        small = max(0, live.small_bytes - control.small_bytes)
        return cls(large + (small if small > SMALL_BLOCKS else 0), small)


@final
class Tracing:
    """Traces allocations for the length of a ``with`` block, and so slows Python down two- to fourfold."""

    __slots__ = ()

    def __enter__(self) -> Tracing:
        # Before the request, never during it: a body kept by a cycle of garbage is a body kept.
        gc.collect()
        tracemalloc.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        tracemalloc.stop()

    def live(self) -> Live:
        """What is live now of all that was allocated in this block."""
        large: Counter[Block] = Counter()
        small_bytes = 0
        for trace in tracemalloc.take_snapshot().traces:
            frame = trace.traceback[-1]
            if frame.filename in _OWN_FILES:
                continue
            if trace.size >= LARGE_BLOCK:
                large[Block(frame.filename, frame.lineno, trace.size)] += 1
            else:
                small_bytes += trace.size
        return Live(large, small_bytes)


def process_pss() -> int | None:
    """The memory of this process, in bytes, shared pages by their share; None where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        text = _SMAPS.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None
