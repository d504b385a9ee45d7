"""A strict origin: it takes HTTP/1.1 requests in nothing but the plainest form, and refuses whatever is ambiguous.

Lives here: what a proxy's output is judged by. It shares no code with the proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_head: Final = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([!-\"$-~]+) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t\x20-\x7e\x80-\xff]*\r\n)*)\r\n"
)
_chunk: Final = re.compile(rb"([0-9a-f]+)\r\n")


class Message(NamedTuple):
    """One request as the strict origin read it."""

    method: bytes
    target: bytes
    head: bytes
    body: bytes


class AmbiguousError(Exception):
    """Bytes that a strict origin refuses."""


def requests_in(data: bytes) -> Iterator[Message]:
    """The complete requests in what an upstream received, by a parser that takes nothing but the plainest form."""
    while data:
        match = _head.match(data)
        if match is None:
            if b"\r\n\r\n" in data:
                raise AmbiguousError(data)
            return
        method, target, block = match.groups()
        fields = [line.split(b": ", 1) for line in block.split(b"\r\n")[:-1]]
        lengths = [value for name, value in fields if name.lower() == b"content-length"]
        codings = [value for name, value in fields if name.lower() == b"transfer-encoding"]
        if len(lengths) + len(codings) > 1 or codings not in ([], [b"chunked"]):
            raise AmbiguousError(data)
        data = data[match.end() :]
        if codings:
            body, data, complete = dechunk(data)
            if not complete:
                return
        else:
            size = int(lengths[0]) if lengths else 0
            if len(data) < size:
                return
            body, data = data[:size], data[size:]
        yield Message(method, target, match[0], body)


def dechunk(data: bytes) -> tuple[bytes, bytes, bool]:
    """A chunked body, what follows it, and whether it is complete."""
    body = b""
    while match := _chunk.match(data):
        size = int(match[1], 16)
        data = data[match.end() :]
        if len(data) < size + 2:
            return body, data, False
        if data[size : size + 2] != b"\r\n":
            raise AmbiguousError(data)
        if size == 0:
            return body, data[2:], True
        body, data = body + data[:size], data[size + 2 :]
    if b"\r\n" in data:
        raise AmbiguousError(data)
    return body, data, False
