"""What can be set, with the defaults, as frozen dataclasses.

Lives here: the types of the settings and their checks. Does not live here: reading files or the command line.
Times are seconds, sizes are bytes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from typing import Annotated, Final, Literal, final, get_args

from .http1 import ParserName, default_parser
from .units import Bytes, Seconds

SHARE: Final = "share"
"""Annotates a number from 0 to 1."""
Share = Annotated[float, SHARE]
TARGET: Final = "target"
"""Annotates the path of a request."""
Target = Annotated[str, TARGET]


class SettingError(ValueError):
    """A value that a setting cannot have.

    :param kind: of the setting, ``deadline`` for example.
    :param name: of the field.
    :param must: what its value must do.
    """

    def __init__(self, kind: str, name: str, must: str, got: object) -> None:
        super().__init__(f"{kind} {name!r} must {must}, got {got!r}")
        self.kind = kind
        self.name = name
        self.must = must


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each part of an exchange may take.

    In seconds; ``math.inf`` turns one off. Each has an outcome of its own, so that a timeout says what was waited for.
    """

    connect: Seconds = 5.0
    """Until a connection to an endpoint stands; the next endpoint is tried after it."""
    first_byte: Seconds = 600.0
    """From the request's last byte to the response's head. The official SDKs give up after 600 s too."""
    first_event: Seconds = 600.0
    """From the head of a streamed response to its first event: an engine that sends its head at once waits here."""
    idle: Seconds = 300.0
    """Between two reads of a response that has begun."""
    total: Seconds = math.inf
    """From the request's head to the response's end."""
    handshake: Seconds = 10.0
    """From a client's connection to the end of its TLS handshake."""
    head: Seconds = 10.0
    """From a request head's first byte to its last: absolute, so that a trickle does not extend it."""
    body_stall: Seconds = 30.0
    """Between two reads of a request's body."""
    write_stall: Seconds = 60.0
    """While the client takes nothing of what is there for it."""
    vanished: Seconds = 30.0
    """While a peer's system, client's or upstream's, answers nothing, not even a probe. At least 4 s: systems count
    whole seconds."""
    client_keep_alive: Seconds = 75.0
    """A client's connection between requests: above the 60 s of the usual load balancers."""
    upstream_keep_alive: Seconds = 4.0
    """An idle upstream connection: below the 5 s after which uvicorn closes it."""
    linger: Seconds = 5.0
    """How long a connection is read on after a final response, so that the client can read that."""
    overload: Seconds = 5.0
    """How long an upload waits for room when all bodies together hold what they may."""
    drain: Seconds = 30.0
    """How long requests in flight may take after the proxy was told to stop."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value: object = getattr(self, item.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value) or value < 0:
                raise SettingError("deadline", item.name, "be a number of seconds ≥ 0", value)
        if not (4 <= self.vanished <= 32767 or self.vanished == math.inf):  # the most that Linux takes
            raise SettingError("deadline", "vanished", "be from 4 to 32767 s, or inf", self.vanished)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much there may be of everything.

    In bytes and counts.
    """

    head_size: Bytes = 65536
    """Of one head, request or response; 431 above."""
    head_fields: int = 100
    """Fields of one head; 431 above."""
    target_size: Bytes = 8192
    """Of the request target; 414 above."""
    body_size: Bytes = 64 << 20
    """Of one request's body; 413 above."""
    bodies_size: Bytes = 1 << 30
    """Of all bodies that are held at a time; above, uploads wait, then get 503."""
    decoded_size: Bytes = 64 << 20
    """Of one request's body that comes with a Content-Encoding (gzip, deflate, zstd), decoded to read its fields; 413
    above. It is forwarded as it came."""
    decoded_ratio: int = 100
    """How many times its own size such a body may decode to, above 1 MiB; 413 above."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value: object = getattr(self, item.name)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise SettingError("limit", item.name, "be a whole number above 0", value)
        if self.bodies_size < self.body_size:
            must = "not be below 'body_size', or a body that is allowed would never find room"
            raise SettingError("limit", "bodies_size", must, self.bodies_size)


_is_path: Final = re.compile(r"/[!-~]*").fullmatch


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """When an endpoint is not asked for a while, and when again.

    An endpoint whose requests fail in a row is set aside. A failure is a connection that cannot be made or breaks off
    before the response's head, a deadline that passes before it, and a 502, 503 or 504; a 503 with ``Retry-After``,
    429, other statuses and 500 are none: busy is not broken, and engines answer bad requests with 500.
    """

    path: Target | None = None
    """Where each endpoint is asked how it does, such as ``/health``: a status below 500 is well. Nobody asks if it is
    not set."""
    interval: Seconds = 5.0
    """Between two such questions, give or take a tenth."""
    timeout: Seconds = 2.0
    """For each answer."""
    fall: int = 3
    """Answers in a row that make an endpoint count as down."""
    rise: int = 1
    """Answers in a row that make it count as up again."""
    failures: int = 5
    """Requests that fail in a row before it is set aside."""
    aside: Seconds = 10.0
    """How long it is set aside: twice as long each time that its next request fails too."""
    aside_most: Seconds = 120.0
    """How long at most."""
    most_aside: Share = 0.5
    """The share of a pool's endpoints that may be set aside at a time. The last one never is."""
    slow_start: Seconds = 10.0
    """How long an endpoint that has come back gets less than its share of requests, rising from a tenth."""

    def __post_init__(self) -> None:
        if self.path is not None and not _is_path(self.path):
            raise SettingError("health", "path", "be a path, such as /health", self.path)
        for name in ("interval", "timeout", "aside"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingError("health", name, "be above 0 s, and not off", getattr(self, name))
        for name in ("fall", "rise", "failures"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingError("health", name, "be a whole number above 0", value)
        if not 0 <= self.most_aside <= 1:
            raise SettingError("health", "most_aside", "be from 0 to 1", self.most_aside)


BodyMode = Literal["auto", "buffer", "stream"]
HalfClose = Literal["cancel", "allow"]
UsageMode = Literal["observe", "inject"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything about a proxy but its upstreams and its listeners."""

    deadlines: Deadlines = field(default_factory=Deadlines)
    limits: Limits = field(default_factory=Limits)
    health: Health = field(default_factory=Health)
    body: BodyMode = "auto"
    """``buffer`` holds a body until it is there; ``stream`` passes it on as it comes; ``auto`` buffers where the
    proxy reads the body (the known API paths) and streams everything else."""
    client_half_close: HalfClose = "cancel"
    """What a client that shuts down its sending side means: it has left, or it only has nothing more to say.
    ``cancel`` deviates from TCP on purpose: it frees the model server at once for every way of leaving."""
    usage: UsageMode = "observe"
    """``observe`` reads the tokens that responses report; ``inject`` also makes the streams of chat and completions
    report theirs (``stream_options.include_usage``) where the client did not speak of it, and takes the event out again
    that tells of them."""
    codec: ParserName = field(default_factory=default_parser)
    """Which head parser: ``llhttp`` where httptools is, else ``h11``."""
    resolve_interval: Seconds = 30.0
    """Between two look-ups of an upstream's name."""

    def __post_init__(self) -> None:
        for name, choices in (
            ("body", get_args(BodyMode)),
            ("client_half_close", get_args(HalfClose)),
            ("usage", get_args(UsageMode)),
            ("codec", get_args(ParserName)),
        ):
            value: object = getattr(self, name)
            if value not in choices:
                raise SettingError("setting", name, f"be one of {', '.join(map(repr, choices))}", value)
        if not self.resolve_interval > 0:
            raise SettingError("setting", "resolve_interval", "be above 0 s", self.resolve_interval)
