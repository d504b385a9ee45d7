"""What can be set, with the defaults, as frozen dataclasses.

Lives here: the types of the settings and their checks. Does not live here: reading files or the command line.
Times are seconds, sizes are bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal, final, get_args

from .http1 import ParserName, default_parser


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each part of an exchange may take, in seconds; ``math.inf`` turns one off.

    Each has an outcome of its own, so that a timeout says what was waited for.
    """

    connect: float = 5.0
    """Until a connection to an endpoint stands; the next endpoint is tried after it."""
    first_byte: float = 600.0
    """From the request's last byte to the response's head. The official SDKs give up after 600 s too."""
    first_event: float = 600.0
    """From the head of a streamed response to its first event: an engine that sends its head at once waits here."""
    idle: float = 300.0
    """Between two reads of a response that has begun."""
    total: float = math.inf
    """From the request's head to the response's end."""
    handshake: float = 10.0
    """From a client's connection to the end of its TLS handshake."""
    head: float = 10.0
    """From a request head's first byte to its last: absolute, so that a trickle does not extend it."""
    body_stall: float = 30.0
    """Between two reads of a request's body."""
    write_stall: float = 60.0
    """While the client takes nothing of what is there for it."""
    vanished: float = 30.0
    """While a peer's system, client's or upstream's, answers nothing, not even a probe. At least 4 s: systems count
    whole seconds."""
    client_keep_alive: float = 75.0
    """A client's connection between requests: above the 60 s of the usual load balancers."""
    upstream_keep_alive: float = 4.0
    """An idle upstream connection: below the 5 s after which uvicorn closes it."""
    linger: float = 5.0
    """How long a connection is read on after a final response, so that the client can read that."""
    overload: float = 5.0
    """How long an upload waits for room when all bodies together hold what they may."""
    drain: float = 30.0
    """How long requests in flight may take after the proxy was told to stop."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value: object = getattr(self, item.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value) or value < 0:
                raise ValueError(f"deadline {item.name!r} must be a number of seconds ≥ 0, got {value!r}")
        if not (4 <= self.vanished <= 32767 or self.vanished == math.inf):  # the most that Linux takes
            raise ValueError(f"deadline 'vanished' must be from 4 to 32767 s, or inf, got {self.vanished!r}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of everything, in bytes and counts."""

    head_size: int = 65536
    """Of one head, request or response; 431 above."""
    head_fields: int = 100
    target_size: int = 8192
    """Of the request target; 414 above."""
    body_size: int = 64 << 20
    """Of one request's body; 413 above."""
    bodies_size: int = 1 << 30
    """Of all bodies that are held at a time; above, uploads wait, then get 503."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value: object = getattr(self, item.name)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"limit {item.name!r} must be a whole number above 0, got {value!r}")
        if self.bodies_size < self.body_size:
            raise ValueError(
                f"limit 'bodies_size' ({self.bodies_size}) must not be below 'body_size' ({self.body_size}): "
                "a body that is allowed would never find room"
            )


BodyMode = Literal["auto", "buffer", "stream"]
HalfClose = Literal["cancel", "allow"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything about a proxy but its upstreams and its listeners."""

    deadlines: Deadlines = field(default_factory=Deadlines)
    limits: Limits = field(default_factory=Limits)
    body: BodyMode = "auto"
    """``buffer`` holds a body until it is there; ``stream`` passes it on as it comes; ``auto`` buffers where the
    proxy reads the body (the known API paths) and streams everything else."""
    client_half_close: HalfClose = "cancel"
    """What a client that shuts down its sending side means: it has left, or it only has nothing more to say.
    ``cancel`` deviates from TCP on purpose: it frees the model server at once for every way of leaving."""
    codec: ParserName = field(default_factory=default_parser)
    """Which head parser: ``llhttp`` where httptools is, else ``h11``."""
    resolve_interval: float = 30.0
    """Seconds between two look-ups of an upstream's name."""

    def __post_init__(self) -> None:
        for name, choices in (
            ("body", get_args(BodyMode)),
            ("client_half_close", get_args(HalfClose)),
            ("codec", get_args(ParserName)),
        ):
            value: object = getattr(self, name)
            if value not in choices:
                raise ValueError(f"setting {name!r} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        if not self.resolve_interval > 0:
            raise ValueError(f"setting 'resolve_interval' must be above 0 s, got {self.resolve_interval!r}")
