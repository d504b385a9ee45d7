"""The command line, as processes: what is printed, what a signal does, and how a mistake is told."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import trioproxy
from certificates import write_files
from processes import COMMAND, ENVIRONMENT, STREAM, Running, posix, receive_all
from trioproxy.cli import main
from trioproxy.commands.parameters import overrides_of
from trioproxy.configfile import FileConfig, render


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=10, check=False
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
from trioproxy.commands import foreground

async def run():
    pass

def run_with_signal(main, real=trio.run):
    os.kill(os.getpid(), signal.SIGHUP)
    real(main)
    os.kill(os.getpid(), signal.SIGHUP)

trio.run = run_with_signal
foreground.run_until_signal(run, None, lambda: None)
"""


@posix
def test_a_hangup_while_it_starts_or_ends_does_not_end_it() -> None:
    """A reload that comes before the receiver of signals stands, or after it is gone."""
    done = subprocess.run([sys.executable, "-c", EARLY_HANGUP], env=ENVIRONMENT, timeout=20, check=False)
    assert done.returncode == 0


# A configuration file


def test_check_says_what_would_be_done_and_prints_no_value_from_elsewhere(tmp_path: Path) -> None:
    write_files(tmp_path)
    file = tmp_path / "trioproxy.toml"
    file.write_text('upstreams = ["http://a", "${UP}"]\n[tls]\ncert = "chain.pem"\nkey = "key.pem"\n')
    done = CliRunner().invoke(main, ["check", str(file)], env={"UP": "http://s3cr3t"})
    assert done.exit_code == 0
    assert done.output == (f"{file} is right\n  listens on 127.0.0.1:8080, with TLS\n  endpoints http://a, ${{UP}}\n")


@pytest.mark.parametrize("command", [["check"], ["serve", "--config"]])
def test_a_wrong_file_is_told_and_exits_1(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "trioproxy.toml"
    file.write_text('upstreams = ["http://a"]\n[deadlines]\nidel = "5s"\n')
    done = CliRunner().invoke(main, [*command, str(file)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"{file}:3: deadlines.idel: unknown key; did you mean 'idle'?\n"


def test_a_wrong_flag_beside_a_file_exits_2(tmp_path: Path) -> None:
    file = tmp_path / "trioproxy.toml"
    file.write_text('upstreams = ["http://a"]\n')
    done = CliRunner().invoke(main, ["serve", "--config", str(file), "--tls-cert", "/nowhere"])
    assert done.exit_code == 2
    assert "--tls-cert: cannot read '/nowhere'" in done.stderr


def test_the_defaults_are_printed() -> None:
    done = CliRunner().invoke(main, ["config", "--defaults"])
    assert (done.exit_code, done.stdout) == (0, render(FileConfig()))
    assert CliRunner().invoke(main, ["config"]).exit_code == 2


@pytest.mark.parametrize(
    ("flag", "key", "number"),
    [("--deadline", "idle=2m", 120), ("--deadline", "idle=400ms", 0.4), ("--limit", "head_size=1KiB", 1024)],
)
def test_flags_take_units(flag: str, key: str, number: float) -> None:
    deadlines, limits = ([key], []) if flag == "--deadline" else ([], [key])
    [override] = overrides_of({}, deadlines, limits).values()
    assert override == (flag, number)
