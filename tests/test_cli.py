"""The command line, as processes: what is printed, what a signal does, and how a mistake is told."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, final

import pytest
from click.testing import CliRunner

import trioproxy
from trioproxy.cli import main

COMMAND: Final = [sys.executable, "-m", "trioproxy"]
ENVIRONMENT: Final = os.environ | {
    "PYTHONPATH": str(Path(trioproxy.__file__).parents[1]),
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@final
class Running:
    """A command that goes on until it is told to stop."""

    def __init__(self, *arguments: str) -> None:
        self._process: Final = subprocess.Popen(
            [*COMMAND, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.first = self.line()
        found = re.search(r"https?://([^:]+|\[[^]]+\]):(\d+)", self.first)
        assert found, (self.first, self._process.stderr and self._process.stderr.read())
        self.host = found[1].strip("[]")
        self.port = int(found[2])

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ends(self) -> tuple[int, str, str]:
        """Its exit status, and what it has printed."""
        out, err = self._process.communicate(timeout=10)
        return self._process.returncode, out, err

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=10)

    def wait_asked(self) -> None:
        """Wait until this mock has been asked for a completion."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with self.connect() as sock:
                sock.sendall(b"GET /mock/requests HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                if b"/v1/completions" in receive_all(sock):
                    return
            time.sleep(0.01)
        raise TimeoutError

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts commands; what still runs in the end is killed."""
    started: list[Running] = []

    def run(*arguments: str) -> Running:
        started.append(Running(*arguments))
        return started[-1]

    yield run
    for running in started:
        running.kill()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=10, check=False
    )


def receive_all(sock: socket.socket) -> bytes:
    with sock:
        return b"".join(iter(lambda: sock.recv(65536), b""))


STREAM: Final = (
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 74\r\n\r\n"
    b'{"stream": true, "metadata": {"prefill": 0.3, "tokens": 3, "interval": 0}}'
)


# Running


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_forwards_drains_on_a_signal_and_exits_0(number: signal.Signals, start: Callable[..., Running]) -> None:
    mock = start("mock", "--listen", "127.0.0.1:0")
    proxy = start("serve", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{mock.port}")
    assert re.fullmatch(
        r"trioproxy listens on http://127\.0\.0\.1:\d+, \d+ open files allow \d+ streams at a time\n", proxy.first
    )
    assert proxy.line() == f"  upstream http://127.0.0.1:{mock.port}\n"
    idle = proxy.connect()
    busy = proxy.connect()
    busy.sendall(STREAM)
    mock.wait_asked()
    proxy.signal(number)
    assert proxy.line() == "draining: 1 in flight, at most 30 s; a second signal ends them\n"
    response = receive_all(busy)
    assert response.startswith(b"HTTP/1.1 200")
    assert response.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert receive_all(idle) == b""
    assert proxy.ends() == (0, "", "")
    mock.signal(number)
    assert mock.ends() == (0, "", "")


@posix
def test_a_second_signal_ends_it_at_once(start: Callable[..., Running]) -> None:
    mock = start("mock", "--listen", "127.0.0.1:0", "--prefill", "60")
    proxy = start("serve", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{mock.port}")
    client = proxy.connect()
    client.sendall(STREAM.replace(b'"prefill": 0.3', b'"prefill": 300'))
    mock.wait_asked()
    proxy.signal(signal.SIGTERM)
    proxy.line()
    assert proxy.line().startswith("draining: 1 in flight")
    begin = time.monotonic()
    proxy.signal(signal.SIGTERM)
    assert proxy.ends() == (0, "", "")
    assert time.monotonic() - begin < 3
    assert receive_all(client) == b""


@posix
def test_the_grace_of_a_drain_is_bounded(start: Callable[..., Running]) -> None:
    mock = start("mock", "--listen", "127.0.0.1:0", "--prefill", "60")
    upstream = f"http://127.0.0.1:{mock.port}"
    proxy = start("serve", "--listen", "127.0.0.1:0", "--upstream", upstream, "--deadline", "drain=0.2")
    client = proxy.connect()
    client.sendall(STREAM.replace(b'"prefill": 0.3', b'"prefill": 300'))
    mock.wait_asked()
    proxy.signal(signal.SIGINT)
    assert proxy.ends()[0] == 0
    assert receive_all(client) == b""


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_it_listens_where_it_is_told_and_shows_addresses_as_they_are_typed(start: Callable[..., Running]) -> None:
    proxy = start("serve", "--listen", "[::1]:0", "--upstream", "http://[::1]:1")
    assert proxy.first.startswith("trioproxy listens on http://[::1]:")
    assert proxy.line() == "  upstream http://[::1]:1\n"
    everywhere = start("mock", "--listen", ":0")
    assert everywhere.host == "0.0.0.0"


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "Usage"),
        (["serve"], "Missing option '--upstream'"),
        (["serve", "--upstream", "unix:model"], "'--upstream': .*the absolute path of a socket"),
        (["serve", "--upstream", "http://a", "--listen", "unix:"], "lacks the path of a socket"),
        (["serve", "--upstream", "http://a", "--tls-key", "/dev/null"], "--tls-key: needs its certificate"),
        (["serve", "--upstream", "http://a", "--tls-cert", "/nowhere"], "cannot read '/nowhere': No such file"),
        (["serve", "--upstream", "http://a", "--tls-cert", "/dev/null"], "there is no PEM certificate in '/dev/null'"),
        (["serve", "--upstream", "https://a", "--upstream-ca", "/dev/null"], "has no PEM certificates in it"),
        (["serve", "--upstream", "https://a", "--upstream-key", "/dev/null"], "--upstream-key: needs its certificate"),
        (["serve", "--upstream", "http://a/v1"], r"'--upstream': .*give http://a\)"),
        (["serve", "--upstream", "nonsense"], "'--upstream': .*must look like http://HOST:PORT"),
        (["serve", "--upstream", "http://a", "--listen", "8080"], "'8080' is not HOST:PORT"),
        (
            ["serve", "--upstream", "http://a", "--listen", "127.0.0.1:8080", "--listen", "127.0.0.1:8080"],
            "--listen: 127.0.0.1:8080 is given more than once",
        ),
        (
            ["serve", "--upstream", "http://a", "--listen", "unix:/tmp/s", "--listen", "unix:/tmp/s"],
            "--listen: unix:/tmp/s is given more than once",
        ),
        (["serve", "--upstream", "http://a", "--listen", "a:99999"], "port from 0 to 65535"),
        (["serve", "--upstream", "http://a", "--listen", "::1:80"], "written in brackets"),
        (["serve", "--upstream", "http://a", "--deadline", "idel=5"], "did you mean 'idle'"),
        (["serve", "--upstream", "http://a", "--deadline", "zzz=5"], "there are: connect, first_byte"),
        (["serve", "--upstream", "http://a", "--deadline", "idle"], "'idle' is not NAME=NUMBER"),
        (["serve", "--upstream", "http://a", "--deadline", "idle=x"], "'idle=x' is not NAME=NUMBER"),
        (["serve", "--upstream", "http://a", "--deadline", "idle=-1"], "deadline 'idle' must be"),
        (["serve", "--upstream", "http://a", "--deadline", "idle=nan"], "deadline 'idle' must be"),
        (
            ["serve", "--upstream", "http://a", "--limit", "body_size=0"],
            "'body_size' must be a whole number above 0",
        ),
        (["serve", "--upstream", "http://a", "--limit", "body_size=inf"], "must be a whole number, got inf"),
        (["serve", "--upstream", "http://a", "--limit", "body_size=nan"], "must be a whole number, got nan"),
        (["serve", "--upstream", "http://a", "--body", "some"], "'some' is not one of"),
        (["serve", "--upstream", "http://a", "--unknown"], "No such option '?--unknown"),
        (["mock", "--prefill", "x"], "'x' is not a valid float"),
        (["mock", "--head", "sometimes"], "'sometimes' is not one of"),
        (["mock", "--listen", "x"], "'x' is not HOST:PORT"),
    ],
)
def test_a_bad_argument_is_named_and_exits_2(arguments: list[str], what: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert re.search(what, re.sub(r"\s+", " ", done.stderr)), done.stderr
    assert done.exit_code == 2
    assert done.stdout == ""


def test_so_does_the_process() -> None:
    done = run("serve", "--upstream", "http://a", "--deadline", "idel=5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'idle'" in done.stderr


@pytest.mark.parametrize("command", ["serve", "mock"])
def test_a_port_in_use_is_named_and_exits_1(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        upstream = ["--upstream", "http://a"] if command == "serve" else []
        done = run(command, "--listen", where, *upstream)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: cannot listen on {where}: Address already in use")


@pytest.mark.parametrize("command", ["serve", "mock"])
@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
def test_an_address_that_is_not_ours_is_named_and_exits_1(command: str, host: str) -> None:
    upstream = ["--upstream", "http://a"] if command == "serve" else []
    done = run(command, "--listen", f"{host}:0", *upstream)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"Error: cannot listen on {re.escape(host)}:0: .+\n", done.stderr), done.stderr


def test_help_and_version() -> None:
    assert run("--version").stdout == f"trioproxy, version {trioproxy.__version__}\n"
    for arguments in ([], ["serve"], ["mock"], ["demo"]):
        done = CliRunner().invoke(main, [*arguments, "--help"])
        assert done.exit_code == 0
        assert done.stdout.startswith("Usage: ")


EARLY_HANGUP = """
import os, signal, trio
from trioproxy import cli

async def run():
    pass

def run_with_signal(main, real=trio.run):
    os.kill(os.getpid(), signal.SIGHUP)
    real(main)
    os.kill(os.getpid(), signal.SIGHUP)

trio.run = run_with_signal
cli._run_until_signal(run, None, lambda: None)
"""


@posix
def test_a_hangup_while_it_starts_or_ends_does_not_end_it() -> None:
    """A reload that comes before the receiver of signals stands, or after it is gone."""
    done = subprocess.run([sys.executable, "-c", EARLY_HANGUP], env=ENVIRONMENT, timeout=20, check=False)
    assert done.returncode == 0
