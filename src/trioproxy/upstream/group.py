"""Groups of endpoints that stand in for one another, and how they are replaced while requests are in flight.

Lives here: whom a request is sent to, which endpoints stay when they change, and what becomes of those that go. Does
not live here: connections (pool), how one endpoint does (health), and the tasks that tend it.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import trio

from ..config import Health
from ..net import Connector, client_context
from .endpoint import Endpoint
from .health import HealthState
from .pool import Pool

_logger: Final = logging.getLogger("trioproxy")


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
class Member:
    """One endpoint of a group: its connections, and how it does."""

    __slots__ = ("health", "pool", "turn")

    def __init__(self, pool: Pool, health: Health) -> None:
        self.pool: Final = pool
        self.health: Final = HealthState(health)
        self.turn = 0.0
        """What it is owed of the requests so far, in shares: whoever is owed most comes next."""

    def __repr__(self) -> str:
        return f"<Member {self.pool.endpoint.url} {self.health!r}>"


@final
class Group:
    """Endpoints that serve the same models: each request gets all of them, in the order in which to try them.

    :param name: of the pool, as the configuration calls it.
    """

    __slots__ = ("_plan", "members", "name")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.members: tuple[Member, ...] = ()
        """Never empty while anybody may ask; those of a group that was taken out stay, and keep no connection."""
        self._plan = Health()

    def candidates(self) -> Sequence[Member]:
        """Whom to try for a request, in order: never empty. They take turns in being the first.

        Those that are down or set aside come last, since to try them is better than to refuse; those that an operator
        has drained do not come at all, unless there are no others.
        """
        members = self.members
        if len(members) == 1:
            return members
        now = trio.current_time()
        first: Member | None = None
        shares = 0.0
        for member in members:
            if member.health.available(now):
                share = member.health.share(now)
                shares += share
                member.turn += share
                if first is None or member.turn > first.turn:
                    first = member
        if first is None:
            return [member for member in members if not member.health.drained] or members
        first.turn -= shares
        start = members.index(first)
        order = members[start:] + members[:start]
        if shares == len(members):
            return order
        rest = [member for member in order if not member.health.available(now) and not member.health.drained]
        return [*(member for member in order if member.health.available(now)), *rest]

    def failed(self, member: Member, why: str) -> None:
        """A request to this one has failed, by which it may be set aside."""
        if not member.health.request_failed():
            return
        now = trio.current_time()
        if not member.health.available(now):
            return
        others = [other for other in self.members if other is not member]
        aside = sum(now < other.health.aside_until for other in others)
        if aside + 1 > self._plan.most_aside * len(self.members):
            return
        if any(other.health.available(now) for other in others):
            seconds = member.health.set_aside(now)
            _logger.warning(
                "upstream %s is set aside for %g s: %d requests in a row failed, the last since %s",
                *(member.pool.endpoint.url, seconds, member.health.failures, why),
            )

    def succeeded(self, member: Member) -> None:
        """A request to this one has succeeded."""
        if member.health.failures and member.health.request_succeeded(trio.current_time()):
            _logger.warning("upstream %s serves requests again", member.pool.endpoint.url)

    def probed(self, member: Member, why: str | None) -> None:
        """A probe has come back: None if the endpoint is well, else what is wrong."""
        if member.health.probed(why is None, trio.current_time()):
            if why is None:
                _logger.warning("upstream %s is up again", member.pool.endpoint.url)
            else:
                _logger.warning("upstream %s is down: %s", member.pool.endpoint.url, why)

    def drain(self, url: str, *, drained: bool = True) -> bool:
        """Send no new request to an endpoint, or do so again; False if there is none of this URL."""
        found = [member for member in self.members if member.pool.endpoint.url == url]
        for member in found:
            member.health.drained = drained
        return bool(found)

    @property
    def ready(self) -> bool:
        """Whether there is an endpoint that can be counted on."""
        return any(not member.health.failing and not member.health.drained for member in self.members)

    def use(self, members: Sequence[Member], plan: Health) -> None:
        """Have these from now on."""
        self._plan = plan
        self.members = tuple(members)
        for member in members:
            member.health.renew(plan)


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
        return tuple(member.pool for group in self.by_name.values() for member in group.members)

    def replace(
        self, endpoints: Mapping[str, Sequence[str]], *, keep_alive: float, tls: ssl.SSLContext | None, health: Health
    ) -> None:
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
            group = by_name[name] = self.by_name.get(name) or Group(name)
            before = list(group.members)
            members: list[Member] = []
            for endpoint in found:
                stays = next((member for member in before if member.pool.endpoint.url == endpoint.url), None)
                if stays is None:
                    pool = Pool(endpoint, keep_alive=keep_alive, connector=self._connector, tls=tls)
                    members.append(Member(pool, health))
                else:
                    before.remove(stays)
                    going.remove(stays.pool)
                    stays.pool.renew(keep_alive, tls)
                    members.append(stays)
            group.use(members, health)
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
