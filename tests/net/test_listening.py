"""Where clients can connect: TCP, unix sockets, and sockets that were passed to the process."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from transports import receive_exactly
from trioproxy.net import Address, Listener, connect, inherited, listen, listen_unix


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "proxy.sock")


async def greet(listener: Listener, address: Address) -> str:
    """Connect and exchange a byte each; the peer's address as the listener saw it."""
    near = await connect(address)
    await listener.wait_readable()
    accepted = listener.accept_nowait()
    assert accepted is not None
    far, peer = accepted
    await near.send_some([b"x"])
    assert await receive_exactly(far, 1) == b"x"
    await far.send_some([b"y"])
    assert await receive_exactly(near, 1) == b"y"
    near.close()
    far.close()
    return peer


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
async def test_tcp(host: str, family: socket.AddressFamily) -> None:
    (listener,) = await listen(host, 0)
    port = listener.address[1]
    assert listener.address == (host, port)
    assert listener.name == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    assert repr(listener) == f"<Listener {listener.name}>"
    assert await greet(listener, Address(family, (host, port))) == host
    listener.close()
    listener.close()
    assert repr(listener) == f"<Listener {listener.name} closed>"
    with pytest.raises(ConnectionRefusedError):
        await connect(Address(family, (host, port)))


async def test_a_unix_socket(path: str) -> None:
    listener = listen_unix(path)
    assert (listener.name, listener.address) == (f"unix:{path}", (path, 0))
    assert await greet(listener, Address(socket.AF_UNIX, path)) == ""
    listener.close()
    assert not os.path.lexists(path)  # noqa: ASYNC240 - a file of the test's own


async def test_a_unix_socket_that_nobody_listens_at_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    listener = listen_unix(path)
    await greet(listener, Address(socket.AF_UNIX, path))
    listener.close()


def test_a_unix_socket_that_somebody_listens_at_is_left_alone(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(path)
        alive.listen()
        with pytest.raises(OSError) as caught:
            listen_unix(path)
        assert caught.value.errno == errno.EADDRINUSE
    assert stat.S_ISSOCK(os.lstat(path).st_mode)


def test_something_else_is_never_removed(path: str) -> None:
    Path(path).write_text("precious")
    with pytest.raises(OSError, match="is there and is no socket"):
        listen_unix(path)
    assert Path(path).read_text() == "precious"


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="path too long"):
        listen_unix(str(tmp_path / ("x" * 120)))


async def test_the_name_of_a_successor_is_not_removed(path: str) -> None:
    """As when a new process replaces an old one at the same path."""
    old = listen_unix(path)
    os.unlink(path)
    new = listen_unix(path)
    old.close()
    await greet(new, Address(socket.AF_UNIX, path))
    new.close()


async def test_connecting_waits_while_the_backlog_of_a_unix_socket_is_full(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(path)
            with trio.move_on_after(0.05) as scope:
                (await connect(Address(socket.AF_UNIX, path))).close()
            assert scope.cancelled_caught
            async with trio.open_nursery() as nursery:

                async def accept() -> None:
                    await trio.sleep(0.03)
                    busy.accept()[0].close()

                nursery.start_soon(accept)
                with trio.fail_after(2):
                    (await connect(Address(socket.AF_UNIX, path))).close()


# Sockets that were passed to the process

CHILD = """
import os, sys, trio
from trioproxy.net import inherited

# What who starts a process does between fork and exec: the sockets get the numbers from 3 on.
for number, given in enumerate([os.dup2(int(given), 50 + i) for i, given in enumerate(sys.argv[1:])], 3):
    os.dup2(given, number)
os.environ["LISTEN_PID"] = str(os.getpid())
async def main():
    for listener in inherited():
        print(listener.name, os.get_inheritable(listener._sock.fileno()), flush=True)
        listener.close()
    try:
        inherited()
    except OSError as error:
        print(error, flush=True)
trio.run(main)
"""


REFUSING_CHILD = """
import os, socket, sys, warnings
from trioproxy.net import inherited

warnings.simplefilter("error")
for number, given in enumerate([os.dup2(int(given), 50 + i) for i, given in enumerate(sys.argv[1:])], 3):
    os.dup2(given, number)
os.environ["LISTEN_PID"] = str(os.getpid())
try:
    inherited()
except OSError as error:
    print(error)
for number in (3, 4):
    try:
        os.fstat(number)
        print("open")
    except OSError:
        print("closed")
"""


@pytest.mark.parametrize(
    ("family", "kind", "listens"),
    [("AF_INET", "SOCK_DGRAM", False), ("AF_INET", "SOCK_STREAM", False), ("AF_VSOCK", "SOCK_STREAM", True)],
)
def test_of_passed_sockets_all_are_taken_or_none(family: str, kind: str, listens: bool) -> None:
    try:
        bad = socket.socket(getattr(socket, family), getattr(socket, kind))
    except (AttributeError, OSError) as error:
        pytest.skip(f"no {family} here: {error}")
    with socket.create_server(("127.0.0.1", 0)) as good, bad:
        if listens:
            bad.bind((socket.VMADDR_CID_ANY, 5555))
            bad.listen()
        done = subprocess.run(
            [sys.executable, "-c", REFUSING_CHILD, str(good.fileno()), str(bad.fileno())],
            env={**os.environ, "LISTEN_FDS": "2"},
            pass_fds=[good.fileno(), bad.fileno()],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert done.stdout.splitlines() == [
        "the passed socket 4 does not listen for streams of TCP or of a unix socket",
        "closed",
        "closed",
    ]
    assert not done.stderr


def test_sockets_are_taken_as_systemd_passes_them(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        port = tcp.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(tcp.fileno()), str(unix.fileno())],
            env={**os.environ, "LISTEN_FDS": "2"},
            pass_fds=[tcp.fileno(), unix.fileno()],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    first, second, again = done.stdout.splitlines()
    assert (first, second) == (f"127.0.0.1:{port} False", f"unix:{path} False"), done.stderr
    assert again.startswith("no sockets were passed to this process")
    assert os.path.lexists(path)  # the name is its maker's to remove


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({}, "no sockets were passed to this process"),
        ({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, "no sockets were passed to this process"),
        ({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"}, "LISTEN_FDS must be how many"),
        ({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "-1"}, "LISTEN_FDS must be how many"),
        ({"LISTEN_PID": str(os.getpid())}, "LISTEN_FDS must be how many"),
    ],
)
def test_sockets_that_were_not_passed(environment: dict[str, str], what: str) -> None:
    with pytest.raises(OSError, match=what):
        inherited(environment)
