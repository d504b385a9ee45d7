"""``trioproxy serve`` in a process of its own, and how much memory that has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

HOLDERS_PROGRAM: Final = Path(__file__).with_name("holders.py")


@dataclass(frozen=True)
class Serving:
    """A proxy that serves in a process of its own."""

    pid: int
    address: tuple[str, int]

    def pss(self) -> int:
        """The memory of the process in bytes, shared pages by their share."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


@asynccontextmanager
async def serving(upstream: str, *options: str, holder: str | None = None) -> AsyncGenerator[Serving]:
    """Run ``trioproxy serve`` for the length of the block.

    :param upstream: its URL.
    :param options: more of the command line.
    :param holder: a mistake to plant, by its name in ``holders.py``.
    """
    program: Sequence[str] = ["-m", "trioproxy"] if holder is None else [str(HOLDERS_PROGRAM), holder]
    command = [sys.executable, *program, "serve", "--listen", "127.0.0.1:0", "--upstream", upstream, *options]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with process.stdout:
            yield Serving(process.pid, await _address(process.stdout))
    finally:
        process.kill()
        with trio.move_on_after(5, shield=True):
            await process.wait()


async def _address(output: trio.abc.ReceiveStream) -> tuple[str, int]:
    """Where it says that it listens."""
    text = b""
    while b"\n" not in text:
        piece = await output.receive_some(1024)
        assert piece, "the proxy ended before it listened"
        text += piece
    _, _, address = text.split()[3].removesuffix(b",").decode().partition("://")
    host, _, port = address.rpartition(":")
    return host, int(port)
