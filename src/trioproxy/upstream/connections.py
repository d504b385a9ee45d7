"""The connections of a client with many origins: how many there may be, and who is next.

Lives here: the limits over all pools, and the hold of one request on one connection. Does not live here: HTTP.

A request that is being served holds a *slot*; there are as many slots as there may be connections, and waiting is for a
slot, first come first served. Idle connections hold none: when there are as many of them and of slots held as there may
be connections, one more is opened only after the one that has been idle for longest was closed. A slot counts as a
connection from the moment that it is held, so that it does not matter what a request awaits before it connects; and
nothing that it does on its way can lose room: ending its hold is one synchronous step.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, final

import trio

from ..transport import Transport
from .pool import Lease, Pool

CLOSED: Final = "the transport was closed here"


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
        self._pools: dict[Origin, Pool] = {}
        self._holds: set[Hold] = set()
        self._holds_of: Counter[Origin] = Counter()
        self._closed = False

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
        """Wait for a slot; no checkpoint if there is one. Cancelled, the request is no longer in the queue, at once.

        :raises trio.ClosedResourceError: the connections were closed meanwhile.
        """
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            await self._slots.acquire()
        # Not a step between having the slot and whoever gives it back.
        if self._closed:
            self._slots.release()
            raise trio.ClosedResourceError(CLOSED)
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = self._make_pool(origin)
        hold = Hold(self, origin, pool.lease())
        self._holds.add(hold)
        self._holds_of[origin] += 1
        return hold

    def make_room(self) -> None:
        """Close what has been idle for longest, if whoever has a slot could not have a connection otherwise."""
        idle = sum(pool.idle for pool in self._pools.values())
        while idle and idle + len(self._holds) > self._most:
            self._close_oldest()
            idle -= 1

    def _close_oldest(self) -> None:
        min(self._pools.values(), key=lambda pool: pool.idle_since).close_oldest_nowait()

    def tidy(self) -> None:
        """Close what has been idle for too long, or is too much, and forget origins that nothing is left of."""
        idle = 0
        for origin, pool in list(self._pools.items()):
            pool.close_expired_nowait()
            idle += pool.idle
            if not pool.idle and origin not in self._holds_of:
                del self._pools[origin]
        while idle > self._most_idle:
            self._close_oldest()
            idle -= 1

    def ended(self, hold: Hold) -> None:
        """A hold has ended: its connection is idle or gone. The next in the queue has the slot."""
        self._holds.discard(hold)
        self._holds_of[hold.origin] -= 1
        if not self._holds_of[hold.origin]:
            del self._holds_of[hold.origin]
        try:
            self.tidy()
        finally:
            self._slots.release()

    def close(self) -> None:
        """Close all connections; requests that are on some of them, that connect, or that wait fail."""
        self._closed = True
        for hold in list(self._holds):
            hold.end()
        for pool in self._pools.values():
            pool.close_idle()
        self._pools.clear()

    def leave(self) -> None:
        """Close the sockets of a Trio run that is over: nobody waits for anything of it any more.

        :raises RuntimeError: it is not over.
        """
        with contextlib.suppress(trio.RunFinishedError):
            self.token.run_sync_soon(_nothing)
            raise RuntimeError("this transport is in use in another Trio run: make one for each")
        for hold in self._holds:
            hold.lease.reset()
        for pool in self._pools.values():
            pool.close_idle()


def _nothing() -> None:
    pass


@final
class Hold:
    """One request's hold on a slot and on at most one connection."""

    __slots__ = ("__weakref__", "_connecting", "_connections", "ended", "lease", "origin")

    def __init__(self, connections: Connections, origin: Origin, lease: Lease) -> None:
        self._connections = connections
        self._connecting: trio.CancelScope | None = None
        self.ended = False
        self.origin = origin
        self.lease = lease

    @property
    def transport(self) -> Transport:
        """The connection.

        :raises trio.ClosedResourceError: there is none (any more).
        """
        if self.lease.transport is None:
            raise trio.ClosedResourceError(CLOSED)
        return self.lease.transport

    async def open(self) -> None:
        """Open a new connection; one that is held is reset before.

        :raises ProxyError: as ``Lease.open``.
        :raises trio.ClosedResourceError: the hold was ended, before it or meanwhile.
        """
        self.lease.reset()
        if not self.ended:
            self._connections.make_room()
            with trio.CancelScope() as scope:
                self._connecting = scope
                try:
                    await self.lease.open()
                finally:
                    self._connecting = None
                return
        raise trio.ClosedResourceError(CLOSED)

    def end(self) -> None:
        """Give the slot back, and the connection: to the pool if it is clean, else it is reset. Synchronous and
        idempotent."""
        if not self.ended:
            self.ended = True
            try:
                self.lease.end()
            finally:
                self._connections.ended(self)
            if self._connecting is not None:
                self._connecting.cancel()

    def abandon(self) -> None:
        """The same for a finalizer, which may run in any thread and between any two lines: at the run's next step."""
        if not self.ended:
            with contextlib.suppress(trio.RunFinishedError):  # with the run, whoever could wait for the slot has gone
                self._connections.token.run_sync_soon(self.end, idempotent=True)
