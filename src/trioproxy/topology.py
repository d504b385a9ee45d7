"""Which endpoints there are, and which requests go to which: what a proxy is told of its surroundings.

Lives here: pools, routes, open paths, as frozen dataclasses, and what is wrong with them together. Does not live here:
reading them from a file (configfile), and choosing by them (routing).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from .apis.operations import is_open, open_paths
from .config import Settings

DEFAULT_POOL: Final = "default"
DEFAULT_ROUTE: Final = "default"


class TopologyError(ValueError):
    """Pools and routes that do not fit together.

    :param path: what it is about, as in a configuration file: ``("routes", "chat", "pool")``.
    :param what: is wrong with that, and what to do.
    """

    def __init__(self, path: tuple[str, ...], what: str) -> None:
        super().__init__(f"{'.'.join(path)}: {what}" if path else what)
        self.path = path
        self.what = what


def check_path(pattern: str) -> str:
    """A path, or the beginning of paths with a ``*`` at its end; returned as it is. Raises ValueError for others."""
    if not pattern.startswith("/") or "*" in pattern[:-1] or "?" in pattern or "#" in pattern:
        raise ValueError("must be a path such as /v1/embeddings, or its beginning and a star: /v1/*")
    if any(segment in (".", "..") for segment in pattern.split("/")) or "//" in pattern:
        raise ValueError("must not have dot segments (/./ or /../) or empty ones (//): requests with those are refused")
    return pattern


def fits(path: str, pattern: str) -> bool:
    """Whether a path is the one of a pattern, or begins as it does."""
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


def nearest(name: str, known: Iterable[str]) -> str:
    """What was probably meant."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"


def pattern_of(patterns: Sequence[str]) -> re.Pattern[str]:
    """What matches any of these, in which each ``*`` stands for any characters."""
    alternatives = (".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns)
    return re.compile("|".join(alternatives), re.DOTALL)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """Endpoints that stand in for one another."""

    endpoints: tuple[str, ...]
    """URLs like ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:/PATH``."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    """Which requests go to which pool, and what they go by. The first route that fits a request takes it."""

    name: str
    pool: str = DEFAULT_POOL
    paths: tuple[str, ...] = ()
    """Whole paths, or beginnings with a ``*`` at the end; none for every path that is open."""
    models: tuple[str, ...] = ()
    """Names, in which ``*`` stands for any characters; none for every model, and for requests that name none."""
    settings: Settings | None = None
    """In place of the proxy's. ``codec`` and what concerns no single request are the proxy's in any case, and so are
    the limits of a head."""

    @property
    def takes_all(self) -> bool:
        """Whether no request gets past it."""
        return not self.paths and not self.models


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Pools, routes between requests and pools, and which paths are open.

    Only what serves inference is open by default (``trioproxy.apis.operations``): an engine has paths beside that
    which pause it or replace its weights.
    """

    pools: Mapping[str, PoolSpec]
    routes: tuple[RouteSpec, ...] = ()
    """In the order in which they are tried; none if there is one pool, to which everything goes."""
    allow_paths: tuple[str, ...] = ()
    """Paths that are open too: whole ones, or beginnings with a ``*`` at the end. ``/*`` opens everything."""

    @classmethod
    def of(cls, endpoints: Sequence[str], *, allow_paths: Sequence[str] = ()) -> Topology:
        """One pool, to which everything goes.

        :raises TypeError: ``endpoints`` is a single text.
        """
        if isinstance(endpoints, str):
            raise TypeError("upstreams is a list of URLs: give [url] for a single one")
        return cls(pools={DEFAULT_POOL: PoolSpec(endpoints=tuple(endpoints))}, allow_paths=tuple(allow_paths))

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints of all pools."""
        return tuple(url for pool in self.pools.values() for url in pool.endpoints)

    @property
    def all_routes(self) -> tuple[RouteSpec, ...]:
        """The routes, of which there is always one."""
        if self.routes:
            return self.routes
        return (RouteSpec(name=DEFAULT_ROUTE, pool=next(iter(self.pools))),)

    def mistakes(self) -> Iterator[TopologyError]:
        """What does not fit together."""
        if not self.pools:
            yield TopologyError((), "a proxy needs at least one upstream, like http://127.0.0.1:8000")
        for name, pool in self.pools.items():
            if not pool.endpoints:
                yield TopologyError(
                    ("pools", name, "endpoints"), 'must have at least one upstream, such as "http://127.0.0.1:8000"'
                )
        if not self.routes and len(self.pools) > 1:
            yield TopologyError(("pools",), "there are several, and no [routes.NAME] says which requests go to which")
        above: RouteSpec | None = None
        for route in self.routes:
            path = ("routes", route.name)
            if route.pool not in self.pools:
                yield TopologyError(
                    (*path, "pool"), f"there is no pool {route.pool!r}; {nearest(route.pool, self.pools)}"
                )
            if above is not None:
                yield TopologyError(path, f"no request comes here: [routes.{above.name}] before it takes them all")
            elif route.takes_all:
                above = route
            for pattern in route.paths:
                if not self.opens(pattern):
                    yield TopologyError(
                        (*path, "paths"),
                        f"{pattern!r} is no path of inference, hence not open; add it to allow_paths to open it",
                    )

    def check(self) -> None:
        """Raise TopologyError, a ValueError, for the first thing that does not fit together."""
        for mistake in self.mistakes():
            raise mistake
        for pattern in (*self.allow_paths, *(path for route in self.routes for path in route.paths)):
            check_path(pattern)

    def opens(self, pattern: str) -> bool:
        """Whether any request whose path fits the pattern is let in."""
        if pattern.endswith("*"):
            start = pattern[:-1]
            return any(path.startswith(start) for path in open_paths()) or any(
                allowed.endswith("*") and (start.startswith(allowed[:-1]) or allowed.startswith(start))
                for allowed in self.allow_paths
            )
        return is_open(pattern) or any(fits(pattern, allowed) for allowed in self.allow_paths)
