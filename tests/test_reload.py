"""``serve --config`` while it serves: a file that changes, and SIGHUP; what changes, what is said, and for whom."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from certificates import trusting_context, write_files
from processes import STREAM, Running, posix, receive_all
from trioproxy.commands.reload import Serving
from trioproxy.configfile import ConfigError, Override, load

# In one process, without a signal


def write(file: Path, text: str) -> Path:
    """The file, with this text."""
    file.write_text(text)
    return file


def serving(file: Path, flags: dict[tuple[str | int, ...], Override] | None = None) -> Serving:
    return Serving(file, flags or {}, load(file, flags or {}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration that is right, with certificates beside it."""
    write_files(tmp_path)
    return write(tmp_path / "trioproxy.toml", 'upstreams = ["http://a"]\n[deadlines]\nidle = "5s"\n')


def test_what_has_changed_is_said_by_its_keys(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = serving(file)
    write(file, 'upstreams = ["http://a", "http://b"]\n[deadlines]\nidle = "6s"\n')
    served.reload()
    assert capsys.readouterr().out == (
        "read the configuration again: upstreams, deadlines.idle changed, for requests from now on\n"
    )
    assert served.loaded.config.settings.deadlines.idle == 6
    served.reload()
    assert capsys.readouterr().out == "read the configuration again: nothing has changed\n"


def test_a_flag_wins_after_a_reload_too(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = serving(file, {("deadlines", "idle"): Override("--deadline", 7.0)})
    write(file, 'upstreams = ["http://a"]\n[deadlines]\nidle = "6s"\n')
    served.reload()
    assert served.loaded.config.settings.deadlines.idle == 7
    assert capsys.readouterr().out == "read the configuration again: nothing has changed\n"


def test_a_wrong_file_is_refused_whole(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = serving(file)
    before = served.loaded
    write(file, 'upstreams = ["http://b"]\n[deadlines]\nidle = "6"\n')
    served.reload()
    assert served.loaded is before
    assert caplog.messages == [
        "kept the configuration as it was, since the new one is wrong:\n"
        f'{file}:3: deadlines.idle: must be a duration such as "30s" (ms, s, m, h), or "off", got "6"'
    ]


def test_what_takes_a_restart_is_said_and_the_rest_applies(
    file: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    served = serving(file)
    for _ in range(2):
        write(file, 'listen = [":1"]\nupstreams = ["http://b"]\n[tls]\ncert = "chain.pem"\nkey = "key.pem"\n')
        served.reload()
        assert served.loaded.config.topology.endpoints == ("http://b",)
        assert served.loaded.tls.server is None
        assert caplog.messages[-1] == "listen, tls.cert, tls.key changed: that takes a restart"
    assert capsys.readouterr().out == (
        "read the configuration again: upstreams, deadlines.idle changed, for requests from now on\n"
    )


def test_certificates_are_read_again(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'upstreams = ["https://a"]\n[tls]\ncert = "chain.pem"\nkey = "key.pem"\n[upstream_tls]\nca = "ca.pem"\n'
    served = serving(write(file, text))
    server, upstream = served.loaded.tls.server, served.loaded.tls.upstream
    assert server is not None
    context = server.context
    served.reload()
    assert served.loaded.tls.server is server
    assert server.context is not context
    assert served.loaded.tls.upstream is upstream, "connections to upstreams would be given up for nothing"
    folder = file.parent
    (folder / "ca.pem").write_text((folder / "ca.pem").read_text() + "\n")
    (folder / "chain.pem").write_text((folder / "chain.pem").read_text() + "\n")
    served.reload()
    assert served.loaded.tls.upstream is not upstream
    assert capsys.readouterr().out.split("\n")[1] == (
        f"read the configuration again: the content of {folder}/ca.pem, the content of {folder}/chain.pem changed, "
        "for requests from now on"
    )
    (folder / "key.pem").unlink()
    context = server.context
    served.reload()
    assert server.context is context


def test_values_from_elsewhere_are_not_said(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UPSTREAM", "http://s3cr3t")
    served = serving(write(file, 'upstreams = ["http://a"]'))
    write(file, 'upstreams = ["${UPSTREAM}"]')
    served.reload()
    assert served.loaded.config.topology.endpoints == ("http://s3cr3t",)
    assert "s3cr3t" not in capsys.readouterr().out


def test_a_file_that_is_wrong_from_the_start(file: Path) -> None:
    with pytest.raises(ConfigError):
        serving(write(file, "upstreams = []"))


# Processes


@posix
def test_a_file_is_served_and_read_again_without_a_cut(start: Callable[..., Running], tmp_path: Path) -> None:
    """Once by SIGHUP, once since it has changed; a stream of each time ends whole, on the upstream that it began on."""
    mocks = [start("mock", "--listen", "127.0.0.1:0") for _ in range(3)]

    def say(number: int) -> None:
        replaced = tmp_path / "new.toml"
        text = f'listen = ["127.0.0.1:0"]\nupstreams = ["http://127.0.0.1:{mocks[number].port}"]\n'
        replaced.write_text(text + "[deadlines]\ndrain = '7s'\n")
        replaced.replace(tmp_path / "trioproxy.toml")

    say(0)
    proxy = start("serve", "--config", str(tmp_path / "trioproxy.toml"), "--deadline", "drain=6")
    assert proxy.line() == f"  upstream http://127.0.0.1:{mocks[0].port}\n"
    slow = STREAM.replace(b'"prefill": 0.3', b'"prefill": 3.0')
    streams: list[socket.socket] = []
    for number in range(3):
        if number:
            say(number)
            if number == 2:
                proxy.signal(signal.SIGHUP)
            assert proxy.line() == "read the configuration again: upstreams changed, for requests from now on\n"
        streams.append(proxy.connect())
        streams[-1].sendall(slow)
        mocks[number].wait_asked()
    proxy.signal(signal.SIGTERM)
    while not (line := proxy.line()).startswith("draining"):
        assert line == "read the configuration again: nothing has changed\n"
    assert line == "draining: 3 in flight, at most 6 s; a second signal ends them\n"
    for stream in streams:
        response = receive_all(stream)
        assert response.startswith(b"HTTP/1.1 200")
        assert response.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert proxy.ends() == (0, "", "")


@posix
def test_sighup_reads_certificates_that_flags_name(start: Callable[..., Running], tmp_path: Path) -> None:
    _, chain, key = write_files(tmp_path)
    flags = ["--tls-cert", str(chain), "--tls-key", str(key)]
    proxy = start("serve", "--listen", "127.0.0.1:0", "--upstream", "http://a", *flags)
    proxy.line()
    chain.write_text(chain.read_text() + "\n")
    proxy.signal(signal.SIGHUP)
    assert proxy.line() == (f"read the configuration again: the content of {chain} changed, for requests from now on\n")
    with trusting_context().wrap_socket(proxy.connect(), server_hostname="localhost") as secured:
        assert secured.version() == "TLSv1.3"
