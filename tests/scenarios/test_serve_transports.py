"""`trioproxy serve` as a process on TLS, unix sockets and passed sockets: what is printed, SIGHUP, the way through."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, final

import pytest

from certificates import authority, trusting_context, write_files

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and sockets of POSIX")
COMMAND: Final = [sys.executable, "-u", "-m", "trioproxy"]
LIST: Final = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@final
class Running:
    """A command that goes on until it is told to stop."""

    def __init__(self, *arguments: str, fds: tuple[int, ...] = ()) -> None:
        command = [*COMMAND, *arguments]
        if fds:  # the sockets get the numbers from 3 on, as systemd passes them
            moves = "".join(f"os.dup2({given}, {50 + i}); " for i, given in enumerate(fds))
            moves += "".join(f"os.dup2({50 + i}, {3 + i}); " for i in range(len(fds)))
            code = (
                f"import os, sys; {moves}os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='{len(fds)}'); "
                "from trioproxy.cli import main; sys.exit(main(sys.argv[1:]))"
            )
            command = [sys.executable, "-u", "-c", code, *arguments]
        self.process: Final = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=fds
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def error(self) -> str:
        """The next line that it prints to stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().rstrip("\n")

    def where(self) -> str:
        """Where it listens, as it says first."""
        line = self.line()
        assert " listens on " in line, (line, self.process.communicate())
        return line.partition(" listens on ")[2].partition(",")[0]


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts commands; what still runs in the end is killed."""
    started: list[Running] = []

    def run(*arguments: str, fds: tuple[int, ...] = ()) -> Running:
        started.append(Running(*arguments, fds=fds))
        return started[-1]

    yield run
    for running in started:
        running.process.kill()
        running.process.communicate()


def ask(where: str) -> tuple[bytes, dict[str, object]]:
    """The answer of a server, and its certificate if it has one."""
    if where.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(where.removeprefix("unix:"))
    else:
        host, _, port = where.partition("://")[2].rpartition(":")
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
    sock.settimeout(10)
    certificate: dict[str, object] = {}
    if where.startswith("https://"):
        secure = trusting_context().wrap_socket(sock, server_hostname="localhost")
        certificate = dict(secure.getpeercert() or {})
        sock = secure
    with sock:
        sock.sendall(LIST)
        return b"".join(iter(lambda: sock.recv(65536), b"")), certificate


def is_list(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 200 ") and b'"mock-model"' in answer


@pytest.fixture
def mock(start: Callable[..., Running]) -> str:
    return start("mock", "--listen", "127.0.0.1:0").where()


@pytest.mark.parametrize("codec", ["llhttp", "h11"])
def test_tls_from_end_to_end(codec: str, mock: str, start: Callable[..., Running], tmp_path: Path) -> None:
    """A client, a proxy with TLS on both sides, and another proxy with TLS before the model server; IPv4 and IPv6."""
    ca, chain, key = map(str, write_files(tmp_path))
    tls = ("--tls-cert", chain, "--tls-key", key, "--codec", codec)
    inner = start("serve", "--listen", "127.0.0.1:0", "--upstream", mock, *tls).where()
    outer = start(
        *("serve", "--listen", "[::1]:0", "--listen", "127.0.0.1:0", "--upstream", inner, "--upstream-ca", ca), *tls
    )
    assert inner.startswith("https://127.0.0.1:")
    six, four = outer.where(), outer.where()
    assert six.startswith("https://[::1]:")
    assert outer.line() == f"  upstream {inner}"
    for where in (six, four):
        assert is_list(ask(where)[0])
    outer.process.terminate()
    assert outer.line() == "draining: 0 in flight, at most 30 s; a second signal ends them"
    assert outer.process.wait(timeout=10) == 0


def test_a_certificate_is_read_again_on_sighup(mock: str, start: Callable[..., Running], tmp_path: Path) -> None:
    _, chain, key = write_files(tmp_path)
    proxy = start(
        *("serve", "--listen", "127.0.0.1:0", "--upstream", mock, "--tls-cert", str(chain), "--tls-key", str(key))
    )
    where = proxy.where()
    proxy.line()
    _, before = ask(where)
    write_files(tmp_path, authority().ca.issue_cert("localhost", common_name="the new one"))
    proxy.process.send_signal(signal.SIGHUP)
    said = proxy.line()
    assert said.startswith("read the configuration again: the content of ")
    assert said.endswith(" changed, for requests from now on")
    answer, after = ask(where)
    assert is_list(answer)
    assert "the new one" in str(after)
    assert "the new one" not in str(before)
    chain.write_text("nonsense")
    proxy.process.send_signal(signal.SIGHUP)
    assert "WARNING kept the configuration as it was, since the new one is wrong:" in proxy.error()
    assert "--tls-cert: there is no PEM certificate in " in proxy.error()
    assert ask(where)[1] == after


def test_sighup_without_a_certificate_ends_nothing(mock: str, start: Callable[..., Running]) -> None:
    proxy = start("serve", "--listen", "127.0.0.1:0", "--upstream", mock)
    where = proxy.where()
    proxy.line()
    proxy.process.send_signal(signal.SIGHUP)
    assert proxy.line() == "read the configuration again: nothing has changed"
    assert is_list(ask(where)[0])


def test_unix_sockets_on_both_sides(mock: str, start: Callable[..., Running], tmp_path: Path) -> None:
    inner = start("serve", "--listen", f"unix:{tmp_path}/inner", "--upstream", mock)
    assert inner.where() == f"unix:{tmp_path}/inner"
    outer = start("serve", "--listen", f"unix:{tmp_path}/outer", "--upstream", f"unix:{tmp_path}/inner")
    assert is_list(ask(outer.where())[0])
    for proxy in (outer, inner):
        proxy.process.terminate()
        assert proxy.process.wait(timeout=10) == 0
    assert not list(tmp_path.iterdir())


def test_passed_sockets(mock: str, start: Callable[..., Running], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "passed"))
        unix.listen()
        proxy = start("serve", "--listen", "systemd", "--upstream", mock, fds=(tcp.fileno(), unix.fileno()))
        assert proxy.where() == f"http://127.0.0.1:{tcp.getsockname()[1]}"
        assert is_list(ask(f"http://127.0.0.1:{tcp.getsockname()[1]}")[0])
        assert proxy.where() == f"unix:{tmp_path}/passed"
        assert is_list(ask(f"unix:{tmp_path}/passed")[0])
        proxy.process.terminate()
        assert proxy.process.wait(timeout=10) == 0
        assert (tmp_path / "passed").exists()


def test_if_one_place_is_taken_it_listens_at_none(start: Callable[..., Running], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        proxy = start(
            *("serve", "--listen", f"unix:{tmp_path}/free", "--listen", where, "--upstream", "http://127.0.0.1:1")
        )
        out, err = proxy.process.communicate(timeout=10)
    assert (proxy.process.returncode, out) == (1, "")
    assert err == f"Error: cannot listen on {where}: Address already in use\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cert", ["expired", "other_name", "good"])
def test_an_upstream_with_a_wrong_certificate(
    cert: str, mock: str, start: Callable[..., Running], tmp_path: Path
) -> None:
    ca, chain, key = write_files(tmp_path, getattr(authority(), cert))
    inner = start(
        *("serve", "--listen", "127.0.0.1:0", "--upstream", mock, "--tls-cert", str(chain), "--tls-key", str(key))
    ).where()
    trust = [] if cert == "good" else ["--upstream-ca", str(ca)]  # the system's do not know ours
    proxy = start("serve", "--listen", "127.0.0.1:0", "--upstream", inner, *trust)
    answer, _ = ask(proxy.where())
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b'"code":"tls_failed"' in answer
    assert "the certificate is not valid: " in proxy.error()
    insecure = start("serve", "--listen", "127.0.0.1:0", "--upstream", inner, "--upstream-insecure")
    assert is_list(ask(insecure.where())[0])
    assert "certificates of upstreams are not checked" in insecure.error()
