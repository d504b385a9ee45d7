"""What a configuration file says, as frozen dataclasses: a table each.

Lives here: every key, its type, its default, and in its docstring what it is for. Does not live here: how a file is
read or written. A field added here, or to the settings, is a key of the file, of ``trioproxy config --defaults`` and of
the messages about keys that do not exist: nothing else need be done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, final

from ..config import Settings
from .places import Place
from .scalars import Url
from .schema import FLAT, RESTART

DEFAULT_POOL: Final = "default"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS to clients."""

    cert: Path | None = None
    """The certificate (PEM) to show to clients, its chain after it: all listeners speak TLS then. Whether they do
    takes a restart; which certificate they show does not."""
    key: Path | None = None
    """The file with the certificate's key, if that is not in the same file."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTlsConfig:
    """TLS to endpoints that are https://."""

    ca: Path | None = None
    """A file of certificates (PEM) to trust in place of the system's."""
    cert: Path | None = None
    """The certificate (PEM) to show to endpoints that ask."""
    key: Path | None = None
    """The file with its key, if that is not in the same file."""
    verify: bool = True
    """Whether to check the certificates of endpoints: false is for tests only."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Endpoints that serve the same models."""

    endpoints: tuple[Url, ...] = ()
    """The model servers: ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:/PATH``. They take turns, and stand in
    for one that cannot be reached."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """Everything that a configuration file can say."""

    listen: Annotated[tuple[Place, ...], RESTART] = (Place.parse("127.0.0.1:8080"),)
    """Where to listen: ``HOST:PORT``, ``[IPV6]:PORT``, ``:PORT`` (every address of this machine), ``unix:PATH``, or
    ``systemd`` for the sockets of a .socket unit. What is changed here takes a restart."""
    upstreams: tuple[Url, ...] = ()
    """The endpoints, where there is one pool: short for ``endpoints`` in ``[pools.default]``."""
    settings: Annotated[Settings, FLAT] = field(default_factory=Settings)
    tls: TlsConfig = field(default_factory=TlsConfig)
    upstream_tls: UpstreamTlsConfig = field(default_factory=UpstreamTlsConfig)
    pools: Mapping[str, PoolConfig] = field(default_factory=dict[str, PoolConfig])

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints of the one pool."""
        pool = self.pools.get(DEFAULT_POOL)
        return self.upstreams if pool is None else pool.endpoints
