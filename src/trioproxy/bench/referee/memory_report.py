"""What ``trioproxy bench memory`` has found, as one object.

Lives here: its shape, and what makes its figures not the proxy's. Does not live here: how it is shown
(memory_document.py).
"""

from __future__ import annotations

from .memory_metrics import LeakResult, SizeResult, UnreadResult
from .memory_samples import LEVEL, PERIOD, Sample
from .report import Report, short_of_memory
from .usage import OwnUsage


class MemoryReport(Report, kw_only=True):
    """Everything that was found. Bytes."""

    kind: str = "memory"
    fresh: bool
    """Whether each body size had a process of its own. Else it was one that ran already: what it kept from before,
    and from the sizes measured before, hides growth."""
    sizes: list[SizeResult]
    leaks: list[LeakResult]
    unread: UnreadResult | None
    samples: list[Sample]
    """The time line."""
    period_s: float = PERIOD
    """Between two samples."""


def memory_void(own: OwnUsage) -> str | None:
    """Why figures of a tool that used this much must not be believed; None if they may.

    A busy tool falsifies no level of memory, since both sides stand still while one is read, and a peak is the
    kernel's. One that is late by more than a level's samples take has levels that are none.
    """
    late, most = own.lateness_ms.p99, PERIOD * LEVEL * 1000
    if late is None or late <= most:
        return short_of_memory(own)
    return (
        f"the tool's own timers were {late:.0f} ms late (99th percentile; {most:g} ms may be): samples are missing, and"
        " what memory came to meanwhile with them; the machine is too busy"
    )
