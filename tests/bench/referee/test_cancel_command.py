"""``trioproxy bench cancel`` as a process: its files, its exit statuses, and what is left of a run that breaks off."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import faulty
from trioproxy.bench.referee.metrics import CANCEL

NOBODY = "http://127.0.0.1:1"
SHORT = (
    *("--stage", "before-head", "--stage", "stall", "--way", "fin", "--rounds", "1", "--streams", "0", "--slots", "0"),
    *("--no-drain", "--prefill", "0.2", "--stall", "0.2", "--interval", "0.01", "--watch", "0.5"),
)


def command(*words: str, proxy: str | None = "correct") -> list[str]:
    started = f"{sys.executable} {faulty.__file__} {proxy} {{listen}} {{upstream}}"
    chosen = [] if proxy is None else ["--proxy-cmd", started]
    return [sys.executable, "-m", "trioproxy", "bench", "cancel", *chosen, *words]


def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def report_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_form_of_the_report(tmp_path: Path) -> None:
    files = {form: tmp_path / f"report.{form}" for form in ("json", "junit", "markdown", "html", "records")}
    options = [word for form, path in files.items() for word in (f"--{form}", str(path))]
    crowd = ("--streams", "10", "--survivors", "2", "--slots", "5")
    label = "<small & correct>"
    done = run(command(*SHORT, *crowd, *options, "--label", label, "--require", "missed_aborts==0"))
    # A crowded machine makes a run void, which is no fault of what is tested here.
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert "holds  missed_aborts==0  (is 0)" in done.stdout
    assert max(map(len, done.stdout.split("\n\n")[1].splitlines())) <= 100

    report = report_of(files["json"])
    assert set(report["metrics"]) == {definition.name for definition in CANCEL}
    assert report["metrics"]["failed_requests"] == report["metrics"]["false_aborts"] == 0
    assert report["metrics"]["served_at_once"] == 5
    assert [crowd["streams"] for crowd in report["crowds"]] == [10] * 4

    suite = ElementTree.parse(files["junit"]).getroot()[0]
    names = {(case.get("classname"), case.get("name")) for case in suite.iter("testcase")}
    assert {
        ("cancel.single", "stall, fin"),
        ("cancel.crowd", "stall ×10, fin"),
        ("require", "missed_aborts==0"),
    } <= names
    assert suite.get("failures") == "0"
    assert int(suite.get("tests", 0)) == len(names) == len(suite.findall("testcase"))

    markdown = files["markdown"].read_text()
    assert "- proxy: \\<small & correct\\>" in markdown
    assert all(f"| {definition.name.replace('_', chr(92) + '_')} |" in markdown for definition in CANCEL)

    page = files["html"].read_text()
    assert "&lt;small &amp; correct&gt;" in page
    assert page.count("<svg") == 6
    assert not re.search(r"<script|https?://(?!127\.0\.0\.1)|url\(|@import", page)

    records = lines(files["records"])
    assert len([record for record in records if record["load"] == "single" and record["way"] == "fin"]) == 4
    assert len([record for record in records if record["load"] == "crowd" and record["way"] != "stay"]) == 40
    assert all(record["payload"] is None and len(record["payload_sha256"]) == 64 for record in records)


@pytest.mark.parametrize(
    ("requirement", "status", "said"),
    [
        ("missed_aborts==0", 1, "FAILS  missed_aborts==0  (is 2)"),
        ("missed_aborts>=2", 0, "holds  missed_aborts>=2  (is 2)"),
        ("drain_cut==0", 1, "FAILS  drain_cut==0  (is not measured)"),
    ],
)
def test_a_requirement_decides_the_exit_status(tmp_path: Path, requirement: str, status: int, said: str) -> None:
    junit = tmp_path / "junit.xml"
    done = run(command(*SHORT, "--require", requirement, "--junit", str(junit), proxy="never"))
    assert said in done.stdout
    assert done.returncode == status or ("VOID" in done.stdout and done.returncode == 3)
    failures = {
        case.get("name") for case in ElementTree.parse(junit).iter("testcase") if case.find("failure") is not None
    }
    assert {"before-head, fin", "stall, fin"} <= failures
    assert (requirement in failures) == (status == 1)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (command(proxy=None), 2, "one of --proxy and --proxy-cmd is needed"),
        (command("--proxy", NOBODY, proxy=None), 2, "--proxy needs --upstream-listen"),
        (command("--proxy", "https://h:1", "--upstream-listen", "127.0.0.1:0", proxy=None), 2, "does not speak TLS"),
        (command("--proxy-cmd", "sleep 9", proxy=None), 2, "the command has no {listen}"),
        (command("--require", "missed_abort==0"), 2, "did you mean 'missed_aborts'?"),
        (command("--require", "nonsense==0"), 2, "there are: requests, aborted,"),
        (command("--require", "missed_aborts"), 2, "is not NAME==NUMBER"),
        (command("--json", "/nowhere/at/all"), 2, "there is no directory /nowhere/at"),
        (
            command("--proxy", "http://127.0.0.1:1", "--upstream-listen", "127.0.0.1:0", proxy=None),
            3,
            "nothing listens",
        ),
        (command("--proxy-cmd", "false {listen} {upstream}", proxy=None), 3, "the proxy has ended, with status 1"),
        (command("--proxy-cmd", "nothing-of-this-name {listen} {upstream}", proxy=None), 3, "cannot start"),
    ],
    ids=lambda value: None,
)
def test_wrong_use_and_absent_proxies(words: list[str], status: int, said: str) -> None:
    done = run(words)
    output = done.stdout + done.stderr
    assert said in output
    assert "Traceback" not in output
    assert "p50 ms" not in output
    assert done.returncode == status


def test_a_port_that_is_taken_and_a_proxy_that_points_elsewhere(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-m", "trioproxy", "mock", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        found = re.search(rb"127\.0\.0\.1:([0-9]+)", other.stdout.readline())
        assert found is not None
        port = found[1].decode()
        url, address = f"http://127.0.0.1:{port}", f"127.0.0.1:{port}"
        taken = run(command("--proxy", url, "--upstream-listen", address, proxy=None))
        assert taken.returncode == 3
        assert f"cannot play the model server at {address}" in taken.stdout
        assert "--upstream-listen" in taken.stdout
        elsewhere = run(command("--proxy", url, "--upstream-listen", "127.0.0.1:0", proxy=None))
        assert elsewhere.returncode == 3
        assert "did not come to the model server" in elsewhere.stdout
    finally:
        other.terminate()
        other.communicate(timeout=10)


def test_a_proxy_that_dies_in_the_middle(tmp_path: Path) -> None:
    records, written = tmp_path / "records", tmp_path / "report.json"
    done = run(command(*SHORT, "--records", str(records), "--json", str(written), proxy="dies"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the proxy has ended, with status 9" in done.stdout
    assert "out of luck" in done.stdout  # what it printed
    assert "Traceback" not in done.stdout + done.stderr
    report = report_of(written)
    assert report["error"]
    assert report["metrics"]["missed_aborts"] == 0
    assert set(report["metrics"]) == {definition.name for definition in CANCEL}
    kept = lines(records)
    # Each is written when it is over: the one that was left is watched while the next is played.
    assert {record["stage"] for record in kept if record["leg"] == "proxy"} >= {"none", "before-head"}


def test_an_interrupt_in_the_middle(tmp_path: Path) -> None:
    records, written = tmp_path / "records", tmp_path / "report.json"
    words = command(*SHORT, "--rounds", "500", "--records", str(records), "--json", str(written))
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 30
    while (not records.exists() or len(records.read_text().splitlines()) < 5) and time.monotonic() < until:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "interrupted by SIGINT" in output
    assert "Traceback" not in output + errors
    report = report_of(written)
    assert report["metrics"]["requests"] == sum(record["leg"] == "proxy" for record in lines(records))
    assert report["metrics"]["lost_slots"] is None
    assert len(lines(records)) >= 5
