"""What the commands about httpx say."""

from __future__ import annotations

import re
import subprocess
import sys


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_pool_that_survives_and_the_one_that_does_not() -> None:
    ours = run("bench.httpx_cancel", "--seconds", "0.5")
    assert ours.returncode == 0
    assert re.search(r"afterwards: Counts\(idle=\d+, held=0, connecting=0, waiting=0\)\n", ours.stdout)
    assert "lost: 0 of 10 connections" in ours.stdout
    assert "the next request: answered" in ours.stdout


def test_the_cost_of_a_request_beside_httpcore() -> None:
    done = run("bench.httpx_cost", "--requests", "20", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == [
        "trioproxy, llhttp",
        "trioproxy, h11",
        "httpcore",
    ]
