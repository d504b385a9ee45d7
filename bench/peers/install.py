"""How peers are installed: already here with Python, from Debian, or with pip into an environment of their own.

Lives here: the kinds of `Installation`, and the cache folder, `$TRIOPROXY_BENCH_CACHE` or `~/.cache/trioproxy-bench`.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import trio

from bench.peers.peer import PeerError

_END_TIMEOUT: Final = 5.0
_SHOWN: Final = 2000
"""Characters of an installer's output that are shown, the last ones."""


def cache() -> Path:
    """The folder for everything that is installed or written for a peer."""
    return Path(os.environ.get("TRIOPROXY_BENCH_CACHE") or Path.home() / ".cache" / "trioproxy-bench")


class Here(NamedTuple):
    """A program of this environment's Python."""

    def missing(self) -> None:
        """Nothing."""

    def executable(self) -> Path:
        """This Python."""
        return Path(sys.executable)

    async def install(self) -> None:
        """Nothing to do."""
        await trio.lowlevel.checkpoint()


class Debian(NamedTuple):
    """A system package. Root installs it; its version is that of the distribution."""

    package: str
    program: str

    def missing(self) -> str | None:
        """Whether the program is in no folder of programs."""
        if self._found() is not None:
            return None
        return f"{self.program} is not installed; on Debian: apt-get install {self.package}"

    def executable(self) -> Path:
        """Of the system."""
        found = self._found()
        assert found is not None
        return Path(found)

    async def install(self) -> None:
        """With apt-get, if there is one and the user is root.

        :raises PeerError: there is none, the user is not root, or apt-get failed.
        """
        if (missing := self.missing()) is None:
            await trio.lowlevel.checkpoint()
            return
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise PeerError(missing)
        await _run("apt-get", "update", "-qq")
        await _run(
            *("apt-get", "install", "-y", "-qq", "--no-install-recommends", self.package),
            environment={"DEBIAN_FRONTEND": "noninteractive"},
        )

    def _found(self) -> str | None:
        # A user's search path often lacks the folders of daemons.
        return shutil.which(self.program) or shutil.which(self.program, path="/usr/sbin:/usr/local/sbin")


class Pip(NamedTuple):
    """A Python package in an environment of its own under the cache folder, of a fixed version."""

    name: str
    requirement: str
    """As for pip; another one, as in a newer checkout, is installed in place of an old one."""
    program: str
    """Relative to the environment."""
    why: str = "PyPI has it"

    @property
    def _environment(self) -> Path:
        return cache() / "peers" / self.name

    @property
    def _marker(self) -> Path:
        """Written last, so that half an installation is none."""
        return self._environment / "installed"

    def missing(self) -> str | None:
        """Whether there is no environment with just this requirement."""
        if self._marker.is_file() and self._marker.read_text() == self.requirement:
            return None
        return f"{self.requirement} is not installed ({self.why}): python -m bench.peers {self.name} --install"

    def executable(self) -> Path:
        """Of the environment."""
        return self._environment / self.program

    async def install(self) -> None:
        """With venv and pip. Another process that installs the same is waited for.

        :raises PeerError: pip failed.
        """
        self._environment.parent.mkdir(parents=True, exist_ok=True)
        async with _lock(self._environment.with_suffix(".lock")):
            if self.missing() is None:
                await trio.lowlevel.checkpoint()
                return
            await _run(sys.executable, "-m", "venv", "--clear", str(self._environment))
            pip = str(self._environment / "bin" / "pip")
            await _run(pip, "install", "--quiet", "--disable-pip-version-check", self.requirement)
            self._marker.write_text(self.requirement)


@asynccontextmanager
async def _lock(path: Path) -> AsyncGenerator[None]:
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await trio.sleep(0.2)
        yield


async def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    done = await trio.run_process(
        command,
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
        deliver_cancel=_end_all,
    )
    if done.returncode:
        error = PeerError(f"{shlex.join(command)}: status {done.returncode}")
        error.add_note(done.stdout.decode(errors="replace")[-_SHOWN:].strip())
        raise error


async def _end_all(process: trio.Process) -> None:
    """With its children, which an installer has: they would go on writing into the environment."""
    os.killpg(process.pid, signal.SIGTERM)
    await trio.sleep(_END_TIMEOUT)  # cancelled when it has ended
    os.killpg(process.pid, signal.SIGKILL)
