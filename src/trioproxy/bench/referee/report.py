"""What a run has found, as one object: it is what the JSON says and what every other form is made of.

Lives here: the shape, and the exit status. Names are stable: one may be added, none changes its meaning. Does not live
here: how it is shown (text.py, markdown.py, junit.py, html.py).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from typing import Final

import msgspec

from .metrics import CaseResult, Metrics, Spread
from .require import Finding
from .usage import OwnPhase, OwnUsage, processor

EXIT_OK: Final = 0
EXIT_UNMET: Final = 1
"""A requirement does not hold."""
EXIT_BROKEN: Final = 3
"""The run could not be finished (the proxy is not there, or has ended), or its figures are not the proxy's."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C. What had been found until then is reported."""


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured."""

    system: str = platform.platform()
    processor: str = msgspec.field(default_factory=processor)
    processors: int = msgspec.field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """That this process may use."""
    python: str = platform.python_version()
    version: str = importlib.metadata.version("trioproxy")
    """Of trioproxy."""
    date: str = msgspec.field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


class CrowdResult(msgspec.Struct, kw_only=True, frozen=True):
    """A mass disconnect: many streams at a stage, all left at once, while others go on. Milliseconds."""

    leg: str
    stage: str
    way: str
    streams: int
    """That came to the stage."""
    survivors: int
    ttft_before: Spread
    """Of probes due in the second before."""
    ttft_after: Spread
    """Of probes due in the second after."""
    itl_before: Spread
    itl_after: Spread
    stall: float | None
    """The longest that a probe due in the second after took to its whole answer."""
    lost_probes: int
    """Probes that failed or had no answer when the watch ended."""
    probes: list[tuple[float, float]] = []
    """Of each answered probe: when it was due, in seconds since the disconnect, and ms to its whole answer."""
    seen_ms: list[float] = []
    """Since the disconnect, when the model server saw each of the aborts that it saw; in order."""


class DrainResult(msgspec.Struct, kw_only=True, frozen=True):
    """What a proxy does at SIGTERM. Milliseconds; null if it had not ended when its time was over."""

    idle: float | None
    busy: float | None
    streams: int
    """In flight at SIGTERM, each with its end within a second."""
    cut: int
    """Of these, those that did not get their end."""


class TasksAlive(msgspec.Struct, kw_only=True, frozen=True):
    """Tasks of requests that have ended, the most that were seen (library mode)."""

    after_0_ms: int
    after_10_ms: int
    after_100_ms: int
    names: dict[str, int]
    """Of those alive after 100 ms, and how often."""


class Report(msgspec.Struct, kw_only=True):
    """What every command of ``trioproxy bench`` reports."""

    target: str
    """The proxy's address."""
    label: str = ""
    """What the proxy is called, with its version, by whoever measured it."""
    machine: Machine
    options: dict[str, object]
    metrics: Metrics
    """Of the proxy: the figures that ``--require`` names."""
    direct: Metrics = {}
    """The same without a proxy: what tool and system add."""
    difference: Metrics = {}
    """Proxy less direct, of the figures that both legs have."""
    own: OwnUsage | None = None
    requirements: list[Finding] = []
    error: str | None = None
    """Why the run could not be finished."""
    void: str | None = None
    """Why the figures are not the proxy's."""

    @property
    def status(self) -> int:
        """The exit status."""
        return exit_status(self.error, self.void, self.requirements)


class CancelReport(Report, kw_only=True):
    """Everything that ``trioproxy bench cancel`` has found."""

    kind: str = "cancel"
    cases: list[CaseResult]
    crowds: list[CrowdResult] = []
    drain: DrainResult | None = None
    tasks: TasksAlive | None = None
    served_at_once: list[int] = []
    """Of ``--slots`` requests sent at once, those with the model server at the same time: before and after."""
    proxy_cpu_share: float | None = None
    """Of one processor, over the run; null for a proxy whose process is not known."""


def exit_status(error: str | None, void: str | None, requirements: list[Finding]) -> int:
    """The exit status of a run."""
    if error is not None or void is not None:
        return EXIT_BROKEN
    return EXIT_OK if all(one.holds for one in requirements) else EXIT_UNMET


def difference(proxy: Metrics, direct: Metrics) -> Metrics:
    """Proxy less direct; None where one of them has no figure."""
    found: Metrics = {}
    for name, value in proxy.items():
        other = direct.get(name)
        found[name] = None if value is None or other is None else value - other
    return found


MAX_LATENESS_MS: Final = 25.0
"""Of the tool's timers, 99th percentile, in a part of a run whose times are reported."""
MAX_CPU_SHARE: Final = 0.9
"""Of one processor, in such a part: the tool is one thread."""
MIN_AVAILABLE: Final = 0.02
"""Of the machine's memory."""
MAX_SWAPPED: Final = 16 << 20
"""Bytes of the tool."""


def void(own: OwnUsage, *, most_late_ms: float = MAX_LATENESS_MS) -> str | None:
    """Why a tool that used this much must not be believed, and what to do; None if it may.

    :param most_late_ms: more where what is reported states its own resolution, lateness included.
    """
    parts = own.phases or [OwnPhase(name="the run", lateness_ms=own.lateness_ms, cpu_share=own.cpu_share)]
    for part in parts:
        late = part.lateness_ms.p99
        if late is not None and late > most_late_ms:
            return (
                f"{part.name}: the tool's own timers were {late:.0f} ms late (99th percentile; {most_late_ms:g} ms"
                " may be), so that its times are not the proxy's. End what else runs here, or ask for fewer --streams"
            )
        if part.cpu_share > MAX_CPU_SHARE:
            return (
                f"{part.name}: the tool itself used {part.cpu_share:.0%} of a processor ({MAX_CPU_SHARE:.0%} may be)."
                " Ask for fewer --streams or a longer --interval"
            )
    return short_of_memory(own)


def short_of_memory(own: OwnUsage) -> str | None:
    """Why a machine with so little memory left measures nothing; None if it has enough."""
    if own.swapped_bytes > MAX_SWAPPED:
        return f"{own.swapped_bytes >> 20} MiB of the tool were swapped out. Free memory, or ask for fewer --streams"
    if own.least_available is not None and own.least_available < MIN_AVAILABLE:
        return (
            f"only {own.least_available:.1%} of the machine's memory was left ({MIN_AVAILABLE:.0%} must be)."
            " Free memory, or ask for fewer --streams"
        )
    return None
