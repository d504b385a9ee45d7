"""Byte streams of clients and of upstreams: right ones, and right ones that something happened to.

Lives here: what the differential tests feed to both head parsers. The same random numbers make the same stream.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Final

_VECTORS: Final = Path(__file__).parent.parent / "tests" / "vectors"
_METHODS: Final = (b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"PRI", b"M-SEARCH", b"get", b"CONNECT")
_TARGETS: Final = (
    b"/",
    b"/v1/chat/completions",
    b"/a?b=%20c",
    b"*",
    b"http://h/",
    b"http://h:1?x",
    b"/%zz",
    b"//",
    b"h:1",
)
_VERSIONS: Final = (b"HTTP/1.1",) * 8 + (b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP/1.10")
_STATUSES: Final = (b"200 OK",) * 6 + (
    b"204 No",
    b"304 N",
    b"100 C",
    b"101 S",
    b"103 E",
    b"404",
    b"500 ",
    b"099 x",
    b"600 x",
    b"20 x",
)
_FRAMING: Final = (
    b"Content-Length: %d",
    b"Content-Length: %d",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked",
    b"content-length:%d",
    b"Content-Length: 0%d",
    b"Content-Length: +%d",
    b"Content-Length: %d, %d",
    b"Content-Length : %d",
    b"Content-Length: 99999999999999999999",
    b"Content-Length:\t%d \t",
    b"Transfer-Encoding: Chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: \tchunked\t",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer_Encoding: chunked",
    b"Transfer-Encoding: chun\xe2\x84\xaaed",
    b"Content-Length\x00: %d",
)
_FIELDS: Final = (
    b"Host: h",
    b"Host: h:80",
    b"Host: a/b",
    b"Host:",
    b"Connection: close",
    b"Connection: keep-alive, upgrade",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"TE: trailers",
    b"X: y",
    b"X:",
    b"xHost: h",
    b"xcontent-length: 3",
    b" folded: x",
    b"\tfolded",
    b"no colon",
    b": no name",
    b"a b: c",
    b"X: \x80\xff",
    b"X: \x7f",
    b"X: a\rb",
    b"X: " + b"v" * 300,
    b"Trailer: x",
    b"Keep-Alive: 5",
    b"!#$%&'*+-.^_`|~: ok",
)
_SPLICES: Final = (
    *(b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b"0", b"\r\n\r\n"),
    *(b"\x0b", b"\x85", b"\xa0", b"chunked", b"1", b","),
)


def request_stream(random: Random) -> bytes:
    """What a client sends: a few requests."""
    return _mutated(random, b"".join(_request(random) for _ in range(random.choice((1, 1, 2, 3)))), "request")


def response_stream(random: Random) -> bytes:
    """What an upstream sends: a few responses."""
    return _mutated(random, b"".join(_response(random) for _ in range(random.choice((1, 1, 2)))), "response")


def _request(random: Random) -> bytes:
    line = b" ".join(
        (random.choice(_METHODS[:5] * 3 + _METHODS), random.choice(_TARGETS[:3] * 3 + _TARGETS), _version(random))
    )
    host = [b"Host: h"] if random.random() < 0.95 else []
    return _message(random, line, host)


def _response(random: Random) -> bytes:
    return _message(random, _version(random) + b" " + random.choice(_STATUSES), [])


def _version(random: Random) -> bytes:
    return random.choice(_VERSIONS[:8] * 4 + _VERSIONS)


def _message(random: Random, line: bytes, lines: list[bytes]) -> bytes:
    body = bytes(random.choices(b"abc\r\n0", k=random.choice((0, 0, 1, 5, 30))))
    usual = random.random() < 0.7
    fields = random.choices(_FIELDS[:2] + _FIELDS[4:12] if usual else _FIELDS, k=random.choice((0, 0, 1, 2, 4)))
    framing = random.choices(_FRAMING[:4] if usual else _FRAMING, k=random.choice((0, 1, 1, 1, 1, 2)))
    told = [field % ((len(body),) * field.count(b"%d")) if b"%d" in field else field for field in framing]
    lines = [*lines, *[field for field in fields if not (usual and field.startswith(b"Host"))], *told]
    if random.random() < 0.2:
        random.shuffle(lines)
    if any(b"chunked" in field.lower() for field in told):
        body = _chunks(random, body)
    return b"\r\n".join((line, *lines, b"", b"")) + body


def _chunks(random: Random, body: bytes) -> bytes:
    out = b""
    while body:
        size = random.randint(1, len(body))
        extension = random.choice((b"",) * 6 + (b";a=b", b" ", b";", b"\t;x"))
        out += random.choice((b"%x", b"%x", b"%X", b"0%x", b"%x")) % size + extension + b"\r\n" + body[:size] + b"\r\n"
        body = body[size:]
    trailers = random.choice((b"",) * 6 + (b"X: y\r\n", b"Content-Length: 3\r\n", b"bad\r\n", b" f: x\r\n"))
    return out + random.choice((b"0", b"0", b"0", b"00", b"-0", b"0;x")) + b"\r\n" + trailers + b"\r\n"


def _mutated(random: Random, stream: bytes, kind: str) -> bytes:
    if random.random() < 0.1:
        stream = random.choice(_vectors(kind)) + stream
    data = bytearray(stream)
    for _ in range(random.choice((0, 0, 0, 1, 1, 2, 4))):
        at = random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0:
                data[at:at] = random.choice(_SPLICES)
            case 1:
                del data[at : at + random.choice((1, 1, 2, 10))]
            case 2 if at < len(data):
                data[at] = random.randrange(256)
            case 3 if at < len(data):
                data[at] ^= 0x20
            case 4:  # a line twice
                start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at) + 1
                data[start:start] = data[start:end]
            case _:
                del data[at:]
    return bytes(data)


_CACHE: Final[dict[str, list[bytes]]] = {}


def _vectors(kind: str) -> list[bytes]:
    if kind not in _CACHE:
        rows = [json.loads(line) for line in (_VECTORS / "llhttp.jsonl").read_text("utf-8").splitlines()]
        _CACHE[kind] = [bytes.fromhex(row["bytes_hex"]) for row in rows if str(row["type"]).startswith(kind)]
    return _CACHE[kind]
