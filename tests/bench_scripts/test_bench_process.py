"""CPU and memory are read as the kernel counts them, children included."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from bench import process

CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
GRANDCHILD = """
held = bytearray(b"x") * 30_000_000
sum(range(3_000_000))
print("ready", flush=True)
input()
"""


@pytest.fixture
def parent() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, GRANDCHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child.pid
        child.communicate("\n", timeout=10)


def test_cpu_is_that_of_the_process_clock() -> None:
    sum(range(100_000))
    low, seen, high = time.process_time_ns(), process.cpu_ns(os.getpid()), time.process_time_ns()
    assert low <= seen <= high


def test_descendants_are_counted(parent: int) -> None:
    assert len(process.tree(parent)) == 2
    assert process.pss(parent) > 30_000_000
    own, both = time.clock_gettime_ns((~parent) << 3 | 2), process.cpu_ns(parent)
    assert both > own


def test_strangers_that_map_the_same_files_do_not_count(parent: int) -> None:
    before = process.pss(parent)
    with subprocess.Popen([sys.executable, "-c", GRANDCHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert process.pss(parent) == before
        other.communicate(b"\n", timeout=10)
