"""`python -m bench.compare.cpu`: CPU per small request and per streamed event, of any peer, LiteLLM too.

Lives here: the two loads and their rounds. `bench.cost` is sharper, since it checks every byte and loads harder; but it
needs proxies that pass bytes on as they came and ask nothing of their upstream by themselves. Here clients are httpx's,
the model server is `trioproxy mock`'s, both in this process, and what a client gets is checked by its meaning.

All peers run at the same time and take turns, so that what slows one down slows its neighbour down too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import trio

from bench.compare.measure import BASELINE, Cost, cost_of, start_of
from bench.peers.peer import MODEL
from bench.peers.registry import PEERS
from bench.process import cpu_ns
from bench.report import table
from trioproxy import PoolTransport
from trioproxy.bench.mock import MockServer
from trioproxy.bench.mock_request import mark
from trioproxy.bench.referee.target import Target, TargetError, parse_command, started, what_ends

CONNECTIONS: Final = 8
PATIENCE: Final = 60.0
"""Seconds for one answer, on a slow peer."""
_WARM_UP: Final = 5
"""Requests, and as many streams, before the first round: pools fill, and code that is compiled late is compiled."""


class Load(NamedTuple):
    """What every peer is loaded with, for `seconds` each."""

    seconds: float
    rate: float
    """Small requests a second."""
    streams: int
    interval: float
    """Seconds between two events of a stream."""


class CpuError(Exception):
    """An answer was not what it should be."""


class _Peer(NamedTuple):
    name: str
    target: Target
    client: httpx.AsyncClient


async def measure(names: Sequence[str], load: Load, rounds: int) -> dict[str, Cost]:
    """Load all peers in turn.

    :raises TargetError: one cannot be started, or has ended.
    :raises CpuError: one has answered wrongly.
    """
    requests: dict[str, list[float]] = {name: [] for name in names}
    events: dict[str, list[float]] = {name: [] for name in names}
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        upstream: tuple[str, int] = await nursery.start(partial(MockServer().serve, "127.0.0.1", 0))
        peers = [await _start(stack, name, upstream) for name in names]
        for peer in peers:
            for _ in range(_WARM_UP):
                await _ask(peer)
                await _stream(peer, tokens=3, interval=0.0)
        for number in range(rounds):
            for peer in peers if number % 2 == 0 else peers[::-1]:
                requests[peer.name].append(await _requests(peer, load))
                events[peer.name].append(await _events(peer, load))
                print(f"round {number + 1} of {rounds}: {peer.name}", file=sys.stderr, flush=True)
        nursery.cancel_scope.cancel()
    found = {name: {"request": requests[name], "event": events[name]} for name in names}
    return {name: cost_of(name, found) for name in names}


async def _start(stack: AsyncExitStack, name: str, upstream: tuple[str, int]) -> _Peer:
    command = parse_command(start_of(PEERS[name]))
    target = await stack.enter_async_context(started([sys.executable, *command[1:]], upstream))
    client = httpx.AsyncClient(
        transport=PoolTransport(limits=httpx.Limits(max_connections=1000, max_keepalive_connections=1000)),
        base_url=target.address.url,
        headers=dict(PEERS[name].headers),
        timeout=PATIENCE,
    )
    peer = _Peer(name, target, await stack.enter_async_context(client))
    await _until_ready(peer)
    return peer


async def _until_ready(peer: _Peer) -> None:
    """Some listen before they know their upstream."""
    with trio.move_on_after(PEERS[peer.name].start_timeout):
        while True:
            try:
                await _ask(peer)
            except (CpuError, httpx.HTTPError):
                await trio.sleep(0.2)
            else:
                return
    raise TargetError(peer.target.explain(f"{peer.name} does not answer"))


async def _requests(peer: _Peer, load: Load) -> float:
    """CPU µs for each small request, paced."""
    count = max(1, round(load.rate * load.seconds))
    before = cpu_ns(_pid(peer))
    start = trio.current_time()
    limit = trio.CapacityLimiter(CONNECTIONS)

    async def one() -> None:
        async with limit:
            await _ask(peer)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            await trio.sleep_until(start + number / load.rate)
            nursery.start_soon(one)
    return (cpu_ns(_pid(peer)) - before) / count / 1000


async def _events(peer: _Peer, load: Load) -> float:
    """CPU µs for each streamed event, the streams' beginnings and ends not counted."""
    tokens = round((load.seconds + 2) / load.interval)
    seen = 0

    def event() -> None:
        nonlocal seen
        seen += 1

    async with trio.open_nursery() as nursery:
        for _ in range(load.streams):
            nursery.start_soon(partial(_stream, peer, tokens=tokens, interval=load.interval, event=event))
        await trio.sleep(1.0)  # all have begun
        before, events = cpu_ns(_pid(peer)), seen
        await trio.sleep(load.seconds)
        spent, events = cpu_ns(_pid(peer)) - before, seen - events
        nursery.cancel_scope.cancel()
    if events < 0.8 * load.streams * load.seconds / load.interval:
        raise CpuError(f"{peer.name}: {events} events came, of {load.streams * load.seconds / load.interval:.0f}")
    return spent / events / 1000


