"""The benches' environments: made once, made anew when half-made, and free of this process's packages."""

from __future__ import annotations

import os
import venv
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.engines import vllm
from bench.environments import Environment, ProgramError, environment


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIOPROXY_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments without pip: making one takes a moment instead of seconds."""

    def create(directory: Path, *, with_pip: bool) -> None:
        assert with_pip
        made(directory)

    made = venv.create
    monkeypatch.setattr(venv, "create", create)


@pytest.mark.usefixtures("bare")
def test_is_installed_once(cache: Path) -> None:
    installed: list[Path] = []

    def install(target: Environment) -> None:
        installed.append(target.path)

    first = environment("thing-1", install, needs="nothing")
    assert environment("thing-1", install, needs="nothing").path == first.path
    assert installed == [cache / "thing-1"]
    assert first.run("-c", "import sys; print(sys.prefix)").strip() == str(cache / "thing-1")
    environment("thing-2", install, needs="nothing")
    assert installed == [cache / "thing-1", cache / "thing-2"]


@pytest.mark.usefixtures("bare")
def test_a_half_made_one_is_made_anew() -> None:
    def fail(target: Environment) -> None:
        (target.path / "half").touch()
        target.run("-c", "import sys; sys.exit('no such package')")

    with pytest.raises(ProgramError, match="no such package"):
        environment("thing-1", fail, needs="nothing")
    made = environment("thing-1", lambda target: None, needs="nothing")
    assert not (made.path / "half").exists()


@pytest.mark.usefixtures("bare")
def test_runs_without_the_packages_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    made = environment("thing-1", lambda target: None, needs="nothing")
    assert made.run("-c", "import importlib.util; print(importlib.util.find_spec('bench'))").strip() == "None"


@pytest.mark.parametrize("listen", ["8100", "127.0.0.1:", "127.0.0.1:http"])
def test_vllm_refuses_an_address_before_it_installs(listen: str, cache: Path) -> None:
    result = CliRunner().invoke(vllm.main, ["--listen", listen])
    assert result.exit_code == 2
    assert "is not HOST:PORT" in result.output
    assert not cache.exists()
