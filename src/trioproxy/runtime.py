"""What all exchanges of one proxy share, and what they count.

Lives here: the terms of requests, the pools in their rotation, the ledger of bodies, the counters. Two proxies in one
process have one of these each and nothing in common. Does not live here: any task.
"""

from __future__ import annotations

import logging
import secrets
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import trio

from .config import Settings
from .downstream import DateField
from .errors import Code, ProxyError
from .http1 import HeadLimits, HeadParser, head_parser
from .ledger import BodyLedger
from .net import Connector, connect
from .record import Outcome, Phase, RequestRecord
from .routing import LocalResponse, Router
from .topology import Topology
from .upstream.endpoint import Endpoint
from .upstream.group import Groups, PoolStatistics
from .upstream.request import Forwarder

_logger: Final = logging.getLogger("trioproxy")
_TEXT: Final = b"text/plain"


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
@dataclass(frozen=True, slots=True)
class Terms:
    """What a request is served by. It takes these once, when it begins: what is changed later is for those after it."""

    settings: Settings
    parser: HeadParser
    head_limits: HeadLimits
    router: Router

    @classmethod
    def of(cls, settings: Settings, router: Router) -> Terms:
        """Those that follow from settings. Raises ImportError where the parser's library is not installed."""
        limits = settings.limits
        head_limits = HeadLimits(size=limits.head_size, fields=limits.head_fields, target=limits.target_size)
        return cls(settings, head_parser(settings.codec), head_limits, router)


def _threads_for(topology: Topology) -> int:
    """How many names may be looked up at a time."""
    return max(4, len(topology.endpoints))


@final
class Runtime:
    """The shared state of one proxy. Everything here is synchronous."""

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        connector: Connector = connect,
        upstream_tls: ssl.SSLContext | None = None,
    ) -> None:
        self.groups: Final = Groups(connector)
        self._have(topology, settings, upstream_tls)
        self.terms = Terms.of(settings, self._router(topology, settings))
        """Of the requests that begin from now on."""
        self.instance: Final = secrets.token_hex(4)
        self.ledger: Final = BodyLedger(settings.limits.bodies_size)
        self.forwarder: Final = Forwarder(f"trioproxy-{self.instance}".encode())
        self.date: Final = DateField()
        self.resolver_limiter: Final = trio.CapacityLimiter(_threads_for(topology))
        self.draining = False
        self.connections = 0
        self.handshakes_failed = 0
        self.in_flight: Final = dict.fromkeys(Phase, 0)
        self.outcomes: Final[Counter[Outcome]] = Counter()
        self.errors: Final[Counter[Code]] = Counter()
        self.tokens: Final[Counter[str]] = Counter()
        self.watchers: Final[list[Callable[[RequestRecord], None]]] = []
        """Told of each request when it is over; synchronous, and cheap: they run in its task."""
        self._requests = 0
        self._passed_over: Final[set[Endpoint]] = set()
        """Endpoints that could not be connected to the last time."""

    @property
    def settings(self) -> Settings:
        """The settings of now."""
        return self.terms.settings

    def _have(self, topology: Topology, settings: Settings, upstream_tls: ssl.SSLContext | None) -> None:
        endpoints = {name: pool.endpoints for name, pool in topology.pools.items()}
        self.groups.replace(
            endpoints,
            keep_alive=settings.deadlines.upstream_keep_alive,
            tls=upstream_tls,
            health=settings.health,
        )

    def _router(self, topology: Topology, settings: Settings) -> Router:
        return Router(topology, self.groups.by_name, settings, {b"/healthz": self._alive, b"/readyz": self._readiness})

    def _alive(self) -> LocalResponse:
        return LocalResponse(200, _TEXT, b"alive\n")

    def _readiness(self) -> LocalResponse:
        if self.ready:
            return LocalResponse(200, _TEXT, b"ready\n")
        return LocalResponse(503, _TEXT, b"draining\n" if self.draining else b"no healthy endpoint\n")

    def reconfigure(self, topology: Topology, settings: Settings, upstream_tls: ssl.SSLContext | None) -> None:
        """As :meth:`trioproxy.Proxy.reconfigure`."""
        head_parser(settings.codec)  # which may be missing: nothing has changed then
        self._have(topology, settings, upstream_tls)
        self.terms = Terms.of(settings, self._router(topology, settings))
        self.ledger.resize(settings.limits.bodies_size)
        self.resolver_limiter.total_tokens = _threads_for(topology)
        self._passed_over.intersection_update([pool.endpoint for pool in self.groups.pools])

    @property
    def ready(self) -> bool:
        """As :attr:`trioproxy.Proxy.ready`."""
        return not self.draining and any(group.ready for group in self.groups.by_name.values())

    def next_request_id(self) -> str:
        """An id that is unique within the process and, almost surely, among processes."""
        self._requests += 1
        return f"{self.instance}-{self._requests:x}"

    def passed_over(self, endpoint: Endpoint, error: ProxyError) -> None:
        """Take note that a request goes on to another endpoint, since this one cannot be reached.

        Nobody else would tell: the request succeeds. Told once, until it can be reached again.
        """
        if len(self.groups.pools) > 1 and endpoint not in self._passed_over:
            self._passed_over.add(endpoint)
            _logger.warning("an upstream is passed over: %s", endpoint.said(error.detail or error.message))

    def reached(self, endpoint: Endpoint) -> None:
        """Take note that a connection to the endpoint stands."""
        if endpoint in self._passed_over:
            self._passed_over.remove(endpoint)
            _logger.warning("upstream %s can be reached again", endpoint.url)

    def ended(self, record: RequestRecord) -> None:
        """Count a request that is over: once each, whatever became of it."""
        outcome = record.outcome
        assert outcome is not None
        self.outcomes[outcome] += 1
        if record.error is not None:
            self.errors[record.error] += 1
        usage = record.usage
        if usage is not None:
            self.tokens["prompt"] += usage.prompt_tokens or 0
            self.tokens["completion"] += usage.completion_tokens or 0
            self.tokens["cached"] += usage.cached_tokens or 0
        for watcher in self.watchers:
            watcher(record)

    def statistics(self) -> Statistics:
        """A snapshot."""
        return Statistics(
            connections=self.connections,
            handshakes_failed=self.handshakes_failed,
            in_flight={phase.value: count for phase, count in self.in_flight.items()},
            pool=self.groups.statistics(),
            body_bytes_held=self.ledger.held,
            body_violations=self.ledger.violations,
            outcomes={outcome.value: self.outcomes[outcome] for outcome in Outcome},
            errors={code.value: count for code, count in self.errors.items()},
            tokens={kind: self.tokens[kind] for kind in ("prompt", "completion", "cached")},
        )
