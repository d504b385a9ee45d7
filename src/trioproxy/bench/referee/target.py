"""The proxy under test: one that runs already, or a command that is started, awaited and stopped.

Lives here: the life of the child process and what it printed. Does not live here: which proxies there are, or what is
asked of them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import IO, Final, cast, final
from urllib.parse import urlsplit

import click
import trio

from ..mock import MockServer
from .client import Address

START_TIMEOUT: Final = 20.0
GREET_TIMEOUT: Final = 5.0
"""Seconds for a first request to come through, and for a connection to a proxy that is there."""
STOP_TIMEOUT: Final = 10.0
_SHOWN: Final = 3000
"""Characters of a proxy's output that are shown, the last ones."""
_POLL: Final = 0.02


class TargetError(Exception):
    """The proxy cannot be used: it does not start or listen, or it has ended."""


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception of a group that is none itself: what a run that was ended by several is said to end by."""
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return first_of(cast("BaseExceptionGroup[BaseException]", first))
    return first


async def what_ends(main: Callable[[], Awaitable[None]], *expected: type[Exception]) -> str | None:
    """Run a measurement; returns what has ended it early, in words, or None.

    :param expected: what may end it besides a ``TargetError`` and what the system refuses. Anything else is raised.
    """
    endings: tuple[type[Exception], ...] = (TargetError, *expected)
    why: str | None = None
    try:
        await main()
    except* endings as group:
        why = str(first_of(group))
    except* OSError as group:
        why = f"the system refuses what the tool needs: {first_of(group)}"
    return why


def interrupted(by: str) -> str:
    """What is said to have ended a measurement that was cancelled."""
    return f"interrupted by {by}; what had been found until then is reported"


def reachable(host: str) -> str:
    """Where a server that listens on ``host`` is reached from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def parse_url(text: str, headers: Sequence[tuple[str, str]] = ()) -> Address:
    """Where the proxy listens.

    :raises ValueError: it is no URL that can be used, with what is wrong.
    """
    parts = urlsplit(text)
    if parts.scheme == "https":
        raise ValueError(
            f"{text!r}: this tool does not speak TLS, which would hide when a client leaves; use a plain port"
        )
    if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{text!r} is not http://HOST:PORT or http://HOST:PORT/PREFIX")
    host = parts.hostname
    if not _numeric(host):
        host = _resolve(host)
    return Address(host=host, port=parts.port or 80, prefix=parts.path.rstrip("/"), headers=tuple(headers))


def _numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def _resolve(host: str) -> str:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"{host!r} cannot be looked up: {error.strerror or error}") from None
    return str(found[0][4][0])


def parse_command(text: str) -> list[str]:
    """The words of a command.

    :raises ValueError: it is empty, or does not say where to listen and what to forward to.
    """
    words = shlex.split(text)
    if not words:
        raise ValueError("the command is empty")
    names = ("listen", "upstream")
    for name in names:
        if not any(f"{{{name}" in word for word in words):
            raise ValueError(f"the command has no {{{name}}} (HOST:PORT), nor {{{name}_host}} or {{{name}_port}}")
    return words


def fill_in(words: Sequence[str], listen: tuple[str, int], upstream: tuple[str, int]) -> list[str]:
    """The command with its addresses. Other braces stay as they are: configurations are full of them."""
    values: dict[str, str] = {}
    for name, (host, port) in (("listen", listen), ("upstream", upstream)):
        values |= {f"{{{name}}}": f"{host}:{port}", f"{{{name}_host}}": host, f"{{{name}_port}}": str(port)}
    filled: list[str] = []
    for word in words:
        for placeholder, value in values.items():
            word = word.replace(placeholder, value)
        filled.append(word)
    return filled


