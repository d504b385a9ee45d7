"""The proxy: its listeners, its clients' connections, and how it stops.

Lives here: accepting, the tasks that belong to the proxy rather than to a request, draining. Does not live here:
signals, printing, or the command line.
"""

from __future__ import annotations

import errno
import logging
import math
import random
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Protocol, TypeVar, final

import trio

from .config import Settings
from .connection import ClientConnection
from .net import Connector, Listener, ServerTls, TlsError, connect, interval_for, listen, start_tls, transport_for
from .runtime import Runtime, Statistics
from .topology import Topology
from .transport import Transport
from .upstream.endpoint import Endpoint
from .upstream.group import Group, Member
from .upstream.probe import probe
from .upstream.request import Client

_logger: Final = logging.getLogger("trioproxy")
_ACCEPTS_BEFORE_YIELD: Final = 64
_WATCHED_BEFORE_YIELD: Final = 200
_ACCEPT_PAUSE: Final = 0.1
_RESOLVE_RETRY: Final = 1.0
_LISTENER_IS_BROKEN: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})
"""All other errors of accept come from outside: no files or memory left, or an error of the network (accept(2))."""


_T_contra = TypeVar("_T_contra", contravariant=True)


class TaskStatus(Protocol[_T_contra]):
    """What ``nursery.start`` hands to a task, as far as it is used: Trio's own and trio-typing's both fit."""

    def started(self, value: _T_contra, /) -> None:
        """Say that the task runs."""
        ...


