"""What the type checkers refuse, both of them, and what they let pass: see tests/typing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trioproxy

PROGRAMS = Path(__file__).parent / "typing"
SOURCE = Path(trioproxy.__file__).parents[1]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, as files that the checkers take."""
    folder = tmp_path_factory.mktemp("typing")
    for program in PROGRAMS.glob("*.py.txt"):
        (folder / program.name.removesuffix(".txt")).write_text(program.read_text())
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(SOURCE)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, int], str]:
    """The lines that must be refused, with a part of what mypy says of each."""
    found: dict[tuple[str, int], str] = {}
    for program in PROGRAMS.glob("*.py.txt"):
        for number, line in enumerate(program.read_text().splitlines(), 1):
            _, mark, what = line.partition("  # E: ")
            if mark:
                found[program.name.removesuffix(".txt"), number] = what
    assert found
    return found


def test_mypy(programs: Path, expected: dict[tuple[str, int], str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", "."]
    done = subprocess.run(
        command, cwd=programs, env=os.environ | {"MYPYPATH": str(SOURCE)}, capture_output=True, text=True, check=False
    )
    refused: dict[tuple[str, int], str] = {}
    for line in done.stdout.splitlines():
        if match := re.fullmatch(r"([a-z_]+\.py):(\d+): error: (.*)", line):
            refused[match[1], int(match[2])] = match[3]
    assert refused.keys() == expected.keys(), done.stdout + done.stderr
    for place, what in expected.items():
        assert what in refused[place], place


def test_pyright(programs: Path, expected: dict[tuple[str, int], str]) -> None:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "."]
    done = subprocess.run(command, cwd=programs, capture_output=True, text=True, check=False)
    refused = {
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1)
        for found in json.loads(done.stdout)["generalDiagnostics"]
        if found["severity"] == "error"
    }
    assert refused == expected.keys(), done.stdout + done.stderr
