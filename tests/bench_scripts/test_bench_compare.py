"""What a comparison writes of what it has found."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from bench.compare import cpu
from bench.compare.__main__ import main
from bench.compare.measure import Cost, MeasureError, Plan, Result, cost_of, measure_memory, referee
from bench.compare.plots import draw
from bench.compare.tables import Case, Comparison, cases, render, seen
from bench.peers.peer import Peer
from bench.peers.registry import PEERS
from trioproxy.bench.referee.memory_metrics import MEMORY, SizeResult
from trioproxy.bench.referee.memory_report import MemoryReport
from trioproxy.bench.referee.metrics import CANCEL, CaseResult, Metrics, Spread
from trioproxy.bench.referee.records import Outcome
from trioproxy.bench.referee.report import CancelReport, Machine


def case(stage: str, way: str, samples: list[float], **outcomes: int) -> CaseResult:
    counts = {outcome.value: 0 for outcome in Outcome} | {name.replace("_", "-"): n for name, n in outcomes.items()}
    return CaseResult(
        leg="proxy",
        load="single",
        stage=stage,
        way=way,
        upstream="stops",
        requests=sum(counts.values()),
        outcomes=counts,
        propagation_ms=Spread.of(samples),
        samples_ms=samples,
        tokens_for_nobody=0,
        slot_ms_for_nobody=0.0,
        why={},
    )


def cancel(*found: CaseResult, missed: int = 0) -> CancelReport:
    metrics: Metrics = dict.fromkeys((one.name for one in CANCEL), 0)
    metrics["missed_aborts"] = missed
    return CancelReport(target="", machine=Machine(), options={}, metrics=metrics, cases=list(found))


def memory(*held: tuple[int, int]) -> MemoryReport:
    sizes = [
        SizeResult(size=size, process=0, streams=10, failed=0, why={}, idle_bytes=1, retained_bytes=10 * each)
        for size, each in held
    ]
    metrics: Metrics = dict.fromkeys(one.name for one in MEMORY)
    metrics["given_back_share"] = 0.5
    return MemoryReport(
        target="",
        machine=Machine(),
        options={},
        metrics=metrics,
        fresh=True,
        sizes=sizes,
        leaks=[],
        unread=None,
        samples=[],
    )


@pytest.fixture
def comparison() -> Comparison:
    """Of two peers: one that sees all, one that misses, is late, serves a half-close, and has no CPU figures."""
    good = Result(
        name="trioproxy",
        version="1",
        cancel=[
            cancel(case("whole", "fin", [1.0, 3.0], seen=2), case("stall", "rst", [2.0], seen=1)),
            cancel(case("whole", "fin", [5.0], seen=1), case("stall", "rst", [], never_reached=1)),
        ],
        memory=memory((4096, 20_000), (4 << 20, 21_000)),
        cost=Cost(request=[50, 60, 70], event=[20], request_ratio=2.0, event_ratio=1.5),
    )
    bad = Result(
        name="litellm",
        version="2",
        cancel=[
            cancel(
                case("whole", "fin", [], missed=2, seen=1),
                case("stall", "rst", [400.0], late=1),
                case("stall", "half-close", [], served=1),
                missed=2,
            ),
        ],
        failed=["cancel: it has ended", "memory: too late", "CPU: too slow"],
    )
    return Comparison(machine=Machine(), plan=Plan(["--rounds", "5"], [], ["--seconds", "2"]), results=[good, bad])


def test_rounds_are_put_together(comparison: Comparison) -> None:
    assert cases(comparison) == [Case("whole", "fin"), Case("stall", "rst"), Case("stall", "half-close")]
    whole = seen(comparison.results[0], Case("whole", "fin"))
    assert whole is not None
    assert (whole.aborted, whole.worst, whole.p50_ms, whole.max_ms) == (3, "seen", 3.0, 5.0)
    assert seen(comparison.results[0], Case("stall", "half-close")) is None


def test_the_page_says_what_was_missed_and_how_to_have_it_again(comparison: Comparison) -> None:
    page = render(comparison)
    for line in (
        "| whole | fin | 3.0 | **missed** 2/3 |",
        "| stall | rst | 2.0 | late 400 |",
        "| stall | half-close | – | served |",
        "| missed aborts | 0 | 2 |",
        "| bytes held per stream, 4 KiB prompt | 20,000 | – |",
        "| bytes held per stream, 4 MiB prompt | 21,000 | – |",
        "| given back afterwards | 50% | – |",
        "| trioproxy | 60 | 2.0 | 20 | 1.5 |",
        "- litellm, cancel: it has ended",
        "- litellm, memory: too late",
        "- litellm, CPU: too slow",
        "python -m bench.compare.cpu --peers trioproxy --seconds 2",
    ):
        assert line in page.splitlines(), line
    assert f"{' '.join(referee('cancel', PEERS['trioproxy'], [])[:3])} --proxy-cmd 'python -m bench.peers" in page


def test_it_can_be_kept_and_drawn(comparison: Comparison, tmp_path: Path) -> None:
    again = msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison)
    assert render(again) == render(comparison)
    (tmp_path / "compare.json").write_bytes(msgspec.json.encode(comparison))
    assert main(["--render", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "compare.md").read_text() == render(comparison)
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_was_measured(tmp_path: Path) -> None:
    nothing = Comparison(machine=Machine(), plan=Plan([], [], []), results=[Result(name="trioproxy", version="1")])
    assert "| missed aborts | – |" in render(nothing)
    draw(nothing, tmp_path / "compare.png")


def test_a_command_that_fails_is_no_figure() -> None:
    with pytest.raises(MeasureError, match="nonsense"):
        measure_memory(PEERS["trioproxy"], ["--size", "nonsense"], "trioproxy")


def test_cpu_needs_what_it_is_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--peers", "trioproxy"])
    assert caught.value.code == 2
    assert "leave cost out of --measure" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="PSS is Linux's")
def test_one_peer_for_real(tmp_path: Path) -> None:
    """Memory alone, and little of it: times need a machine that does nothing else."""
    assert main(["--peers", "trioproxy", "--quick", "--measure", "memory", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "compare.md").read_text()
    assert "| bytes held per stream, 512 KiB prompt | " in page
    assert "Not measured" not in page


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="HAProxy, which CPU is compared with, is not installed")
def test_cpu_of_two_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seconds", "0.3", "--rounds", "2", "--streams", "5", "--json", str(tmp_path / "cpu.json")]
    assert cpu.main(["--peers", "naive-trio", "haproxy", *words]) == 0
    found = json.loads((tmp_path / "cpu.json").read_text())
    naive, haproxy = cost_of("naive-trio", found), cost_of("haproxy", found)
    assert haproxy.request_ratio == haproxy.event_ratio == 1
    assert naive.request_ratio > 2
    assert len(naive.request) == len(naive.event) == 2
    assert "naive-trio" in capsys.readouterr().out


def test_cpu_of_a_peer_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def ends(_: Peer) -> str:
        return "python -c 'raise SystemExit(1)' {listen} {upstream}"

    monkeypatch.setattr(cpu, "start_of", ends)
    assert cpu.main(["--peers", "haproxy", "--seconds", "0.1", "--rounds", "1"]) == 1
    assert "the proxy has ended, with status 1" in capsys.readouterr().err
