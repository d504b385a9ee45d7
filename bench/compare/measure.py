"""One measurement of one peer: a command of its own, so that anyone can have the same figures again.

Lives here: the commands, and their results read back. Each runs in a process of its own, since what one measurement
has done to its process must not be in the next. Does not live here: the order (`__main__`), the judgement of a figure.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from bench.peers.install import Debian, Pip
from bench.peers.peer import Peer
from trioproxy.bench.referee.memory_report import MemoryReport
from trioproxy.bench.referee.report import EXIT_OK, EXIT_UNMET, CancelReport

_R = TypeVar("_R", CancelReport, MemoryReport)
TIMEOUT: Final = 900.0
"""Seconds for one command: far more than any takes."""
BASELINE: Final = "haproxy"
"""What CPU is compared with."""


class Plan(NamedTuple):
    """What every peer is measured with: options of the commands."""

    cancel: Sequence[str]
    memory: Sequence[str]
    cost: Sequence[str]


class MeasureError(Exception):
    """A measurement has no figures."""


class Cost(msgspec.Struct, kw_only=True):
    """CPU, round by round. Microseconds."""

    request: list[float]
    event: list[float]
    request_ratio: float
    """To the baseline in the same run."""
    event_ratio: float


class Result(msgspec.Struct, kw_only=True):
    """Everything about one peer."""

    name: str
    version: str
    cancel: list[CancelReport] = []
    """By round."""
    memory: MemoryReport | None = None
    cost: Cost | None = None
    failed: list[str] = []
    """What was not measured, and why."""


def start_of(peer: Peer) -> str:
    """What `--proxy-cmd` is given for a peer."""
    return f"python -m bench.peers {peer.name} --listen {{listen}} --upstream http://{{upstream}}"


def referee(kind: str, peer: Peer, options: Sequence[str]) -> list[str]:
    """The command that measures a peer, without its output files."""
    headers = [part for name, value in peer.headers.items() for part in ("--header", f"{name}: {value}")]
    return ["trioproxy", "bench", kind, "--proxy-cmd", start_of(peer), *headers, *options]


def measure_cancel(peer: Peer, options: Sequence[str], label: str) -> CancelReport:
    """Run `trioproxy bench cancel` on it.

    :raises MeasureError: it could not be done, or its figures are not the peer's.
    """
    return _referee(referee("cancel", peer, [*options, "--label", label]), CancelReport)


def measure_memory(peer: Peer, options: Sequence[str], label: str) -> MemoryReport:
    """Run `trioproxy bench memory` on it; raises the same."""
    return _referee(referee("memory", peer, [*options, "--label", label]), MemoryReport)


def _referee(command: Sequence[str], kind: type[_R]) -> _R:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "report.json"
        done = _run([sys.executable, "-m", *command, "--json", str(path)])
        if not path.exists():
            raise MeasureError(_last(done))
        report = msgspec.json.decode(path.read_bytes(), type=kind)
    if (why := report.error or report.void) is not None:
        raise MeasureError(why)
    if done.returncode not in (EXIT_OK, EXIT_UNMET):
        raise MeasureError(_last(done))
    if isinstance(report, MemoryReport):
        report.samples = []  # the time line alone is most of the file
    return report


def measure_cost(names: Sequence[str], options: Sequence[str]) -> dict[str, Cost]:
    """Run `bench.compare.cpu` on several peers at once: it alternates between them, which ratios need.

    :raises MeasureError: one of them could not be measured.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "cost.json"
        done = _run([sys.executable, "-m", *cost(names, options), "--json", str(path)])
        if not path.exists():
            raise MeasureError(_last(done))
        found: dict[str, dict[str, list[float]]] = json.loads(path.read_bytes())
    return {name: cost_of(name, found) for name in names}


def cost(names: Sequence[str], options: Sequence[str]) -> list[str]:
    """The command that measures CPU, without its output file."""
    return ["bench.compare.cpu", "--peers", *names, *options]


def cost_of(name: str, found: Mapping[str, Mapping[str, list[float]]]) -> Cost:
    """The rounds of one of the peers, beside the baseline's."""
    own, base = found[name], found.get(BASELINE, {})
    return Cost(
        request=own["request"],
        event=own["event"],
        request_ratio=_ratio(own["request"], base.get("request")),
        event_ratio=_ratio(own["event"], base.get("event")),
    )


def _ratio(values: Sequence[float], base: Sequence[float] | None) -> float:
    """The median of the rounds' ratios; nan without a baseline."""
    return statistics.median(a / b for a, b in zip(values, base, strict=True)) if base else math.nan


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # `python` in a command is this one, as for whoever has the environment activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "PATH": path}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise MeasureError(f"{shlex.join(command)}: not done after {TIMEOUT:g} s") from None


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"status {done.returncode}"


def version_of(peer: Peer) -> str:
    """Of what is installed, as its packager has it."""
    match peer.installation:
        case Pip(requirement=requirement):
            return requirement.rpartition("==")[2]
        case Debian(package=package):
            done = _run(["dpkg-query", "--showformat", "${Version}", "--show", package])
            return done.stdout.strip() or "of this system"
        case _:
            return importlib.metadata.version("trioproxy")
