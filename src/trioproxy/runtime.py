"""What all exchanges of one proxy share, and what they count.

Lives here: the settings, the pools in their rotation, the ledger of bodies, the counters. Two proxies in one process
have one of these each and nothing in common. Does not live here: any task.
"""

from __future__ import annotations

import enum
import logging
import secrets
import ssl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import trio

from .config import Settings
from .downstream import DateField
from .errors import Code, Fault, ProxyError
from .http1 import HeadLimits, HeadParser, head_parser
from .ledger import BodyLedger
from .net import Connector, client_context, connect
from .upstream.endpoint import Endpoint
from .upstream.pool import Pool
from .upstream.request import Forwarder

_logger: Final = logging.getLogger("trioproxy")


@final
class Phase(enum.Enum):
    """Which phase a request in flight is in."""

    __hash__ = object.__hash__  # by identity, in C; the default one runs Python for each count

    REQUEST = "request"
    FORWARDING = "forwarding"
    RESPONSE = "response"


@final
class Outcome(enum.Enum):
    """How a request ended; fixed once."""

    __hash__ = object.__hash__

    COMPLETED = "completed"
    """The last byte of a response of the upstream, whatever its status, was handed to the client's socket."""
    CLIENT_CLOSED = "client_closed"
    CLIENT_STALLED = "client_stalled"
    """The client took nothing, or sent nothing, for as long as it may."""
    REFUSED = "refused"
    """The proxy answered itself: something was wrong with the request, or there was no room for it."""
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    DRAINED = "drained"
    """The proxy was told to stop and the grace was over."""
    INTERNAL_ERROR = "internal_error"


_TIMEOUTS: Final = frozenset(
    {
        Code.CONNECT_TIMEOUT,
        Code.SEND_TIMEOUT,
        Code.FIRST_BYTE_TIMEOUT,
        Code.FIRST_EVENT_TIMEOUT,
        Code.IDLE_TIMEOUT,
        Code.TOTAL_TIMEOUT,
        Code.UPSTREAM_VANISHED,
    }
)


def outcome_of(error: ProxyError) -> Outcome:
    """The outcome of a request that ended with this error."""
    if error.code is Code.REQUEST_TIMEOUT:
        return Outcome.CLIENT_STALLED
    if error.code in _TIMEOUTS:
        return Outcome.UPSTREAM_TIMEOUT
    if error.code is Code.INTERNAL:
        return Outcome.INTERNAL_ERROR
    return Outcome.UPSTREAM_ERROR if error.fault is Fault.UPSTREAM else Outcome.REFUSED


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
@dataclass(frozen=True, slots=True)
class Statistics:
    """A proxy at one moment."""

    connections: int
    """Clients' connections that are open."""
    handshakes_failed: int
    """Clients that did not get through their TLS handshake."""
    in_flight: dict[str, int]
    """Requests by phase: ``request``, ``forwarding``, ``response``."""
    pool: PoolStatistics
    body_bytes_held: int
    body_violations: int
    """Bodies that could not be emptied on release: something kept a view of them."""
    outcomes: dict[str, int]
    """Requests that have ended, by :class:`Outcome`."""
    errors: dict[str, int]
    """Errors that ended requests, by code."""
    tokens: dict[str, int]
    """Tokens as the upstreams' ``usage`` gave them: ``prompt``, ``completion``, ``cached``."""


@final
class Rotation:
    """The pools, in turn: each request gets all of them, beginning with the next."""

    __slots__ = ("_next", "pools")

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.pools = tuple(pools)
        self._next = 0

    def order(self) -> tuple[Pool, ...]:
        """The pools to try, in order."""
        pools = self.pools
        if len(pools) == 1:
            return pools
        first = self._next
        self._next = (first + 1) % len(pools)
        return pools[first:] + pools[:first]


@final
class Runtime:
    """The shared state of one proxy. Everything here is synchronous."""

    def __init__(
        self,
        upstreams: Sequence[str],
        settings: Settings,
        connector: Connector = connect,
        upstream_tls: ssl.SSLContext | None = None,
    ) -> None:
        self.settings = settings
        self.instance: Final = secrets.token_hex(4)
        self.parser: Final[HeadParser] = head_parser(settings.codec)
        self.head_limits: Final = HeadLimits(
            size=settings.limits.head_size, fields=settings.limits.head_fields, target=settings.limits.target_size
        )
        self.ledger: Final = BodyLedger(settings.limits.bodies_size)
        self.forwarder: Final = Forwarder(f"trioproxy-{self.instance}".encode())
        self.date: Final = DateField()
        keep_alive = settings.deadlines.upstream_keep_alive
        endpoints = [Endpoint(url) for url in upstreams]
        if upstream_tls is None and any(endpoint.tls for endpoint in endpoints):
            upstream_tls = client_context()
        self.rotation: Final = Rotation(
            [Pool(endpoint, keep_alive=keep_alive, connector=connector, tls=upstream_tls) for endpoint in endpoints]
        )
        self.resolver_limiter: Final = trio.CapacityLimiter(max(4, len(self.rotation.pools)))
        self.draining = False
        self.connections = 0
        self.handshakes_failed = 0
        self.in_flight: Final = dict.fromkeys(Phase, 0)
        self.outcomes: Final[Counter[Outcome]] = Counter()
        self.errors: Final[Counter[Code]] = Counter()
        self.tokens: Final[Counter[str]] = Counter()
        self._requests = 0
        self._passed_over: Final[set[Endpoint]] = set()
        """Endpoints that could not be connected to the last time."""

    def next_request_id(self) -> str:
        """An id that is unique within the process and, almost surely, among processes."""
        self._requests += 1
        return f"{self.instance}-{self._requests:x}"

    def passed_over(self, endpoint: Endpoint, error: ProxyError) -> None:
        """Take note that a request goes on to another endpoint, since this one cannot be reached.

        Nobody else would tell: the request succeeds. Told once, until it can be reached again.
        """
        if len(self.rotation.pools) > 1 and endpoint not in self._passed_over:
            self._passed_over.add(endpoint)
            _logger.warning("an upstream is passed over: %s", endpoint.said(error.detail or error.message))

    def reached(self, endpoint: Endpoint) -> None:
        """Take note that a connection to the endpoint stands."""
        if endpoint in self._passed_over:
            self._passed_over.remove(endpoint)
            _logger.warning("upstream %s can be reached again", endpoint.url)

    def statistics(self) -> Statistics:
        """A snapshot."""
        pools = self.rotation.pools
        return Statistics(
            connections=self.connections,
            handshakes_failed=self.handshakes_failed,
            in_flight={phase.value: count for phase, count in self.in_flight.items()},
            pool=PoolStatistics(
                idle=sum(pool.idle for pool in pools),
                held=sum(pool.held for pool in pools),
                connecting=sum(pool.connecting for pool in pools),
                opened=sum(pool.opened for pool in pools),
                reused=sum(pool.reused for pool in pools),
            ),
            body_bytes_held=self.ledger.held,
            body_violations=self.ledger.violations,
            outcomes={outcome.value: self.outcomes[outcome] for outcome in Outcome},
            errors={code.value: count for code, count in self.errors.items()},
            tokens={kind: self.tokens[kind] for kind in ("prompt", "completion", "cached")},
        )
