"""The keep-alive connections to one endpoint, lent by lease.

Lives here: when a connection may be used again, and that none is ever lost. Does not live here: what is sent on
it, when to retry, or which endpoint is chosen.

A lease is a ``with`` block. What it holds goes back to the pool only if the exchange said that the connection is
clean; whatever else happens, an error or a cancel at any step included, it is reset. Nothing in check-in or
check-out awaits, so that no cancel can fall between taking a connection and noting it.
"""

from __future__ import annotations

import enum
import math
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, final

import trio

from ..errors import Code, ProxyError
from ..net import Address, Connector, TlsError, connect, dial, start_tls
from ..transport import Transport
from .endpoint import Endpoint


@final
class Idle:
    """A connection that waits for its next use."""

    __slots__ = ("expires", "since", "transport")

    def __init__(self, transport: Transport, since: float, expires: float) -> None:
        self.transport = transport
        self.since = since
        self.expires = expires


@final
class LeaseState(enum.Enum):
    """What a lease has, and what becomes of it."""

    EMPTY = "empty"
    CONNECTING = "connecting"
    HELD = "held"
    CLEAN = "clean"
    SPOILED = "spoiled"
    ENDED = "ended"


# CPython 3.11 looks a member of an enum up anew each time, for 0.1 µs.
_EMPTY: Final = LeaseState.EMPTY
_CONNECTING: Final = LeaseState.CONNECTING
_HELD: Final = LeaseState.HELD
_CLEAN: Final = LeaseState.CLEAN
_SPOILED: Final = LeaseState.SPOILED
_ENDED: Final = LeaseState.ENDED


@final
class Pool:
    """The connections to one endpoint.

    :param keep_alive: seconds after which an idle connection is closed: less than the endpoint's own limit, so
        that it is not closed by the other side just when it is used.
    :param tls: for an endpoint that speaks TLS: whom to trust, and what to show.
    :param server_name: whose certificate it must show, in place of the endpoint's host.
    :param addresses: where to connect to, in place of the endpoint's own addresses.
    """

    __slots__ = (
        "_addresses",
        "_connect",
        "_idle",
        "_keep_alive",
        "_server_name",
        "_tls",
        "_wake",
        "connecting",
        "endpoint",
        "held",
        "opened",
        "retired",
        "reused",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        keep_alive: float,
        connector: Connector = connect,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        addresses: Callable[[], Awaitable[Sequence[Address]]] | None = None,
    ) -> None:
        if endpoint.tls and tls is None:
            raise ValueError(f"{endpoint.url} needs a TLS context")
        self.endpoint = endpoint
        self.connecting = 0
        self.held = 0
        self.opened = 0
        self.reused = 0
        self.retired: Final = trio.Event()
        """Set when no connection is kept any more: the endpoint was taken out."""
        self._connect: Final = connector
        self._keep_alive = keep_alive
        self._tls = tls
        self._server_name = server_name or endpoint.host
        self._addresses: Final = addresses or endpoint.addresses
        self._idle: deque[Idle] = deque()  # oldest first; the newest is taken first
        self._wake = trio.Event()

    def __repr__(self) -> str:
        return f"<Pool {self.endpoint.url} {len(self._idle)} idle, {self.held} held, {self.connecting} connecting>"

    @property
    def idle(self) -> int:
        """How many connections wait for their next use."""
        return len(self._idle)

    def lease(self) -> Lease:
        """A lease, to be used as a ``with`` block."""
        return Lease(self)

    def pop_idle_nowait(self) -> Transport | None:
        """The idle connection that was used last and is still good, no longer the pool's; or None."""
        now = trio.current_time()
        while self._idle:
            idle = self._idle.pop()
            # Readable before anything was asked: it is closed, or somebody else's answer is on it.
            if idle.expires > now and not idle.transport.readable_nowait():
                return idle.transport
            idle.transport.close()
        return None

    def put_idle_nowait(self, transport: Transport) -> None:
        """Take a clean connection back; it is closed instead if it is not quiet."""
        if self._keep_alive <= 0 or transport.closed:
            transport.close()
            return
        if not self._idle:
            self._wake.set()
        now = trio.current_time()
        self._idle.append(Idle(transport, now, now + self._keep_alive))

    async def open(self) -> Transport:
        """A new connection, to whichever of the endpoint's addresses answers first, ready for a request.

        :raises ProxyError: ``CONNECT_FAILED`` or ``TLS_FAILED``. Cancelled, it leaves nothing open.
        """
        self.connecting += 1
        try:
            transport = await dial(await self._addresses(), self._connect)
            if self.endpoint.tls:
                assert self._tls is not None
                transport = await start_tls(transport, self._tls, server_hostname=self._server_name)
        except TlsError as error:
            raise self._failure(Code.TLS_FAILED, error) from None
        except OSError as error:
            raise self._failure(Code.CONNECT_FAILED, error) from None
        finally:
            self.connecting -= 1
        self.opened += 1
        return transport

    def _failure(self, code: Code, error: OSError) -> ProxyError:
        what = "speak TLS with" if code is Code.TLS_FAILED else "connect to"
        return ProxyError(
            code, f"cannot {what} the model server", detail=f"{self.endpoint.url}: {error.strerror or error}"
        )

    def renew(self, keep_alive: float, tls: ssl.SSLContext | None) -> None:
        """Go by these from now on; with another context no connection is used that was made by the old one."""
        self._keep_alive = keep_alive
        if self.endpoint.tls and tls is not self._tls:
            self._tls = tls
            self.close_idle()

    def retire(self) -> None:
        """Keep no connection from now on: idle ones are closed, and each that is lent when it comes back."""
        self._keep_alive = 0
        self.close_idle()
        self.retired.set()

    async def close_expired(self) -> None:
        """Close idle connections when their time is up, until cancelled."""
        while True:
            if not self._idle:
                if self._wake.is_set():  # several may wait for the same one
                    self._wake = trio.Event()
                await self._wake.wait()
                continue
            await trio.sleep_until(self._idle[0].expires)
            self.close_expired_nowait()

    def close_expired_nowait(self) -> None:
        """Close the idle connections whose time is up."""
        now = trio.current_time()
        while self._idle and self._idle[0].expires <= now:
            self._idle.popleft().transport.close()

    @property
    def idle_since(self) -> float:
        """Since when the connection has been idle that has been so for longest; infinite if none is idle."""
        return self._idle[0].since if self._idle else math.inf

    def close_oldest_nowait(self) -> None:
        """Close the connection that has been idle for longest."""
        self._idle.popleft().transport.close()

    def watch_peers(self, patience: float) -> None:
        """As ``Transport.watch_peer``, for the idle connections: one whose peer has vanished is then not lent."""
        for idle in self._idle:
            idle.transport.watch_peer(patience)

    def close_idle(self) -> None:
        """Close every idle connection now."""
        while self._idle:
            self._idle.pop().transport.close()


