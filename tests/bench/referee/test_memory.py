"""Each fault of memory is caught by the figure meant for it, in real processes; a correct proxy by none.

The faults are those of ``faulty_memory.py``. What is unit-tested of the figures is in ``test_memory_metrics.py``.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import faulty_memory
from trioproxy.bench.referee.memory import MemoryPlan, MemoryRun
from trioproxy.bench.referee.memory_report import MemoryReport
from trioproxy.bench.referee.memory_samples import unsupported
from trioproxy.cli import main

pytestmark = pytest.mark.skipif(unsupported() is not None, reason=f"memory cannot be read: {unsupported()}")

SCRIPT = Path(faulty_memory.__file__)
LARGE = 2**20
MIB = 2**20
SERVE = f"{shlex.quote(sys.executable)} -m trioproxy serve --listen {{listen}} --upstream http://{{upstream}}"
SHORT = (
    *("--size", "4K", "--size", "1M", "--streams", "8", "--settle", "0.3", "--after", "0.5"),
    *("--rounds", "3", "--requests", "30", "--unread", "24M", "--hold", "0.7"),
)


def command(name: str, listen: str = "{listen}", upstream: str = "{upstream}") -> list[str]:
    """One of the small proxies, behind a wrapper. Large blocks go back to the system: else glibc itself has the fault
    that is looked for, and keeps a body."""
    return ["env", "MALLOC_MMAP_THRESHOLD_=65536", sys.executable, str(SCRIPT), name, listen, upstream]


async def measure(name: str, *, sizes: bool = False, leaks: bool = False, unread: bool = False) -> MemoryReport:
    plan = MemoryPlan(
        command=command(name),
        sizes=(4096, LARGE) if sizes else (),
        streams=8,
        settle=0.3,
        after=0.5,
        rounds=4 if leaks else 0,
        each=100,
        flood=24 * MIB if unread else 0,
        hold=0.7,
    )
    run = MemoryRun(plan, lambda _: None)
    await run.run()
    report = run.report({})
    assert report.error is None
    assert report.metrics["failed_requests"] == 0
    return report


@pytest.mark.parametrize(("name", "low", "high"), [("correct", -0.02, 0.02), ("retains", 0.9, 1.1)])
async def test_a_retained_body_is_the_slope_over_the_size(name: str, low: float, high: float) -> None:
    report = await measure(name, sizes=True)
    for figure in ("retained_slope", "waiting_slope"):
        slope = report.metrics[figure]
        assert slope is not None
        assert low < slope < high
    back = report.metrics["given_back_share"]
    assert back is not None
    assert back > 0.8
    assert [one.streams for one in report.sizes] == [8, 8]
    assert [one.process for one in report.sizes] == [1, 2]
    assert report.fresh


@pytest.mark.parametrize(("name", "low", "high"), [("correct", 1.0, 2.4), ("copies", 3.5, 4.4)])
async def test_copies_of_a_body_are_its_peak(name: str, low: float, high: float) -> None:
    report = await measure(name, sizes=True)
    copies = report.metrics["upload_peak_copies"]
    assert copies is not None
    assert low < copies < high
    assert all(one.peak_exact for one in report.sizes)


@pytest.mark.parametrize("name", ["correct", "leaks-completed", "leaks-cancelled"])
async def test_a_leak_is_the_slope_over_its_requests(name: str) -> None:
    report = await measure(name, leaks=True)
    limit = 0.5 * 1000 * faulty_memory.LOST
    for kind in ("completed", "cancelled"):
        lost = report.metrics[f"leak_{kind}_bytes"]
        assert lost is not None
        assert (lost > limit) == (name == f"leaks-{kind}"), (kind, lost)
    assert [leak.missed for leak in report.leaks] == [0, 0]
    assert report.metrics["requests"] == 2 * 6 * 100


@pytest.mark.parametrize(("name", "held"), [("correct", False), ("buffers", True)])
async def test_a_stream_that_nobody_reads_is_held_or_not(name: str, held: bool) -> None:
    report = await measure(name, unread=True)
    taken, kept = report.metrics["unread_bytes_taken"], report.metrics["unread_bytes_held"]
    assert taken is not None
    assert kept is not None
    assert (taken == 24 * MIB) == held
    assert (kept > 10 * MIB) == held
    assert held or kept < 4 * MIB


# ---- the command


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "memory", *arguments])


def test_trioproxy_holds_nothing_of_a_body(tmp_path: Path) -> None:
    written = {name: tmp_path / name for name in ("json", "junit", "markdown", "html", "records")}
    holds = ["retained_slope<0.01", "waiting_slope<0.01", "retained_bytes_per_stream<60000", "given_back_share>0.7"]
    holds += ["unread_bytes_held<1000000", "failed_requests==0", "upload_peak_copies<1.5"]
    result = bench(
        *SHORT,
        *("--size", "4M", "--streams", "20"),  # what the first large body costs once is spread over all streams
        *("--proxy-cmd", SERVE, "--label", "trioproxy"),
        *(word for one in holds for word in ("--require", one)),
        *(word for name, path in written.items() for word in (f"--{name}", str(path))),
    )
    assert result.exit_code == 0, result.output
    assert "given back" in result.output
    assert "leak: " in result.output
    report = json.loads(written["json"].read_bytes())
    assert report["kind"] == "memory"
    assert report["own"]["peak_rss_bytes"] > 0
    assert {sample[2] for sample in report["samples"]} >= {"idle", "waiting", "streaming", "ended", "unread stream"}
    assert max(sample[3] for sample in report["samples"] if sample[2] == "streaming") == 20
    records = written["records"].read_text().splitlines()
    assert len(records) == report["metrics"]["requests"]
    assert all(len(json.loads(line)["payload_sha256"]) == 64 for line in records)
    html = written["html"].read_text()
    assert "Memory of the proxy" in html
    assert "one whole body held" in html


def test_a_requirement_that_does_not_hold_is_status_1() -> None:
    result = bench(
        *SHORT,
        "--proxy-cmd",
        shlex.join(command("retains")),
        "--rounds",
        "0",
        "--unread",
        "0",
        "--require",
        "retained_slope<0.01",
    )
    assert result.exit_code == 1
    assert "FAILS  retained_slope<0.01" in result.output


def test_a_proxy_that_dies_leaves_what_was_found(tmp_path: Path) -> None:
    json_file, records = tmp_path / "json", tmp_path / "records"
    result = bench(
        *SHORT, "--proxy-cmd", shlex.join(command("dies")), "--json", str(json_file), "--records", str(records)
    )
    assert result.exit_code == 3
    assert "the proxy has ended, with status 9" in result.output
    assert "out of luck" in result.output
    report = json.loads(json_file.read_bytes())
    assert len(report["sizes"]) == 2
    assert report["metrics"]["retained_slope"] is not None
    assert report["metrics"]["leak_completed_bytes"] is None
    assert len(records.read_text().splitlines()) == report["metrics"]["requests"] >= 2 * 18


@contextmanager
def running(name: str) -> Generator[tuple[str, str, subprocess.Popen[bytes]]]:
    """One of the small proxies, started by somebody else: its address and that of its model server."""
    ports: list[int] = []
    for _ in range(2):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            ports.append(sock.getsockname()[1])
    listen, upstream = (f"127.0.0.1:{port}" for port in ports)
    child = subprocess.Popen(command(name, listen, upstream))
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", ports[0])).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield listen, upstream, child
    finally:
        child.kill()
        child.wait()


def test_a_proxy_that_runs_already_is_measured_by_its_pid() -> None:
    with running("retains") as (listen, upstream, child):
        result = bench(*SHORT, "--proxy", f"http://{listen}", "--upstream-listen", upstream, "--pid", str(child.pid),
                       "--require", "retained_slope>0.5")  # fmt: skip
        assert result.exit_code == 0, result.output
        assert "one process that ran already" in result.output
        assert child.poll() is None


def test_a_process_that_is_not_there() -> None:
    with running("correct") as (listen, upstream, _):
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        result = bench(*SHORT, "--proxy", f"http://{listen}", "--upstream-listen", upstream, "--pid", str(gone.pid))
        assert result.exit_code == 3
        assert f"there is no process {gone.pid}" in result.output


def test_a_proxy_that_does_not_forward_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trioproxy.bench.referee.memory_lab.GREET_TIMEOUT", 0.5)
    script = "import http.server as s, sys; s.test(s.BaseHTTPRequestHandler, port=int(sys.argv[1]), bind='127.0.0.1')"
    words = [sys.executable, "-c", script, "{listen_port}", "{upstream}"]
    result = bench(*SHORT, "--proxy-cmd", shlex.join(words))
    assert result.exit_code == 3
    assert "the proxy does not forward: answered with status 501" in result.output


def test_more_than_the_machine_has_is_refused() -> None:
    result = bench("--proxy-cmd", SERVE, "--size", "100G", "--streams", "100")
    assert result.exit_code == 3
    assert "are free: take fewer --streams or a smaller --size" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of --proxy and --proxy-cmd is needed"),
        (["--proxy", "http://127.0.0.1:1"], "--proxy needs --upstream-listen"),
        (["--proxy", "http://127.0.0.1:1", "--upstream-listen", "127.0.0.1:2"], "--proxy needs the proxy's --pid"),
        (["--proxy-cmd", SERVE, "--pid", "1"], "--proxy-cmd has its own"),
        (["--proxy-cmd", "cat"], "the command has no {listen}"),
        (["--proxy-cmd", SERVE, "--size", "4X"], "'4X' is no number of bytes"),
        (["--proxy-cmd", SERVE, "--size", "0"], "a body has at least 1 byte"),
        (["--proxy-cmd", SERVE, "--require", "retained_slop<1"], "did you mean 'retained_slope'?"),
        (["--proxy-cmd", SERVE, "--streams", "0"], "x>=1"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    result = bench("--proxy-cmd", SERVE)
    assert result.exit_code == 1
    assert "Linux alone" in result.output


def test_an_interrupted_run_tells_what_it_has() -> None:
    words = [sys.executable, "-m", "trioproxy", "bench", "memory", *SHORT, "--proxy-cmd", SERVE]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    time.sleep(4)
    os.kill(child.pid, signal.SIGINT)
    output, _ = child.communicate(timeout=20)
    assert "interrupted by SIGINT" in output
    assert child.returncode not in (0, 1)