@final
class Target:
    """A proxy that accepts connections.

    :param pid: of its process, if it is known; memory and signals need it.
    """

    __slots__ = ("_child", "_output", "address", "pid")

    def __init__(
        self,
        address: Address,
        pid: int | None = None,
        child: subprocess.Popen[bytes] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        self.address = address
        self.pid = pid
        self._child = child
        self._output = output

    @property
    def ours(self) -> bool:
        """Whether it was started here, so that it may be stopped."""
        return self._child is not None

    def printed(self) -> str:
        """The last of what it has printed, without colours and control characters: it goes to terminals and reports."""
        if self._output is None:
            return ""
        self._output.seek(0)
        text = click.unstyle(self._output.read().decode(errors="replace"))
        return "".join(c for c in text if c.isprintable() or c in "\n\t")[-_SHOWN:].strip()

    def status(self) -> int | None:
        """Its exit status, None while it runs or is not known."""
        return None if self._child is None else self._child.poll()

    def check(self) -> None:
        """Raise ``TargetError`` if its process has ended."""
        status = self.status()
        if status is not None:
            raise TargetError(self.explain(f"the proxy has ended, with {_told(status)}"))

    def explain(self, message: str) -> str:
        """A message, with what the proxy printed."""
        printed = self.printed()
        return f"{message}\nit printed:\n{printed}" if printed else message

    def terminate(self) -> None:
        """Send SIGTERM. Only to one that was started here."""
        assert self._child is not None
        self._child.terminate()

    async def ended(self) -> float:
        """Wait until its process has ended; returns when. Its deadline is the caller's."""
        assert self._child is not None
        while self._child.poll() is None:  # noqa: ASYNC110 - nothing tells when a child of subprocess's ends
            await trio.sleep(0.002)
        return time.monotonic()


async def wait_listening(address: Address, target: Target | None, seconds: float) -> None:
    """Wait until a connection is accepted.

    :raises TargetError: none is in time, or its process ends first.
    """
    with trio.move_on_after(seconds):
        while True:
            if target is not None:
                target.check()
            try:
                stream = await trio.open_tcp_stream(address.host, address.port)
            except OSError:
                await trio.sleep(_POLL)
            else:
                await trio.aclose_forcefully(stream)
                return
    message = f"nothing listens on {address.authority}"
    raise TargetError(target.explain(f"{message} after {seconds:g} s") if target is not None else message)


async def play_model_server(server: MockServer, listen: tuple[str, int], nursery: trio.Nursery) -> tuple[str, int]:
    """Start the model server in ``nursery``; returns host and port.

    :raises TargetError: its address cannot be listened on.
    """
    try:
        found: tuple[str, int] = await nursery.start(server.serve, *listen)
    except* OSError as group:
        address = f"{listen[0]}:{listen[1]}"
        why = cast("OSError", first_of(group)).strerror
        raise TargetError(f"cannot play the model server at {address}: {why}. --upstream-listen says where") from None
    return found


@asynccontextmanager
async def started(
    words: Sequence[str], upstream: tuple[str, int], headers: Sequence[tuple[str, str]] = ()
) -> AsyncGenerator[Target]:
    """Start a command as a proxy on a free port in front of ``upstream``; it and its children are ended on the way out.

    :raises TargetError: it is not there, ends, or does not listen in time.
    """
    listen = ("127.0.0.1", _free_port())
    command = fill_in(words, listen, upstream)
    with tempfile.TemporaryFile() as output:
        try:
            # In a session of its own: Ctrl-C reaches the tool alone, which then ends the child here.
            child = subprocess.Popen(  # noqa: ASYNC220 - it forks at once, and nothing is measured meanwhile
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise TargetError(f"cannot start {command[0]!r}: {error.strerror}") from None
        target = Target(Address(host=listen[0], port=listen[1], headers=tuple(headers)), child.pid, child, output)
        try:
            await wait_listening(target.address, target, START_TIMEOUT)
            yield target
        finally:
            with trio.move_on_after(STOP_TIMEOUT + 1, shield=True):
                await _stop(child)


async def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
    with trio.move_on_after(STOP_TIMEOUT):
        await trio.lowlevel.checkpoint()
        while child.poll() is None:  # noqa: ASYNC110 - nothing tells when a child of subprocess's ends
            await trio.sleep(_POLL)
    # Its session is its own, so this ends its workers too, and the proxy itself if it did not want to.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()  # noqa: ASYNC222 - it was killed


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _told(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