def _pid(peer: _Peer) -> int:
    assert peer.target.pid is not None
    return peer.target.pid


async def _ask(peer: _Peer) -> None:
    answer = await peer.client.post("/v1/chat/completions", json=_body(tokens=1, interval=0.0, stream=False))
    if answer.status_code != 200:
        raise CpuError(f"{peer.name} answered with {answer.status_code}: {answer.text[:200]}")
    if not answer.json()["choices"][0]["message"]["content"]:
        raise CpuError(f"{peer.name} answered without a token: {answer.text[:200]}")


def _nothing() -> None:
    """Nobody counts."""


async def _stream(peer: _Peer, *, tokens: int, interval: float, event: Callable[[], None] = _nothing) -> None:
    body = _body(tokens=tokens, interval=interval, stream=True)
    async with peer.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise CpuError(f"{peer.name} answered a stream with {answer.status_code}")
        async for piece in answer.aiter_raw():
            for _ in range(piece.count(b"data: ")):
                event()


def _body(*, tokens: int, interval: float, stream: bool) -> dict[str, object]:
    knobs = mark({"tokens": tokens, "interval": interval, "prefill": 0.0}).decode()
    return {
        "model": MODEL,
        "stream": stream,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": f"{knobs} {'x' * 400}"}],
    }


class Options(argparse.Namespace):
    """What was asked for on the command line."""

    peers: list[str]
    seconds: float
    rounds: int
    rate: float
    streams: int
    json: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    options = _parse(arguments)
    load = Load(options.seconds, options.rate, options.streams, 1 / 15)
    started_at = time.monotonic()
    costs: dict[str, Cost] = {}

    async def run() -> None:
        costs.update(await measure(options.peers, load, options.rounds))

    if (why := trio.run(what_ends, run, CpuError, httpx.HTTPError)) is not None:
        print(f"bench.compare.cpu: {why}", file=sys.stderr)
        return 1
    rows = [
        [name, _rounds(cost.request), f"{cost.request_ratio:.1f}", _rounds(cost.event), f"{cost.event_ratio:.1f}"]
        for name, cost in costs.items()
    ]
    print(table(["proxy", "µs a request", f"× {BASELINE}", "µs an event", f"× {BASELINE}"], rows))
    print(f"{time.monotonic() - started_at:.0f} s", file=sys.stderr)
    if options.json is not None:
        found = {name: {"request": cost.request, "event": cost.event} for name, cost in costs.items()}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _rounds(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.0f} ({ordered[0]:.0f}–{ordered[-1]:.0f})"


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare.cpu", description="CPU per small request and per streamed event, of any peer."
    )
    parser.add_argument("--peers", nargs="+", choices=sorted(PEERS), default=["trioproxy", BASELINE], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load, each peer, each round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=50.0, help="small requests a second (%(default)s)")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    options = parser.parse_args(arguments, namespace=Options())
    if BASELINE not in options.peers:
        parser.error(f"CPU is told as a ratio to {BASELINE}: add it to --peers")
    return options


if __name__ == "__main__":
    sys.exit(main())
