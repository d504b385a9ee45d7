"""The proxies that can be measured, and how one is started, awaited and stopped.

Lives here: command lines and configurations, each for one process with one worker and nothing switched on that
is not needed to forward, and the life of the child process. Another proxy is another function in `PEERS`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

START_TIMEOUT: Final = 15.0
STOP_TIMEOUT: Final = 5.0
_SHOWN: Final = 4000
"""Characters of a proxy's output that are shown, the last ones."""

Command = Callable[[int, int, Path], list[str]]
"""From the port to listen on, the upstream's port and a directory for files: the command line."""


class PeerError(Exception):
    """A proxy could not be started."""


class Running(NamedTuple):
    """A proxy that accepts connections."""

    name: str
    pid: int
    port: int


def trioproxy(listen: int, upstream: int, _: Path, *, options: Sequence[str] = ()) -> list[str]:
    """The reference proxy: the `trioproxy` that is first on the module path, with further options of `serve`."""
    start = "import sys; from trioproxy.cli import main; sys.exit(main())"
    serve = ["serve", "--listen", f"127.0.0.1:{listen}", "--upstream", f"http://127.0.0.1:{upstream}"]
    return [sys.executable, "-c", start, *serve, *options]


def haproxy(listen: int, upstream: int, directory: Path) -> list[str]:
    """HAProxy with one thread, keep-alive and reuse on both sides; `http-no-delay` as it needs for token streams."""
    binary = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if binary is None:
        raise PeerError("haproxy is not installed (Debian: apt-get install haproxy)")
    config = directory / "haproxy.cfg"
    config.write_text(f"""\
global
    nbthread 1
defaults
    mode http
    option http-keep-alive
    option http-no-delay
    retries 0
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout http-request 1h
    timeout http-keep-alive 1h
frontend listen
    bind 127.0.0.1:{listen} backlog 4096
    default_backend upstream
backend upstream
    http-reuse always
    server upstream 127.0.0.1:{upstream}
""")
    return [binary, "-db", "-q", "-f", str(config)]


def bare(listen: int, upstream: int, _: Path) -> list[str]:
    """The least that a proxy on Trio can do: see `bench.bare`."""
    return [sys.executable, "-m", "bench.bare", str(listen), str(upstream)]


PEERS: Final[dict[str, Command]] = {"trioproxy": trioproxy, "haproxy": haproxy, "bare": bare}


def peers_with(serve: str) -> dict[str, Command]:
    """All proxies, trioproxy's `serve` with the options in `serve`, written as in a shell."""
    return {**PEERS, "trioproxy": partial(trioproxy, options=shlex.split(serve))}


@contextlib.contextmanager
def running(name: str, upstream: int, peers: dict[str, Command] = PEERS) -> Generator[Running]:
    """Start the proxy `name` in front of the port `upstream`; it is ended, with its children, on the way out.

    What it printed is a note on any exception that ends its use.

    :raises PeerError: it is not there, ended, or did not accept a connection in time.
    """
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as made:
        directory = Path(made)
        port = _free_port()
        output = directory / "output"
        with output.open("wb") as file:
            # In a session of its own: Ctrl-C reaches the bench alone, which then ends the child here.
            child = subprocess.Popen(
                peers[name](port, upstream, directory),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait_for(child, port, name)
            yield Running(name, child.pid, port)
        except Exception as error:
            error.add_note(f"{name} printed:\n{output.read_text(errors='replace')[-_SHOWN:]}")
            raise
        finally:
            _stop(child)


def end_on_sigterm() -> None:
    """Make SIGTERM unwind like Ctrl-C, so that no proxy is left behind."""

    def end(*_: object) -> NoReturn:
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait_for(child: subprocess.Popen[bytes], port: int, name: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        status = child.poll()
        if status is not None or time.monotonic() > deadline:
            why = "did not listen in time" if status is None else f"ended with status {status}"
            raise PeerError(f"{name} {why}")
        time.sleep(0.02)


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
