"""What a process sets once, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trioproxy
from trioproxy.process import FILES_PER_STREAM, streams_for


def run(program: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(Path(trioproxy.__file__).parents[1])}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    assert (
        run(
            "import resource; from trioproxy.process import raise_file_limit as r\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))\n"
            "print(r(), r(), resource.getrlimit(resource.RLIMIT_NOFILE))"
        )
        == "200 200 (200, 200)\n"
    )


def test_how_many_streams_that_allows() -> None:
    assert streams_for(0) == streams_for(64) == 0
    assert streams_for(64 + 10 * FILES_PER_STREAM) == 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the threshold is glibc's")
def test_the_memory_of_released_bodies_goes_back_to_the_system() -> None:
    """After a body of 16 MiB, and beside a control that did not set the threshold."""
    program = """
from trioproxy import fix_mmap_threshold
from trioproxy.body import BufferedBody
from trioproxy.ledger import BodyLedger
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
def bodies(count, size):
    made = [BufferedBody(BodyLedger(1 << 40), limit=1 << 40, expected=size) for _ in range(count)]
    for body in made:
        while len(body) < size:
            body.reserve()
            with body.window() as window:
                window[:] = b"x" * len(window)
                count = len(window)
            body.filled(count)
        body.complete()
    return made
if SET:
    assert fix_mmap_threshold()
for body in bodies(1, 16 << 20):
    body.release()
before = resident()
held = bodies(100, 512 << 10)
small = [bytes(4096) for _ in range(100)]  # above them on the heap
for body in held:
    body.release()
print(resident() - before)
"""
    with_it = int(run(f"SET = True\n{program}"))
    without = int(run(f"SET = False\n{program}"))
    assert with_it < 0.05 * 100 * (512 << 10)
    assert without > with_it
