"""Other people's software, each in a virtual environment of its own, made once and kept in a cache.

Lives here: how one gets into the cache, for software that one `pip install` does not make (`peers/install.py` has what
one does) or that needs a model. What goes into it stands in its recipe: `engines/` and `aiperf.py`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from bench.peers.install import cache

NICENESS: Final = 10
"""Of installations and of engines: they share the machine with what is measured."""

_COMPLETE: Final = "complete"
_OUTSIDE: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"})


@final
class ProgramError(Exception):
    """A program of an environment has failed, pip among them; what it printed is in the message."""


@final
class Environment:
    """A virtual environment: a directory, its Python, and what it takes to run something there."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def variables(self, **more: str) -> dict[str, str]:
        """This process's environment variables without those that name another Python's packages, and `more`."""
        return {name: value for name, value in os.environ.items() if name not in _OUTSIDE} | more

    def run(self, *arguments: str | Path) -> str:
        """Run this Python to its end, at a low priority, and return what it wrote to its standard output.

        Neither the directory of a script nor the one that it is started in is a place of modules.

        :raises ProgramError: its exit status was not 0.
        """
        command = ["nice", "-n", str(NICENESS), self.python, "-P", *arguments]
        done = subprocess.run(command, env=self.variables(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ProgramError(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stderr or done.stdout}")
        return done.stdout

    def pip(self, *arguments: str | Path) -> None:
        """Install packages."""
        self.run("-m", "pip", "install", "--disable-pip-version-check", *arguments)

    def tiny_model(self) -> Path:
        """Write the model and its tokenizer (`tiny_model.py`); the environment has to have `tokenizers`."""
        directory = self.path / "tiny-model"
        self.run(Path(__file__).with_name("tiny_model.py"), directory)
        return directory


def environment(name: str, install: Callable[[Environment], None], *, needs: str) -> Environment:
    """The environment `name`, filled by `install` if it is not there.

    Whoever comes while another process installs it waits for that. What an interruption left half-made is made anew.
    To change a recipe is to change `name`, which therefore has the version in it.

    :param needs: what an installation takes, to be told before it begins.
    :raises ProgramError: as `install` does.
    """
    directory = cache() / name
    directory.parent.mkdir(parents=True, exist_ok=True)
    complete = directory / _COMPLETE
    with directory.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _tell(f"installing {name} into {directory} ({needs})")
            start = time.monotonic()
            shutil.rmtree(directory, ignore_errors=True)
            venv.create(directory, with_pip=True)
            install(Environment(directory))
            complete.touch()
            _tell(f"installed {name} in {time.monotonic() - start:.0f} s")
    return Environment(directory)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
