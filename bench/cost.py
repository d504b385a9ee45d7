"""`python -m bench.cost`: CPU per small request and per streamed event, beside HAProxy in the same run.

Lives here: the order of the rounds, the table, the checks. What a round does is in `request_leg` and `event_leg`.
Short rounds alternate between the proxies, because the machine is noisy: what slows one round down slows its
neighbour down too, and the ratio of neighbours stays.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench import process
from bench.event_leg import EventCost, measure_events
from bench.origin import Origin, serving
from bench.peers.peer import PeerError
from bench.peers.registry import PLAIN, peers_with
from bench.peers.running import Running, end_on_sigterm, running
from bench.report import Check, Rounds, status, table, told, verdict, write_json
from bench.request_leg import RequestCost, measure_requests
from bench.wire import Loop, ProbeError

DIRECT: Final = "direct"
"""The leg without a proxy: what the probe can do by itself."""
BASELINE: Final = "haproxy"
MAX_LATE: Final = 0.01
"""Share of events that may be merged with their successor: a busy machine stalls for longer than the pace now
and then, a proxy that gathers events does it always."""


class Options(argparse.Namespace):
    """What was asked for on the command line."""

    proxies: list[str]
    seconds: float
    rounds: int
    connections: int
    request_rate: float
    streams: int
    rate: float
    json: Path | None
    require: float | None
    serve: str


class Costs(NamedTuple):
    """All rounds of one proxy, in order."""

    requests: list[RequestCost]
    closed: list[RequestCost]
    spread: list[EventCost]
    steps: list[EventCost]

    def us(self) -> dict[str, list[float]]:
        """CPU µs per unit of each load, round by round."""
        return {
            "request": [cost.us_per_request for cost in self.requests],
            "request, closed loop": [cost.us_per_request for cost in self.closed],
            "event": [cost.us_per_event for cost in self.spread],
            "event in steps": [cost.us_per_event for cost in self.steps],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    options = _parse(arguments)
    end_on_sigterm()
    try:
        costs = measure(options)
    except (PeerError, ProbeError) as error:
        print(f"bench.cost: {told(error)}", file=sys.stderr)
        return 1
    checks = check(costs, options.require)
    print(render(costs))
    print(f"\n{verdict(checks)}")
    if options.json is not None:
        write_json(options.json, as_json(costs), checks)
    return status(checks, required=options.require is not None)


def measure(options: Options) -> dict[str, Costs]:
    """Run all rounds, each proxy's processes being the same for all of them.

    :raises PeerError: a proxy could not be started.
    :raises ProbeError: a proxy did something wrong while it was measured.
    """
    peers = peers_with(options.serve)
    costs = {name: Costs([], [], [], []) for name in (*options.proxies, DIRECT)}
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(Loop())
        origin = stack.enter_context(serving(loop))
        proxies = [stack.enter_context(running(peers[name], origin.port)) for name in options.proxies]
        for number in range(options.rounds):
            order = proxies if number % 2 == 0 else proxies[::-1]
            for proxy in order:
                _round(loop, origin, proxy, costs[proxy.name], options)
            print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
        _round(loop, origin, Running(DIRECT, 0, origin.port), costs[DIRECT], options)
    return costs


def _round(loop: Loop, origin: Origin, proxy: Running, costs: Costs, options: Options) -> None:
    cpu_ns: Callable[[], int] = partial(process.cpu_ns, proxy.pid) if proxy.pid else int
    request = partial(measure_requests, connections=options.connections)
    event = partial(measure_events, streams=options.streams, rate=options.rate)
    try:
        costs.requests.append(
            request(loop, origin, proxy.port, cpu_ns, seconds=options.seconds, rate=options.request_rate)
        )
        costs.closed.append(request(loop, origin, proxy.port, cpu_ns, seconds=options.seconds))
        costs.spread.append(event(loop, origin, proxy.port, cpu_ns, seconds=options.seconds, in_steps=False))
        costs.steps.append(event(loop, origin, proxy.port, cpu_ns, seconds=options.seconds, in_steps=True))
    except ProbeError as error:
        raise ProbeError(f"{proxy.name}: {error}") from error


def ratios(costs: dict[str, Costs], name: str) -> dict[str, Rounds]:
    """How many times the baseline's cost, by load, from the rounds that were neighbours; empty without a baseline."""
    if BASELINE not in costs or name == DIRECT:
        return {}
    baseline = costs[BASELINE].us()
    return {
        load: Rounds.of(mine / other for mine, other in zip(values, baseline[load], strict=True))
        for load, values in costs[name].us().items()
    }


def check(costs: dict[str, Costs], require: float | None) -> list[Check]:
    """What has to hold: events come one by one and, if a ratio is required, no load costs more than that."""
    checks: list[Check] = []
    for name, cost in costs.items():
        events = [*cost.spread, *cost.steps]
        late = sum(one.late for one in events) / sum(one.events for one in events)
        checks.append(
            Check(f"{name}: {late:.2%} of events merged with their successor ≤ {MAX_LATE:.0%}", late <= MAX_LATE)
        )
        if require is not None and name != BASELINE:
            checks += [
                Check(f"{name}: {ratio.median:.2f} × {BASELINE} per {load} ≤ {require:g}", ratio.median <= require)
                for load, ratio in ratios(costs, name).items()
            ]
    return checks


def render(costs: dict[str, Costs]) -> str:
    """The table: CPU and its ratio, median (lowest–highest) of the rounds."""
    rows: list[list[str]] = []
    for load in ("request", "request, closed loop", "event", "event in steps"):
        for name, cost in costs.items():
            ratio = ratios(costs, name).get(load)
            cpu = "" if name == DIRECT else str(Rounds.of(cost.us()[load]))
            times = "" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
            rows.append([f"{load}, {name}", cpu, times, *_seen(cost, load)])
    return table(["load, proxy", "CPU µs", f"× {BASELINE}", "per second", "p50 ms", "p99 ms"], rows)


def _seen(cost: Costs, load: str) -> list[str]:
    if load.startswith("request"):
        requests = cost.requests if load == "request" else cost.closed
        return [f"{Rounds.of(one.per_second for one in requests).median:.0f}", "", ""]
    events = cost.spread if load == "event" else cost.steps
    return [
        f"{Rounds.of(one.per_second for one in events).median:.0f}",
        f"{Rounds.of(one.p50_ms for one in events).median:.2f}",
        f"{Rounds.of(one.p99_ms for one in events).median:.2f}",
    ]


def as_json(costs: dict[str, Costs]) -> dict[str, object]:
    """All rounds and the ratios."""
    return {
        name: {
            "requests": [one._asdict() for one in cost.requests],
            "requests_closed_loop": [one._asdict() for one in cost.closed],
            "events": [one._asdict() for one in cost.spread],
            "events_in_steps": [one._asdict() for one in cost.steps],
            "ratios": {load: ratio._asdict() for load, ratio in ratios(costs, name).items()},
        }
        for name, cost in costs.items()
    }


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cost", description="CPU per small request and per streamed event."
    )
    parser.add_argument("--proxies", nargs="+", choices=PLAIN, default=["trioproxy", "haproxy"])
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="further options of `trioproxy serve`")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load, each proxy, each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16, help="that send small requests")
    parser.add_argument("--request-rate", type=float, default=1000.0, help="small requests a second, paced")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=15.0, help="events a second on each stream")
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    parser.add_argument("--require", type=float, help=f"exit with 1 if a load costs more than this × {BASELINE}")
    return parser.parse_args(arguments, namespace=Options())


if __name__ == "__main__":
    sys.exit(main())
