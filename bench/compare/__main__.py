"""`python -m bench.compare`: measure all peers in turn, write `bench/results/`.

Lives here: the command line and the order of the run. Rounds alternate between the peers, since the machine is noisy:
what slows one down slows its neighbour down too.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from bench.compare.measure import (
    BASELINE,
    MeasureError,
    Plan,
    Result,
    measure_cancel,
    measure_cost,
    measure_memory,
    version_of,
)
from bench.compare.plots import draw
from bench.compare.tables import Comparison, render
from bench.peers.peer import PeerError
from bench.peers.registry import PEERS
from trioproxy.bench.referee.report import Machine

ALL: Final = tuple(name for name in PEERS if name not in ("bare", "production-stack"))
"""Peers that are measured unless told otherwise: the first is no product, and no registry has the second."""
_QUICK: Final = Plan(
    cancel=("--rounds", "2", "--streams", "50", "--way", "fin", "--no-drain"),
    memory=("--quick",),
    cost=("--seconds", "1", "--rounds", "1"),
)
_FULL: Final = Plan(cancel=("--rounds", "5"), memory=(), cost=("--seconds", "3", "--rounds", "3"))


class Options(argparse.Namespace):
    """What was asked for on the command line."""

    peers: list[str]
    rounds: int
    quick: bool
    measure: list[str]
    render: bool
    out: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 1 if a peer cannot be installed, or trioproxy was not measured or
    has missed an abort."""
    options = _parse(arguments)
    if options.render:
        _render(msgspec.json.decode((options.out / "compare.json").read_bytes(), type=Comparison), options.out)
        return 0
    plan = _QUICK if options.quick else _FULL
    try:
        for name in options.peers:
            trio.run(PEERS[name].installation.install)
    except PeerError as error:
        print(f"bench.compare: {error}\nleave it out with --peers", file=sys.stderr)
        return 1
    comparison = Comparison(
        machine=Machine(),
        plan=plan,
        results=[Result(name=name, version=version_of(PEERS[name])) for name in options.peers],
    )
    options.out.mkdir(parents=True, exist_ok=True)
    # What was found is written after each step: the whole takes long.
    for number in range(options.rounds if "cancel" in options.measure else 0):
        for result in comparison.results if number % 2 == 0 else comparison.results[::-1]:
            _say(f"cancel, round {number + 1} of {options.rounds}: {result.name}")
            with _noting([result], "cancel"):
                result.cancel.append(measure_cancel(PEERS[result.name], plan.cancel, _label(result)))
            _write(comparison, options.out)
    if "memory" in options.measure:
        for result in comparison.results:
            _say(f"memory: {result.name}")
            with _noting([result], "memory"):
                result.memory = measure_memory(PEERS[result.name], plan.memory, _label(result))
            _write(comparison, options.out)
    if "cost" in options.measure:
        _say("CPU: all in turn")
        with _noting(comparison.results, "CPU"):
            costs = measure_cost(options.peers, plan.cost)
            for result in comparison.results:
                result.cost = costs[result.name]
        _write(comparison, options.out)
    _render(comparison, options.out)
    _say(f"written to {options.out}: compare.json, compare.md, compare.png")
    ours = [result for result in comparison.results if result.name == "trioproxy"]
    return 1 if any(_missed(result) for result in ours) else 0


@contextlib.contextmanager
def _noting(results: Sequence[Result], what: str) -> Generator[None]:
    """Go on with the others after a measurement that failed."""
    try:
        yield
    except MeasureError as error:
        _say(f"  not measured: {error}")
        for result in results:
            result.failed.append(f"{what}: {error}")


def _missed(result: Result) -> bool:
    return bool(result.failed) or any(bool(report.metrics["missed_aborts"]) for report in result.cancel)


def _label(result: Result) -> str:
    return f"{result.name} {result.version}"


def _write(comparison: Comparison, out: Path) -> None:
    (out / "compare.json").write_bytes(msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")
    (out / "compare.md").write_text(render(comparison))


def _render(comparison: Comparison, out: Path) -> None:
    _write(comparison, out)
    draw(comparison, out / "compare.png")


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description="Measure all peers in turn, and write a page, a picture and all figures.",
    )
    parser.add_argument("--peers", nargs="+", choices=sorted(PEERS), default=list(ALL), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=2, help="of cancellation, alternating (%(default)s)")
    parser.add_argument(
        "--measure", nargs="+", choices=["cancel", "memory", "cost"], default=["cancel", "memory", "cost"]
    )
    parser.add_argument("--quick", action="store_true", help="a look in a few minutes, not for publication")
    parser.add_argument("--render", action="store_true", help="measure nothing: write page and picture of --out again")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args(arguments, namespace=Options())
    if BASELINE not in options.peers and "cost" in options.measure:
        parser.error(f"CPU is told as a ratio to {BASELINE}: add it to --peers, or leave cost out of --measure")
    return options


if __name__ == "__main__":
    sys.exit(main())
