"""How a peer is started, awaited and stopped.

Lives here: the life of the child process. Its command line and its configuration come from the peer.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from bench.peers.peer import LOOPBACK, Address, Peer, PeerError, free_port

STOP_TIMEOUT: Final = 5.0
_SHOWN: Final = 4000
"""Characters of a proxy's output that are shown, the last ones."""


class Running(NamedTuple):
    """A proxy that accepts connections."""

    name: str
    pid: int
    port: int


@contextlib.contextmanager
def running(peer: Peer, upstream: int) -> Generator[Running]:
    """Start a peer in front of the port `upstream`; it is ended, with its children, on the way out.

    What it printed is a note on any exception that ends its use.

    :raises PeerError: it is not installed, ended, or was not ready in time.
    """
    with tempfile.TemporaryDirectory(prefix=f"bench-{peer.name}-") as made:
        directory = Path(made)
        port = free_port()
        command = peer.command(Address(LOOPBACK, port), Address(LOOPBACK, upstream), directory)
        output = directory / "output"
        with output.open("wb") as file:
            # In a session of its own: Ctrl-C reaches the bench alone, which then ends the child here.
            child = subprocess.Popen(
                command,
                env={**os.environ, **peer.environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait_for(child, port, peer)
            yield Running(peer.name, child.pid, port)
        except Exception as error:
            error.add_note(f"{peer.name} printed:\n{output.read_text(errors='replace')[-_SHOWN:]}")
            raise
        finally:
            _stop(child)


def end_on_sigterm() -> None:
    """Make SIGTERM unwind like Ctrl-C, so that no proxy is left behind."""

    def end(*_: object) -> NoReturn:
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def _wait_for(child: subprocess.Popen[bytes], port: int, peer: Peer) -> None:
    deadline = time.monotonic() + peer.start_timeout
    while not _is_ready(port, peer.ready):
        status = child.poll()
        if status is not None or time.monotonic() > deadline:
            why = "was not ready in time" if status is None else f"ended with status {status}"
            raise PeerError(f"{peer.name} {why}")
        time.sleep(0.02)


def _is_ready(port: int, path: str | None) -> bool:
    try:
        if path is None:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
            return True
        with contextlib.closing(http.client.HTTPConnection(LOOPBACK, port, timeout=1)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Its session is its own, so this ends its workers too, and the proxy itself if it did not want to.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
