"""The connections of a client with many origins: how many there may be, and who is next.

Lives here: the limits over all pools, and the hold of one request on one connection. Does not live here: HTTP.

A request that is being served holds a *slot*; there are as many slots as there may be connections, and waiting is for a
slot, first come first served. Idle connections hold none: when a connection more would be one too many, the one that
has been idle for longest is closed, and since every other connection has a slot, there is one. So nothing that a
request does on its way can lose room: ending its hold is one synchronous step.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable
from typing import NamedTuple, final

import trio

from .pool import Lease, Pool


class Counts(NamedTuple):
    """Connections at one moment, and requests that wait for one."""

    idle: int
    held: int
    """With a request on them."""
    connecting: int
    waiting: int
    """Requests that wait for a slot."""


class Origin(NamedTuple):
    """Who is connected to."""

    scheme: str
    authority: str
    """Host and port, as the URL has them."""
    server_name: str | None = None
    """Whose certificate it must show, if not the host's."""


@final
class Connections:
    """All connections of one client within one Trio run.

    :param most: how many there may be, idle ones included.
    :param most_idle: how many may be idle.
    :param make_pool: makes the pool of an origin.
    """

    def __init__(self, *, most: int | None, most_idle: int | None, make_pool: Callable[[Origin], Pool]) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self._most = sys.maxsize if most is None else most
        self._most_idle = sys.maxsize if most_idle is None else most_idle
        self._make_pool = make_pool
        self._slots = trio.Semaphore(self._most, max_value=self._most)
        self._pools: dict[Hashable, Pool] = {}
        self._holds: set[Hold] = set()

    @property
    def counts(self) -> Counts:
        """How many of each."""
        pools = self._pools.values()
        return Counts(
            idle=sum(pool.idle for pool in pools),
            held=sum(pool.held for pool in pools),
            connecting=sum(pool.connecting for pool in pools),
            waiting=self._slots.statistics().tasks_waiting,
        )

    async def hold(self, origin: Origin) -> Hold:
        """Wait for a slot. Cancelled, the request is no longer in the queue, at once."""
        await self._slots.acquire()
        # Not a step between having the slot and whoever gives it back.
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = self._make_pool(origin)
        hold = Hold(self, origin, pool.lease())
        self._holds.add(hold)
        return hold

    def make_room(self) -> None:
        """Close the connection that has been idle for longest, if there is no room for one more."""
        while self._open >= self._most and self._close_oldest():
            pass

    @property
    def _open(self) -> int:
        return sum(pool.idle + pool.held + pool.connecting for pool in self._pools.values())

    def _close_oldest(self) -> bool:
        oldest = min(self._pools.values(), key=lambda pool: pool.next_expiry, default=None)
        if oldest is None or not oldest.idle:
            return False
        oldest.close_oldest_nowait()
        return True

    def tidy(self) -> None:
        """Close what has been idle for too long, or is too much, and forget origins that nothing is left of."""
        for pool in self._pools.values():
            pool.close_expired_nowait()
        while sum(pool.idle for pool in self._pools.values()) > self._most_idle:
            self._close_oldest()
        in_use = {hold.origin for hold in self._holds}
        for origin in [origin for origin, pool in self._pools.items() if not pool.idle and origin not in in_use]:
            del self._pools[origin]

    def ended(self, hold: Hold) -> None:
        """A hold has ended: its connection is idle or gone. The next in the queue has the slot."""
        self._holds.discard(hold)
        self.tidy()
        self._slots.release()

    def close(self) -> None:
        """Close all connections; requests that are on some of them fail."""
        for hold in list(self._holds):
            hold.end()
        for pool in self._pools.values():
            pool.close_idle()
        self._pools.clear()

    def leave(self) -> None:
        """Close the sockets of a Trio run that is over: nobody waits for anything of it any more."""
        for hold in self._holds:
            hold.lease.reset()
        for pool in self._pools.values():
            pool.close_idle()


@final
class Hold:
    """One request's hold on a slot and on at most one connection."""

    __slots__ = ("__weakref__", "_connections", "_ended", "lease", "origin")

    def __init__(self, connections: Connections, origin: Origin, lease: Lease) -> None:
        self._connections = connections
        self._ended = False
        self.origin = origin
        self.lease = lease

    def end(self) -> None:
        """Give the slot back, and the connection: to the pool if it is clean, else it is reset. Synchronous and
        idempotent."""
        if not self._ended:
            self._ended = True
            self.lease.end()
            self._connections.ended(self)

    def abandon(self) -> None:
        """The same for a finalizer, which may run in any thread and between any two lines: at the run's next step."""
        if not self._ended:
            with contextlib.suppress(trio.RunFinishedError):  # with the run, whoever could wait for the slot has gone
                self._connections.token.run_sync_soon(self.end, idempotent=True)
