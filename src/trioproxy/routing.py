"""Which way a request takes: from its head to an operation, from its model to a route.

Lives here: routes, and how one is chosen. Does not live here: endpoints (upstream), or what a body says (apis).

It happens in two steps, since the head is there before the body: :meth:`Router.match` says what the head alone decides,
:meth:`Match.choose` the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from . import http1
from .apis.operations import Operation, operation_of
from .config import Settings
from .http1 import RequestHead
from .upstream.group import Group


class LocalResponse(NamedTuple):
    """A response of the proxy's own, of which it is no error that it is."""

    status: int
    content_type: bytes
    body: bytes


@final
@dataclass(frozen=True, slots=True)
class Route:
    """Where requests go, and what they go by."""

    name: str
    group: Group
    settings: Settings


@final
@dataclass(frozen=True, slots=True)
class Match:
    """What is known of a request by its head."""

    operation: Operation
    routes: Sequence[Route]
    """Those whose path fits: the model decides among them."""
    local: Callable[[], LocalResponse] | None = None
    """What the proxy answers itself; nothing is forwarded then."""

    @property
    def settings(self) -> Settings:
        """Those that hold until the route is chosen."""
        return self.routes[0].settings

    def choose(self, model: str | None) -> Route:
        """The route for a model; None if the request names none."""
        return self.routes[0]


@final
class Router:
    """The routes of one proxy."""

    __slots__ = ("_routes",)

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = tuple(routes)

    def match(self, head: RequestHead) -> Match:
        """What the head of a request decides.

        :raises ProxyError: it goes nowhere.
        """
        return Match(operation_of(head.method, http1.route_of(head.target)), self._routes)