@final
class Lease:
    """One exchange's hold on at most one connection of a pool; ends with its ``with`` block."""

    __slots__ = ("_pool", "reused", "state", "transport")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.transport: Transport | None = None
        self.reused = False
        self.state = _EMPTY

    def __repr__(self) -> str:
        return f"<Lease {self.state.value} {self._pool.endpoint.url}>"

    @property
    def endpoint(self) -> Endpoint:
        """Where its connection goes."""
        return self._pool.endpoint

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state is _ENDED

    def take_idle_nowait(self) -> Transport | None:
        """Take an idle connection, if a good one is there."""
        transport = self._pool.pop_idle_nowait()
        if transport is not None:
            self._pool.reused += 1
            self._hold(transport, reused=True)
        return transport

    async def open(self) -> Transport:
        """Take a new connection; one that is held is reset before.

        :raises ProxyError: ``CONNECT_FAILED`` or ``TLS_FAILED``. Cancelled, it leaves nothing behind.
        :raises trio.ClosedResourceError: another task has ended the lease; nothing is left open then either.
        """
        self.reset()
        if not self.ended:
            self.state = _CONNECTING
            try:
                transport = await self._pool.open()
            finally:
                if not self.ended:
                    self.state = _EMPTY
            if not self.ended:
                self._hold(transport, reused=False)
                return transport
            transport.reset()
        raise trio.ClosedResourceError("this lease has ended")

    def _hold(self, transport: Transport, *, reused: bool) -> None:
        self.transport = transport
        self.reused = reused
        self.state = _HELD
        self._pool.held += 1

    def mark_clean(self) -> None:
        """Say that both sides are done with the exchange and not a byte is left over: the connection may be reused."""
        if self.state is _HELD:
            self.state = _CLEAN

    def spoil(self) -> None:
        """Say that the connection can carry no other request, whatever comes after."""
        if self.state in (_HELD, _CLEAN):
            self.state = _SPOILED

    def reset(self) -> None:
        """Reset the connection that is held, at once; the lease can take another."""
        transport, self.transport = self.transport, None
        if transport is not None:
            self._pool.held -= 1
            self.state = _EMPTY
            transport.reset()

    def end(self) -> None:
        """End the lease: a clean connection goes back to the pool, any other is reset. Idempotent, never awaits."""
        if self.state is _CLEAN and self.transport is not None:
            transport, self.transport = self.transport, None
            self._pool.held -= 1
            self._pool.put_idle_nowait(transport)
        else:
            self.reset()
        self.state = _ENDED

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()
