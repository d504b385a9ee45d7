"""One direction of a connection, bytes in and events out: what the tests of http1 have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, final

from trioproxy.errors import Fault, ProxyError
from trioproxy.http1 import (
    BodyDecoder,
    HeadLimits,
    HeadParser,
    HeadReader,
    RequestHead,
    ResponseHead,
    decoder,
    head_parser,
    read_request_head,
    read_response_head,
)

LIMITS = HeadLimits()


@final
class Chosen:
    """The parser that a test runs on: conftest.py runs each on both."""

    def __init__(self) -> None:
        self.chosen: HeadParser = head_parser("h11")

    def request(self, head: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
        """See HeadParser."""
        return self.chosen.request(head)

    def response(self, head: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
        """See HeadParser."""
        return self.chosen.response(head)


PARSER = Chosen()


@dataclass(frozen=True)
class Refused:
    """The last event of a connection whose bytes were refused."""

    code: str
    message: str = field(compare=False)  # what it quotes may depend on how much had come: the decision does not


class Body(NamedTuple):
    """A body, whole (with its trailers) or as far as it has come."""

    data: bytes
    whole: bool
    trailers: tuple[tuple[bytes, bytes, bytes], ...] = ()


class Closed(NamedTuple):
    """The message before was the last one: what follows it is not read, or a tunnel's."""


class Unfinished(NamedTuple):
    """A head has begun and not ended."""


Event = RequestHead | ResponseHead | Body | Closed | Refused | Unfinished


def drive_requests(data: bytes, cuts: Iterable[int] = (), limits: HeadLimits = LIMITS) -> list[Event]:
    """The events of a client's bytes, cut into pieces at `cuts`."""
    return _drive(data, cuts, limits, None)


def drive_responses(data: bytes, cuts: Iterable[int] = (), method: bytes = b"GET") -> list[Event]:
    """The events of an upstream's bytes, all responses to requests of one method."""
    return _drive(data, cuts, LIMITS, method)


def pieces(data: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    """`data` cut at the given places."""
    start = 0
    for cut in [*cuts, len(data)]:
        yield data[start:cut]
        start = cut


def every_split(data: bytes) -> Iterator[list[int]]:
    """Every way to cut `data` in two, and one byte at a time."""
    yield from ([cut] for cut in range(1, len(data)))
    yield list(range(1, len(data)))


def _drive(data: bytes, cuts: Iterable[int], limits: HeadLimits, method: bytes | None) -> list[Event]:
    fault = Fault.CLIENT if method is None else Fault.UPSTREAM
    events: list[Event] = []
    reader = HeadReader(limits, fault=fault)
    body: BodyDecoder | None = None
    keep_alive = True
    payload = b""
    try:
        for piece in pieces(data, cuts):
            rest = piece
            while rest:
                if body is None:
                    raw = reader.feed(rest)
                    rest = b""
                    if raw is None:
                        break
                    head: RequestHead | ResponseHead
                    if method is None:
                        head = read_request_head(raw, PARSER, limits)
                    else:
                        head = read_response_head(raw, PARSER, limits, request_method=method)
                    events.append(head)
                    keep_alive = head.keep_alive or (isinstance(head, ResponseHead) and head.status < 200)
                    if isinstance(head, ResponseHead) and head.status == 101:
                        return [*events, Closed()]
                    body, payload = decoder(head.framing, fault, limits), b""
                    rest = reader.take_rest()
                found, consumed = body.decode(rest)
                assert consumed == len(rest) or body.done
                payload += b"".join(found)
                rest = rest[consumed:]
                if body.done:
                    events.append(Body(payload, True, tuple(body.trailers)))
                    body = None
                    if not keep_alive:
                        return [*events, Closed()]
    except ProxyError as error:
        if error.fault is not fault:
            raise
        return [*events, Refused(error.code.value, error.message)]
    if body is not None:
        events.append(Body(payload, False))
    elif reader.started:
        events.append(Unfinished())
    return events


def load_vectors(name: str) -> list[dict[str, object]]:
    """The vectors of one file under tests/vectors."""
    path = Path(__file__).parent.parent / "vectors" / name
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def request(raw: bytes) -> RequestHead:
    """The only request in `raw`."""
    (event,) = [event for event in drive_requests(raw) if isinstance(event, RequestHead)]
    return event


def with_fields(*lines: bytes, line: bytes = b"POST /v1 HTTP/1.1", host: bytes = b"Host: h\r\n") -> bytes:
    """A request with these lines, and Host unless told otherwise."""
    return line + b"\r\n" + host + b"".join(field + b"\r\n" for field in lines) + b"\r\n"


def with_target(target: bytes, method: bytes = b"GET") -> bytes:
    """A request for this target."""
    return with_fields(line=method + b" " + target + b" HTTP/1.1")


def with_host(value: bytes) -> bytes:
    """A request with this Host."""
    return with_fields(host=b"Host: " + value + b"\r\n")
