"""`python -m bench.memory`: what a proxy holds of requests that it has forwarded and of responses nobody reads.

Lives here: which processes are started, when memory is read, the table, the checks. Each figure is of a fresh
process, and the difference to the same process when idle; memory is what `process.pss` says it is.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, final

from bench import process
from bench.crowd import gathered
from bench.flood import Flood, flood
from bench.origin import Origin, serving
from bench.peers.peer import Peer, PeerError
from bench.peers.registry import PEERS, PLAIN, peers_with
from bench.peers.running import end_on_sigterm, running
from bench.report import Check, status, table, told, verdict, write_json
from bench.wire import Loop, ProbeError

KIB: Final = 2**10
MIB: Final = 2**20
SMALL: Final = 4 * KIB
MIDDLE: Final = 512 * KIB
LARGE: Final = 16 * MIB

MAX_PER_STREAM: Final = 40_000
"""Bytes that a stream may cost while the upstream has sent nothing, or only its head (issue 2, Release)."""
MAX_DIFFERENCE: Final = 2_000
"""Bytes that a stream with a 512 KiB prompt may cost more than one with a 4 KiB prompt (issue 2, Release)."""
MIN_GIVEN_BACK: Final = 0.95
"""Share of bodies of 128 KiB and more that goes back to the system once they are forwarded (design.md, 7)."""
MAX_HELD: Final = MIB
"""Bytes that a stream to a client that does not read may cost (issue 2, No response is held)."""


class Options(argparse.Namespace):
    """What was asked for on the command line."""

    proxies: list[str]
    streams: int
    large_streams: int
    settle: float
    flood: int
    hold: float
    json: Path | None
    require: bool
    serve: str


class StreamMemory(NamedTuple):
    """Memory per stream, in bytes beyond that of the idle process."""

    size: int
    """Of the prompt's body."""
    after_large: bool
    """Whether a 16 MiB body had been forwarded and answered before."""
    streams: int
    prefill: float
    """Uploaded, and the upstream has sent nothing."""
    headed: float
    """The upstream has sent its head and no event."""


class Burst(NamedTuple):
    """Memory of bodies that were under way at once, as shares of their bytes."""

    after_large: bool
    bodies: int
    """Bytes of all bodies."""
    peak: float
    """Held when all but the last byte of each had been sent, and the upstream did not read."""
    given_back: float
    """Gone when the upstream had them, beyond what as many streams of 4 KiB hold."""


class ProxyMemory(NamedTuple):
    """All figures of one proxy."""

    streams: list[StreamMemory]
    kept_of_large: int
    """Bytes by which the idle process was bigger after one 16 MiB body than before."""
    bursts: list[Burst]
    flood: Flood


