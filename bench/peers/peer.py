"""What a peer is: how it is installed, how it is started, what its clients must send.

Lives here: the type that each file of a peer fills in, and addresses. Does not live here: any peer, or a process.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

LOOPBACK: Final = "127.0.0.1"
MODEL: Final = "mock-model"
"""The model that `trioproxy mock` has, for peers that must be told which one their upstream serves."""
BODY_SIZE: Final = 64 * 2**20
"""Bytes of the largest request body, for peers that have a limit."""
PATIENCE: Final = 3600
"""Seconds, for peers that would otherwise end a quiet stream."""


class PeerError(Exception):
    """A proxy could not be installed or started."""


class Address(NamedTuple):
    """Where something listens: an IPv4 address, as no peer shall look up names, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """With http, without a path."""
        return f"http://{self}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """From `HOST:PORT` or `http://HOST:PORT`, with or without a slash behind it.

        :raises ValueError: it is none of these, or HOST is a name.
        """
        host, colon, port = text.removeprefix("http://").removesuffix("/").rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(str(ipaddress.IPv4Address(host)), int(port))


def free_port() -> int:
    """A port on the loopback address that nobody has now."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        port: int = sock.getsockname()[1]
        return port


class Installation(Protocol):
    """How a peer gets onto this machine."""

    def missing(self) -> str | None:
        """None if it is here; otherwise what is missing and how to get it."""
        ...

    def executable(self) -> Path:
        """The program to start, if nothing is `missing`."""
        ...

    async def install(self) -> None:
        """Get it, unless it is here. When cancelled, what was begun is ended, and the next call begins anew.

        :raises PeerError: it cannot be had here; the message says how it can be.
        """
        ...


Arguments = Callable[[Address, Address, Path], Sequence[str]]
"""From where to listen, where the upstream is, and a directory for files: what comes behind the executable."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy that can be measured."""

    name: str
    installation: Installation
    arguments: Arguments
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables beside those of the caller."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """What each request of a client must have."""
    ready: str | None = None
    """The path that answers a GET with 200 as soon as it forwards; None: as soon as it accepts connections."""
    start_timeout: float = 15.0
    """Seconds until it is ready, at most, on a slow machine."""

    def command(self, listen: Address, upstream: Address, directory: Path) -> list[str]:
        """The command line, of absolute paths; configurations are written to `directory`, which must outlive it.

        :raises PeerError: it is not installed.
        """
        if (missing := self.installation.missing()) is not None:
            raise PeerError(missing)
        return [str(self.installation.executable()), *self.arguments(listen, upstream, directory)]
