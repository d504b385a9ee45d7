"""The loads and the memory scenarios: what they measure without a proxy, and the faults of one that they find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.crowd import gathered
from bench.event_leg import EventCost, measure_events
from bench.flood import flood
from bench.memory import MAX_HELD, MIDDLE, fresh
from bench.origin import Origin, serving
from bench.peers.install import Here
from bench.peers.peer import Peer, PeerError
from bench.peers.running import running
from bench.report import told
from bench.request_leg import measure_requests
from bench.wire import Loop, ProbeError

RELAY = Path(__file__).with_name("relay.py")


def relay(fault: str) -> Peer:
    return Peer(fault, Here(), lambda listen, upstream, _: [str(RELAY), str(listen.port), str(upstream.port), fault])


FAULTS = ("none", "keeps-bodies", "reads-ahead", "gathers", "loses")
PEERS = {fault: relay(fault) for fault in FAULTS}


class Probe(NamedTuple):
    loop: Loop
    origin: Origin


@pytest.fixture
def probe() -> Iterator[Probe]:
    with Loop() as loop, serving(loop) as origin:
        yield Probe(loop, origin)


def events(probe: Probe, port: int, *, in_steps: bool = False) -> EventCost:
    return measure_events(
        probe.loop, probe.origin, port, lambda: 0, streams=10, rate=20, seconds=0.5, in_steps=in_steps
    )


def test_requests_without_a_proxy(probe: Probe) -> None:
    clock = iter((1_000_000, 5_000_000))
    cost = measure_requests(
        probe.loop, probe.origin, probe.origin.port, lambda: next(clock), connections=4, seconds=0.1
    )
    assert cost.requests > 0
    assert cost.us_per_request == pytest.approx(4000 / cost.requests)


@pytest.mark.parametrize("in_steps", [False, True])
def test_events_without_a_proxy(probe: Probe, in_steps: bool) -> None:
    cost = events(probe, probe.origin.port, in_steps=in_steps)
    assert 80 <= cost.events <= 110
    assert cost.p50_ms <= cost.p99_ms


def test_a_crowd_without_a_proxy(probe: Probe) -> None:
    with gathered(probe.loop, probe.origin, probe.origin.port, count=5, size=100_000) as crowd:
        probe.origin.pause()
        crowd.upload_but_the_end()
        probe.origin.resume()
        crowd.upload_end()
        crowd.begin()
        crowd.end()


def test_a_flood_without_a_proxy(probe: Probe) -> None:
    samples = iter(range(10**9))
    seen = flood(probe.loop, probe.origin, probe.origin.port, lambda: next(samples), size=50_000_000, hold=0.2)
    assert 0 < seen.sent_while_held < 50_000_000
    assert 0 < seen.held < seen.flowing


def test_a_lost_event_is_found(probe: Probe) -> None:
    with running(PEERS["loses"], probe.origin.port) as proxy, pytest.raises(ProbeError):
        events(probe, proxy.port)


@pytest.mark.parametrize(("fault", "merged"), [("none", False), ("gathers", True)])
def test_merged_events_are_counted(probe: Probe, fault: str, merged: bool) -> None:
    with running(PEERS[fault], probe.origin.port) as proxy:
        cost = events(probe, proxy.port)
    assert (cost.late > cost.events / 4) is merged


@pytest.mark.parametrize(("fault", "kept"), [("none", False), ("keeps-bodies", True)])
def test_kept_bodies_are_found(fault: str, kept: bool) -> None:
    with fresh(fault, settle=0.2, peers=PEERS) as bench:
        memory = bench.streams(20, MIDDLE, after_large=False)
    assert (memory.prefill > 400_000) is kept
    assert (memory.headed > 400_000) is kept


@pytest.mark.parametrize(("fault", "held"), [("none", False), ("reads-ahead", True)])
def test_a_held_response_is_found(fault: str, held: bool) -> None:
    with fresh(fault, settle=0.2, peers=PEERS) as bench:
        seen = bench.flood(30_000_000, hold=0.5)
    assert (seen.held > MAX_HELD) is held


def test_a_proxy_that_does_not_start_tells_why(probe: Probe) -> None:
    bad = Peer("bad", Here(), lambda _, __, ___: ["-c", "exit('no such upstream')"])
    with pytest.raises(PeerError, match="bad ended with status 1") as raised, running(bad, probe.origin.port):
        pass
    assert "no such upstream" in told(raised.value)


def test_a_proxy_that_ignores_sigterm_is_ended(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.running.STOP_TIMEOUT", 0.1)
    script = (
        "import signal, socket, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])));\nwhile True: s.accept()"
    )
    stays = Peer("stays", Here(), lambda listen, _, __: ["-c", script, str(listen.port)])
    with running(stays, probe.origin.port) as proxy:
        pass
    assert not Path(f"/proc/{proxy.pid}").exists()
