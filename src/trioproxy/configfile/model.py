"""What a configuration file says, as frozen dataclasses: a table each.

Lives here: every key, its type, its default, and in its docstring what it is for. Does not live here: how a file is
read or written. A field added here, or to the settings, is a key of the file, of ``trioproxy config --defaults`` and of
the messages about keys that do not exist: nothing else need be done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, final

from ..config import BodyMode, Settings
from ..topology import DEFAULT_POOL, PoolSpec, RouteSpec, Topology
from ..units import Bytes, Seconds
from .mistakes import Path
from .places import Place
from .scalars import PathPattern, Url
from .schema import FLAT, RESTART


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS to clients."""

    cert: FilePath | None = None
    """The certificate (PEM) to show to clients, its chain after it: all listeners speak TLS then. Whether they do
    takes a restart; which certificate they show does not."""
    key: FilePath | None = None
    """The file with the certificate's key, if that is not in the same file."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTlsConfig:
    """TLS to endpoints that are https://."""

    ca: FilePath | None = None
    """A file of certificates (PEM) to trust in place of the system's."""
    cert: FilePath | None = None
    """The certificate (PEM) to show to endpoints that ask."""
    key: FilePath | None = None
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
class RouteDeadlines:
    """Deadlines of this route, in place of those in [deadlines]."""

    connect: Seconds | None = None
    """Until a connection to an endpoint stands."""
    first_byte: Seconds | None = None
    """From the request's last byte to the response's head."""
    first_event: Seconds | None = None
    """From the head of a streamed response to its first event."""
    idle: Seconds | None = None
    """Between two reads of a response that has begun."""
    total: Seconds | None = None
    """From the request's head to the response's end."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLimits:
    """Limits of this route, in place of those in [limits]."""

    body_size: Bytes | None = None
    """Of one request's body; 413 above. Of several routes with a path, the first one's holds, since the model that
    decides among them is known only when the body is there."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RouteConfig:
    """Which requests go to which pool, and what they go by: of several routes the first that fits, in the order in
    which they stand here. Without any, all requests go to the one pool."""

    pool: str = DEFAULT_POOL
    """The pool that they go to: its name in [pools.NAME]."""
    paths: tuple[PathPattern, ...] = ()
    """Only requests with one of these paths, or that begin like one that ends with a star: `/v1/audio/*`. It opens
    nothing: see `allow_paths`."""
    models: tuple[str, ...] = ()
    """Only requests for one of these models; `*` stands for any characters: `llama-*`."""
    body: BodyMode | None = None
    """In place of the `body` at the top. Of several routes with a path, the first one's holds."""
    deadlines: RouteDeadlines = field(default_factory=RouteDeadlines)
    limits: RouteLimits = field(default_factory=RouteLimits)

    def settings(self, base: Settings) -> Settings | None:
        """What its requests go by, if it says anything of its own."""
        deadlines, limits = _given(self.deadlines), _given(self.limits)
        if not deadlines and not limits and self.body is None:
            return None
        return replace(
            base,
            deadlines=replace(base.deadlines, **deadlines),
            limits=replace(base.limits, **limits),
            body=self.body or base.body,
        )


def _given(table: RouteDeadlines | RouteLimits) -> dict[str, Any]:
    values = {item.name: getattr(table, item.name) for item in fields(table)}
    return {name: value for name, value in values.items() if value is not None}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """Everything that a configuration file can say."""

    listen: Annotated[tuple[Place, ...], RESTART] = (Place.parse("127.0.0.1:8080"),)
    """Where to listen: ``HOST:PORT``, ``[IPV6]:PORT``, ``:PORT`` (every address of this machine), ``unix:PATH``, or
    ``systemd`` for the sockets of a .socket unit. What is changed here takes a restart."""
    upstreams: tuple[Url, ...] = ()
    """The endpoints, where there is one pool: short for ``endpoints`` in ``[pools.default]``."""
    allow_paths: tuple[PathPattern, ...] = ()
    """Paths that clients may ask for besides those of inference: `/my/path`, or all that begin so: `/my/*`. Engines
    have paths that pause them or replace their weights: mind what you open. `/*` opens everything."""
    settings: Annotated[Settings, FLAT] = field(default_factory=Settings)
    tls: TlsConfig = field(default_factory=TlsConfig)
    upstream_tls: UpstreamTlsConfig = field(default_factory=UpstreamTlsConfig)
    pools: Mapping[str, PoolConfig] = field(default_factory=dict[str, PoolConfig])
    routes: Mapping[str, RouteConfig] = field(default_factory=dict[str, RouteConfig])

    @property
    def topology(self) -> Topology:
        """The pools and routes, as a proxy takes them."""
        pools = {name: PoolSpec(endpoints=pool.endpoints) for name, pool in self.pools.items()}
        routes = (
            RouteSpec(
                name=name,
                pool=route.pool,
                paths=route.paths,
                models=route.models,
                settings=route.settings(self.settings),
            )
            for name, route in self.routes.items()
        )
        return Topology(
            pools=pools or {DEFAULT_POOL: PoolSpec(endpoints=self.upstreams)},
            routes=tuple(routes),
            allow_paths=self.allow_paths,
        )

    @property
    def endpoints(self) -> Iterator[tuple[Path, str]]:
        """All endpoints, each with the way to it in the file."""
        for number, url in enumerate(self.upstreams):
            yield ("upstreams", number), url
        for name, pool in self.pools.items():
            for number, url in enumerate(pool.endpoints):
                yield ("pools", name, "endpoints", number), url
