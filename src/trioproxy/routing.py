"""Which way a request takes: from its head to an operation, from its model to a route.

Lives here: whether a path is open, and which route takes a request. Does not live here: what routes say (topology),
endpoints (upstream), or what a body says (apis).

It happens in two steps, since the head is there before the body: :meth:`Router.match` says what the head alone decides,
:meth:`Match.choose` the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, final

from . import http1
from .apis.operations import Operation, operation_of
from .config import Settings
from .errors import Code, ProxyError
from .http1 import RequestHead
from .topology import Topology, fits, pattern_of
from .upstream.group import Group

_READING: Final = frozenset({b"GET", b"HEAD"})
_LOCAL: Final = Operation("local")
_SHOWN: Final = 200
"""Characters of a path that an error repeats."""


class LocalResponse(NamedTuple):
    """A response of the proxy's own, of which it is no error that it is."""

    status: int
    content_type: bytes
    body: bytes


@final
class Route:
    """Where requests go, and what they go by.

    :param paths: as in ``RouteSpec``.
    :param models: as in ``RouteSpec``.
    """

    __slots__ = ("_models", "_paths", "group", "name", "settings")

    def __init__(
        self, name: str, group: Group, settings: Settings, paths: Sequence[str] = (), models: Sequence[str] = ()
    ) -> None:
        self.name: Final = name
        self.group: Final = group
        self.settings: Final = settings
        self._paths: Final = tuple(paths)
        self._models: Final[re.Pattern[str] | None] = pattern_of(models) if models else None

    def __repr__(self) -> str:
        return f"<Route {self.name}>"

    def takes_path(self, path: str) -> bool:
        """Whether it takes requests with this path."""
        return not self._paths or any(fits(path, pattern) for pattern in self._paths)

    def takes_model(self, model: str | None) -> bool:
        """Whether it takes requests for this model, or, if that is None, such as name none."""
        return self._models is None or (model is not None and self._models.fullmatch(model) is not None)


@final
class Match:
    """What is known of a request by its head.

    :param routes: those whose path fits, in order, at least one: the model decides among them.
    :param local: what the proxy answers itself; nothing is forwarded then.
    """

    __slots__ = ("local", "operation", "routes", "settings")

    def __init__(
        self, operation: Operation, routes: Sequence[Route], local: Callable[[], LocalResponse] | None = None
    ) -> None:
        self.operation: Final = operation
        self.routes: Final = routes
        self.settings: Final = routes[0].settings
        """Those that hold until the route is chosen: of the first that may be."""
        self.local: Final = local

    def choose(self, model: str | None) -> Route:
        """The route for a model; None if the request names none, or nobody can read it.

        :raises ProxyError: ``MODEL_NOT_FOUND``: no route takes it.
        """
        for route in self.routes:
            if route.takes_model(model):
                return route
        if model is None:
            raise ProxyError(
                Code.MODEL_NOT_FOUND, "the request must name a model, by which it is sent to one that serves it"
            )
        raise ProxyError(Code.MODEL_NOT_FOUND, f"the model {model!r} does not exist", param="model")


@final
class Router:
    """The routes of one proxy.

    :param groups: the endpoints, by the names of their pools.
    :param settings: where a route has none of its own.
    :param local: what the proxy answers itself, to GET and HEAD, by path; whatever an endpoint has there.
    """

    __slots__ = ("_allowed", "_local", "_matches", "_routes")

    def __init__(
        self,
        topology: Topology,
        groups: Mapping[str, Group],
        settings: Settings,
        local: Mapping[bytes, Callable[[], LocalResponse]],
    ) -> None:
        self._local: Final = local
        self._allowed: Final = topology.allow_paths
        self._routes: Final = tuple(
            Route(spec.name, groups[spec.pool], spec.settings or settings, spec.paths, spec.models)
            for spec in topology.all_routes
        )
        self._matches: dict[tuple[bytes, bytes], Match] = {}
        """Those of requests that most are, by method and path: the paths of operations that read a body are few."""

    def match(self, head: RequestHead) -> Match:
        """What the head of a request decides.

        :raises ProxyError: ``BAD_REQUEST``: its path can be read in two ways; ``PATH_NOT_ALLOWED``.
        """
        path = http1.route_of(head.target)
        match = self._matches.get((head.method, path))
        if match is None:
            if path in self._local and head.method in _READING:
                return Match(_LOCAL, self._routes, self._local[path])
            operation = operation_of(head.method, path)
            match = self._match(head.method, operation, path)
            if operation.reads:
                self._matches[head.method, path] = match
        return match

    def _match(self, method: bytes, operation: Operation, path: bytes) -> Match:
        text = "/" if path == b"*" else path.decode("latin-1")
        if not operation.open and not any(fits(text, pattern) for pattern in self._allowed):
            raise self._closed(
                method, text, "only what serves inference is; whoever runs this proxy can add the path to allow_paths"
            )
        routes = [route for route in self._routes if route.takes_path(text)]
        if not routes:
            raise self._closed(method, text, "no route takes it")
        return Match(operation, routes)

    @staticmethod
    def _closed(method: bytes, path: str, why: str) -> ProxyError:
        asked = f"{method.decode('latin-1')} {path}"
        return ProxyError(Code.PATH_NOT_ALLOWED, f"{asked[:_SHOWN]!r} is not open here: {why}")
