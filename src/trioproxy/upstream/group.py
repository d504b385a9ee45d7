"""Groups of endpoints that stand in for one another, and how they are replaced while requests are in flight.

Lives here: which pools there are, which of them stay when the endpoints change, and what becomes of those that go. Does
not live here: connections (pool), and the tasks that tend a pool.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import trio

from ..net import Connector, client_context
from .endpoint import Endpoint
from .pool import Pool


@final
@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Upstream connections by state, over all endpoints."""

    idle: int
    held: int
    connecting: int
    opened: int
    """Since the start, reused ones counted once."""
    reused: int
    """How often an idle connection was used again."""


@final
class Group:
    """Endpoints that serve the same models: each request gets the pools of all of them, in the order to try them."""

    __slots__ = ("_next", "pools")

    def __init__(self) -> None:
        self.pools: tuple[Pool, ...] = ()
        """Never empty while anybody may ask; those of a group that was taken out stay, and keep no connection."""
        self._next = 0

    def candidates(self) -> tuple[Pool, ...]:
        """The pools to try for a request, in order: never empty. They take turns in being the first."""
        pools = self.pools
        if len(pools) == 1:
            return pools
        first = self._next
        self._next = (first + 1) % len(pools)
        return pools[first:] + pools[:first]

    def use(self, pools: Sequence[Pool]) -> None:
        """Have these from now on."""
        self.pools = tuple(pools)
        self._next = 0


@final
class Groups:
    """All groups of one proxy, by name.

    :param connector: how connections to endpoints are opened.
    """

    __slots__ = ("_connector", "_default_tls", "_gone", "_opened", "_reused", "by_name", "changed")

    def __init__(self, connector: Connector) -> None:
        self.by_name: Mapping[str, Group] = {}
        self.changed = trio.Event()
        """Set, and replaced by another, when there are other pools."""
        self._connector: Final = connector
        self._default_tls: ssl.SSLContext | None = None
        self._gone: list[Pool] = []
        """Pools that were taken out and still have connections."""
        self._opened = self._reused = 0
        """Of pools that are forgotten."""

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools of all of them."""
        return tuple(pool for group in self.by_name.values() for pool in group.pools)

    def replace(self, endpoints: Mapping[str, Sequence[str]], *, keep_alive: float, tls: ssl.SSLContext | None) -> None:
        """Have these endpoints from now on, by group.

        A group that stays is the same object, and the pool of an endpoint that stays in it is kept, with its
        connections. One that goes lends no idle connection any more, and closes each that is lent when it comes back.

        :param tls: for those that speak TLS; None for the system's authorities.
        :raises ValueError: one is no URL; nothing has changed then.
        """
        wanted = {name: [Endpoint(url) for url in urls] for name, urls in endpoints.items()}
        if tls is None and any(endpoint.tls for found in wanted.values() for endpoint in found):
            tls = self._default_tls = self._default_tls or client_context()
        going = list(self.pools)
        by_name: dict[str, Group] = {}
        for name, found in wanted.items():
            group = by_name[name] = self.by_name.get(name) or Group()
            before = list(group.pools)
            pools: list[Pool] = []
            for endpoint in found:
                stays = next((pool for pool in before if pool.endpoint.url == endpoint.url), None)
                if stays is None:
                    pools.append(Pool(endpoint, keep_alive=keep_alive, connector=self._connector, tls=tls))
                else:
                    before.remove(stays)
                    going.remove(stays)
                    stays.renew(keep_alive, tls)
                    pools.append(stays)
            group.use(pools)
        for pool in going:
            pool.retire()
        self._gone += going
        self._forget_idle()
        self.by_name = by_name
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    def _forget_idle(self) -> None:
        """Keep no pool that was taken out and has no connection left, but what it has counted."""
        for pool in [pool for pool in self._gone if not pool.held and not pool.connecting]:
            self._gone.remove(pool)
            self._opened += pool.opened
            self._reused += pool.reused

    def statistics(self) -> PoolStatistics:
        """The connections, those of pools that were taken out included."""
        self._forget_idle()
        pools = (*self.pools, *self._gone)
        return PoolStatistics(
            idle=sum(pool.idle for pool in pools),
            held=sum(pool.held for pool in pools),
            connecting=sum(pool.connecting for pool in pools),
            opened=self._opened + sum(pool.opened for pool in pools),
            reused=self._reused + sum(pool.reused for pool in pools),
        )