@final
class Proxy:
    """A reverse proxy in front of one or more model servers.

    Nothing runs before :meth:`serve` or :meth:`serve_stream`; cancelling those ends everything that they started. Two
    proxies in one process share nothing.

    :param upstreams: URLs like ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:/PATH``, which take turns; or a
        :class:`trioproxy.Topology`, with pools, routes and the paths that are open beside those of inference.
    :param settings: deadlines, limits and modes.
    :param upstream_tls: for upstreams that speak TLS: whom to trust, and what to show. None for the system's
        authorities; :func:`trioproxy.client_context` makes others.
    :param connector: how connections to upstreams are opened, for tests with a network of their own.
    :raises ValueError: an upstream is not such a URL, or there is none; a route leads nowhere.
    """

    def __init__(
        self,
        upstreams: Sequence[str] | Topology,
        *,
        settings: Settings | None = None,
        upstream_tls: ssl.SSLContext | None = None,
        connector: Connector = connect,
    ) -> None:
        self._runtime = Runtime(_topology(upstreams), settings or Settings(), connector, upstream_tls)
        self._connections: set[ClientConnection] = set()
        self._accepting: set[trio.CancelScope] = set()
        """What brings new connections about: listening, and the handshakes of TLS. A drain ends it."""
        self._serving: set[trio.CancelScope] = set()
        self._drain_until = math.inf
        self._users = 0
        self._peers_watched = -math.inf

    def reconfigure(
        self,
        upstreams: Sequence[str] | Topology,
        *,
        settings: Settings | None = None,
        upstream_tls: ssl.SSLContext | None = None,
    ) -> None:
        """Serve requests that begin from now on by these; returns at once, whether or not the proxy serves.

        Requests in flight end as they began, on the upstreams that they have. Connections to an upstream that stays are
        kept, if it speaks TLS only with the same ``upstream_tls``; those to one that goes are closed, each when its
        request is over. What belongs to no single request goes by the new settings at once: ``limits.bodies_size``,
        ``deadlines.vanished`` and ``deadlines.drain``.

        :param upstreams: as for the constructor, and so are the others.
        :raises ValueError: an upstream is no URL, or there is none. Nothing has changed then.
        :raises ImportError: the library of ``codec`` is not installed. Nothing has changed then.
        """
        self._runtime.reconfigure(_topology(upstreams), settings or Settings(), upstream_tls)

    @property
    def ready(self) -> bool:
        """Whether it should get new clients: it is not draining, and some endpoint can be counted on."""
        return self._runtime.ready

    def statistics(self) -> Statistics:
        """What the proxy is doing and has done."""
        return self._runtime.statistics()

    async def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ServerTls | ssl.SSLContext | None = None,
        task_status: TaskStatus[list[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and serve clients until cancelled, or until drained.

        ``addresses = await nursery.start(proxy.serve, "127.0.0.1", 8080)`` returns once it listens, with the address of
        each listening socket.

        :param host: an address or a name; a name that has several addresses is listened on at each.
        :param port: 0 takes any free one.
        :param tls: the certificate, for clients that speak TLS.
        :raises OSError: it cannot listen there.
        """
        listeners = await listen(host, port)
        await self._serve(listeners, tls, lambda: task_status.started([listener.address for listener in listeners]))

    async def serve_listeners(
        self,
        listeners: Sequence[Listener],
        *,
        tls: ServerTls | ssl.SSLContext | None = None,
        task_status: TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the clients of these listeners, as :meth:`serve` does; closes them.

        ``nursery.start`` returns their names, such as ``127.0.0.1:8080`` or ``unix:/run/trioproxy``.

        :param listeners: of :func:`trioproxy.listen`, :func:`trioproxy.listen_unix` or :func:`trioproxy.inherited`.
        """
        await self._serve(listeners, tls, lambda: task_status.started([listener.name for listener in listeners]))

    async def _serve(
        self,
        listeners: Sequence[Listener],
        tls: ServerTls | ssl.SSLContext | None,
        started: Callable[[], None],
    ) -> None:
        try:
            with self._until_drained():
                async with self._housekeeping(), trio.open_nursery() as connections:
                    with trio.CancelScope() as accepting:
                        self._accepting.add(accepting)
                        if self._runtime.draining:
                            accepting.cancel()
                        async with trio.open_nursery() as acceptors:
                            for listener in listeners:
                                acceptors.start_soon(self._accept, listener, tls, connections)
                            started()
                    self._accepting.discard(accepting)
                    # Refuse from now on, while what is in flight goes on.
                    _close_all(listeners)
        finally:
            _close_all(listeners)

    async def serve_stream(
        self, stream: trio.abc.Stream, peer: str = "", *, tls: ServerTls | ssl.SSLContext | None = None
    ) -> None:
        """Serve one client on any Trio stream, until either side is done; closes the stream.

        :param peer: the client's address, for ``X-Forwarded-For``.
        :param tls: the certificate, for a client that speaks TLS on this stream.
        """
        if not peer.isascii() or (peer and not peer.isprintable()):
            raise ValueError(f"peer must be an address, got {peer!r}")
        transport = transport_for(stream)
        with self._until_drained():
            async with self._housekeeping():
                await self._serve_connection(transport, peer, _context_of(tls))

    def drain(self, grace: float | None = None) -> None:
        """Stop accepting, let requests in flight end, close idle connections; returns at once.

        ``serve`` returns when the last request has ended, or after the grace, when those still in flight are cancelled.
        Calling it again with a shorter grace shortens the first.

        :param grace: seconds; None for the setting ``deadlines.drain``.
        """
        seconds = self._runtime.settings.deadlines.drain if grace is None else grace
        self._runtime.draining = True
        self._drain_until = min(self._drain_until, trio.current_time() + seconds)
        for scope in self._accepting:
            scope.cancel()
        for scope in self._serving:
            scope.deadline = self._drain_until
        for connection in list(self._connections):
            connection.drain()

    async def _accept(self, listener: Listener, tls: ServerTls | ssl.SSLContext | None, nursery: trio.Nursery) -> None:
        while True:
            await listener.wait_readable()
            try:
                for _ in range(_ACCEPTS_BEFORE_YIELD):
                    accepted = listener.accept_nowait()
                    if accepted is None:
                        break
                    nursery.start_soon(self._serve_connection, *accepted, _context_of(tls))
            except OSError as error:
                if error.errno in _LISTENER_IS_BROKEN:
                    raise
                _logger.warning("cannot accept a connection: %s; trying again in %g s", error, _ACCEPT_PAUSE)
                await trio.sleep(_ACCEPT_PAUSE)

    async def _serve_connection(self, transport: Transport, peer: str, tls: ssl.SSLContext | None) -> None:
        if tls is not None:
            secured = await self._shake_hands(transport, tls)
            if secured is None:
                return
            transport = secured
        connection = ClientConnection(
            self._runtime, transport, Client(peer.encode(), b"http" if tls is None else b"https")
        )
        self._connections.add(connection)
        try:
            await connection.run()
        except Exception:
            # One connection's failure is not another's.
            _logger.exception("a connection failed")
        finally:
            self._connections.discard(connection)

    async def _shake_hands(self, transport: Transport, context: ssl.SSLContext) -> Transport | None:
        """The connection with TLS on it; None for a client that did not get that far. That is counted, and logged only
        for those who look closely: scanners and health checks of load balancers come and go like this."""
        with trio.move_on_after(self._runtime.settings.deadlines.handshake) as shaking:  # noqa: ASYNC912 - not draining
            self._accepting.add(shaking)
            try:
                if not self._runtime.draining:
                    return await start_tls(transport, context, server_side=True)
            except TlsError as error:
                _logger.info("a client's TLS handshake failed: %s", error)
            finally:
                self._accepting.discard(shaking)
        self._runtime.handshakes_failed += 1
        transport.close()
        return None

    @contextmanager
    def _until_drained(self) -> Generator[None, None, None]:
        """What is done in here is cancelled when the grace of a drain is over."""
        with trio.CancelScope(deadline=self._drain_until) as scope:
            self._serving.add(scope)
            try:
                yield
            finally:
                self._serving.discard(scope)

    @asynccontextmanager
    async def _housekeeping(self) -> AsyncGenerator[None, None]:
        """What must run while clients are served: names are resolved, idle connections to upstreams are closed, peers
        that have vanished are found."""
        self._users += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tend_pools, nursery)
                nursery.start_soon(self._watch_peers)
                yield
                nursery.cancel_scope.cancel()
        finally:
            self._users -= 1
            if not self._users:
                for pool in self._runtime.groups.pools:
                    pool.close_idle()

    async def _tend_pools(self, nursery: trio.Nursery) -> None:
        """Start what each endpoint needs, for those too that come later."""
        groups = self._runtime.groups
        tended: set[Member] = set()
        while True:
            changed = groups.changed
            members = {member: group for group in groups.by_name.values() for member in group.members}
            for member, group in members.items():
                if member not in tended:
                    nursery.start_soon(self._tend, group, member)
            tended = set(members)
            await changed.wait()

    async def _tend(self, group: Group, member: Member) -> None:
        pool = member.pool
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.close_expired)
            nursery.start_soon(self._probe, group, member)
            if not pool.endpoint.literal:
                nursery.start_soon(self._keep_resolved, pool.endpoint)
            await pool.retired.wait()
            nursery.cancel_scope.cancel()

    async def _probe(self, group: Group, member: Member) -> None:
        """Ask an endpoint how it does, again and again, for as long as it is wanted."""
        pause = 0.0
        while True:
            terms, changed = self._runtime.terms, self._runtime.groups.changed
            health = terms.settings.health
            with trio.move_on_after(math.inf if health.path is None else pause):
                await changed.wait()
                continue
            assert health.path is not None
            why: str | None = f"no answer within {health.timeout:g} s"
            with trio.move_on_after(health.timeout):
                why = await probe(member.pool, health.path, terms.parser, terms.head_limits)
            group.probed(member, why)
            # Not all at the same moment, nor several proxies.
            pause = health.interval * random.uniform(0.9, 1.1)

    async def _watch_peers(self) -> None:
        while True:
            patience = self._runtime.settings.deadlines.vanished
            if patience == math.inf:
                await self._runtime.groups.changed.wait()
                continue
            interval = interval_for(patience)
            await trio.sleep(interval)
            if trio.current_time() < self._peers_watched + interval:
                continue  # another user of this proxy does it
            self._peers_watched = trio.current_time()
            for pool in self._runtime.groups.pools:
                pool.watch_peers(patience)
            for count, connection in enumerate(list(self._connections)):
                if count % _WATCHED_BEFORE_YIELD == 0:
                    await trio.lowlevel.checkpoint()
                connection.watch_peers(patience)

    async def _keep_resolved(self, endpoint: Endpoint) -> None:
        told: str | None = None
        while True:
            await endpoint.resolve(self._runtime.resolver_limiter)
            if endpoint.failure is not None and endpoint.failure != told:
                _logger.warning("cannot look up the upstream's name %r: %s", endpoint.host, endpoint.failure)
            told = endpoint.failure
            await trio.sleep(self._runtime.settings.resolve_interval if endpoint.resolved else _RESOLVE_RETRY)


def _topology(upstreams: Sequence[str] | Topology) -> Topology:
    topology = upstreams if isinstance(upstreams, Topology) else Topology.of(upstreams)
    topology.check()
    return topology


def _context_of(tls: ServerTls | ssl.SSLContext | None) -> ssl.SSLContext | None:
    return tls.context if isinstance(tls, ServerTls) else tls


def _close_all(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        listener.close()