@final
class Bench:
    """One proxy process under measurement, the model server behind it, and the memory when it was idle."""

    __slots__ = ("_loop", "_origin", "_pid", "_port", "_settle", "idle")

    def __init__(self, loop: Loop, origin: Origin, pid: int, port: int, settle: float) -> None:
        self._loop = loop
        self._origin = origin
        self._pid = pid
        self._port = port
        self._settle = settle
        self.idle = 0
        """Bytes, see `warm_up`."""

    def settled_pss(self) -> int:
        """The memory now, after time for what goes on in the background."""
        self._loop.run_until(time.perf_counter() + self._settle)
        return process.pss(self._pid)

    def warm_up(self, size: int) -> int:
        """Have one request of `size` forwarded and answered; from then on, growth counts. Returns the memory now."""
        with gathered(self._loop, self._origin, self._port, count=1, size=size) as crowd:
            crowd.upload()
            crowd.begin()
            crowd.end()
        self.idle = self.settled_pss()
        return self.idle

    def growth(self) -> int:
        """Bytes since `warm_up`, after settling."""
        return self.settled_pss() - self.idle

    def streams(self, count: int, size: int, *, after_large: bool) -> StreamMemory:
        """Hold `count` streams with bodies of `size`."""
        with gathered(self._loop, self._origin, self._port, count=count, size=size) as crowd:
            crowd.upload()
            prefill = self.growth()
            crowd.begin()
            headed = self.growth()
            crowd.end()
        return StreamMemory(size, after_large, count, prefill / count, headed / count)

    def burst(self, count: int, size: int, *, after_large: bool) -> Burst:
        """Upload `count` bodies of `size` but for their ends while the model server does not read, then the ends."""
        own = self.streams(count, SMALL, after_large=after_large).prefill * count
        self._origin.pause()
        with gathered(self._loop, self._origin, self._port, count=count, size=size) as crowd:
            crowd.upload_but_the_end()
            peak = self.growth()
            self._origin.resume()
            crowd.upload_end()
            left = self.growth()
            crowd.begin()
            crowd.end()
        bodies = count * size
        return Burst(after_large, bodies, (peak - own) / bodies, 1 - max(0.0, left - own) / bodies)

    def flood(self, size: int, hold: float) -> Flood:
        """Send `size` bytes to a client that reads nothing for `hold` seconds."""
        return flood(
            self._loop,
            self._origin,
            self._port,
            lambda: process.pss(self._pid) - self.idle,
            size=size,
            hold=hold,
        )


@contextlib.contextmanager
def fresh(name: str, settle: float, peers: dict[str, Peer] = PEERS) -> Generator[Bench]:
    """A new process of the proxy `name`, after one 4 KiB request."""
    with Loop() as loop, serving(loop) as origin, running(peers[name], origin.port) as proxy:
        bench = Bench(loop, origin, proxy.pid, proxy.port, settle)
        bench.warm_up(SMALL)
        yield bench


def measure(name: str, options: Options, peers: dict[str, Peer] = PEERS) -> ProxyMemory:
    """All figures of the proxy `name`, each of a process of its own.

    :raises PeerError: the proxy could not be started.
    :raises ProbeError: it did something wrong while it was measured.
    """
    streams: list[StreamMemory] = []
    bursts: list[Burst] = []
    kept_of_large = 0
    for after_large in (False, True):
        for size in (SMALL, MIDDLE, LARGE):
            count = options.large_streams if size == LARGE else options.streams
            with fresh(name, options.settle, peers) as bench:
                if after_large:
                    kept_of_large = max(kept_of_large, -bench.idle + bench.warm_up(LARGE))
                streams.append(bench.streams(count, size, after_large=after_large))
            print(f"{name}: {_size(size)} done", file=sys.stderr)
        with fresh(name, options.settle, peers) as bench:
            if after_large:
                bench.warm_up(LARGE)
            bursts.append(bench.burst(options.streams, MIDDLE, after_large=after_large))
        print(f"{name}: burst done", file=sys.stderr)
    with fresh(name, options.settle, peers) as bench:
        flooded = bench.flood(options.flood, options.hold)
    return ProxyMemory(streams, kept_of_large, bursts, flooded)


def check(name: str, memory: ProxyMemory) -> list[Check]:
    """What has to hold of one proxy."""
    checks: list[Check] = []
    by_key = {(one.after_large, one.size): one for one in memory.streams}
    for one in memory.streams:
        most = max(one.prefill, one.headed)
        what = f"{name}: {_size(one.size)} prompt{_after(one.after_large)}: {most:,.0f} ≤ {MAX_PER_STREAM:,} B a stream"
        checks.append(Check(what, most <= MAX_PER_STREAM))
    for after_large in (False, True):
        small, middle = by_key[after_large, SMALL], by_key[after_large, MIDDLE]
        more = max(middle.prefill - small.prefill, middle.headed - small.headed)
        what = f"{name}: 512 KiB over 4 KiB{_after(after_large)}: {more:+,.0f} ≤ {MAX_DIFFERENCE:,} B more a stream"
        checks.append(Check(what, more <= MAX_DIFFERENCE))
    given_back = 1 - memory.kept_of_large / LARGE
    what = f"{name}: of one 16 MiB body {given_back:.1%} ≥ {MIN_GIVEN_BACK:.0%} given back"
    checks.append(Check(what, given_back >= MIN_GIVEN_BACK))
    for burst in memory.bursts:
        what = f"{name}: of a burst{_after(burst.after_large)} {burst.given_back:.1%} ≥ {MIN_GIVEN_BACK:.0%} given back"
        checks.append(Check(what, burst.given_back >= MIN_GIVEN_BACK))
    for held, when in ((memory.flood.held, "does not read"), (memory.flood.flowing, "reads again")):
        checks.append(
            Check(f"{name}: {held:,} ≤ {MAX_HELD:,} B held of a flood when its client {when}", held <= MAX_HELD)
        )
    return checks


def render(memories: dict[str, ProxyMemory]) -> str:
    """The tables."""
    streams = [
        [
            f"{name}{_after(one.after_large)}",
            _size(one.size),
            f"{one.streams}",
            f"{one.prefill:,.0f}",
            f"{one.headed:,.0f}",
        ]
        for name, memory in memories.items()
        for one in memory.streams
    ]
    bursts = [
        [f"{name}{_after(one.after_large)}", f"{one.bodies:,}", f"{one.peak:.1%}", f"{one.given_back:.1%}"]
        for name, memory in memories.items()
        for one in memory.bursts
    ]
    others = [
        [
            name,
            f"{memory.kept_of_large:,}",
            f"{memory.flood.held:,}",
            f"{memory.flood.flowing:,}",
            f"{memory.flood.sent_while_held:,}",
        ]
        for name, memory in memories.items()
    ]
    flooded = ["B held after", "one 16 MiB body", "flood unread", "flood read", "(taken unread)"]
    return "\n\n".join(
        [
            table(["B a stream", "prompt", "streams", "prefill", "early head"], streams),
            table(["burst of bodies", "B of bodies", "held at peak", "given back"], bursts),
            table(flooded, others),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    options = _parse(arguments)
    end_on_sigterm()
    memories: dict[str, ProxyMemory] = {}
    for name in options.proxies:
        try:
            memories[name] = measure(name, options, peers_with(options.serve))
        except (PeerError, ProbeError) as error:
            print(f"bench.memory: {name}: {told(error)}", file=sys.stderr)
            return 1
    checks = [one for name, memory in memories.items() for one in check(name, memory)]
    print(f"{render(memories)}\n\n{verdict(checks)}")
    if options.json is not None:
        write_json(options.json, {name: as_json(memory) for name, memory in memories.items()}, checks)
    return status(checks, required=options.require)


def as_json(memory: ProxyMemory) -> dict[str, object]:
    """All figures of one proxy."""
    return {
        "streams": [one._asdict() for one in memory.streams],
        "kept_of_large": memory.kept_of_large,
        "bursts": [one._asdict() for one in memory.bursts],
        "flood": memory.flood._asdict(),
    }


def _size(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def _after(after_large: bool) -> str:
    return " after 16 MiB" if after_large else ""


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory", description="Memory per stream, and of what nobody reads."
    )
    parser.add_argument("--proxies", nargs="+", choices=PLAIN, default=["trioproxy"])
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="further options of `trioproxy serve`")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--large-streams", type=int, default=32, help="of 16 MiB prompts")
    parser.add_argument("--settle", type=float, default=1.0, help="seconds before memory is read")
    parser.add_argument("--flood", type=int, default=200_000_000, help="bytes sent to the client that does not read")
    parser.add_argument("--hold", type=float, default=3.0, help="seconds for which it does not read")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--require", action="store_true", help="exit with 1 if a check does not hold")
    return parser.parse_args(arguments, namespace=Options())


if __name__ == "__main__":
    sys.exit(main())
