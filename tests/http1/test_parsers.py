"""A head parser is only a reader: what passes the gate, it reads; what it reads otherwise, is refused."""

from __future__ import annotations

from typing import final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trioproxy.errors import Code, ProxyError
from trioproxy.http1 import read_request_head, read_response_head
from trioproxy.http1.gate import RawField, raw_fields
from trioproxy.http1.parsers import ParserRefusal, head_parser

from .driver import LIMITS, PARSER

HEAD = b"GET /a HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n"


@final
class FakeParser:
    """Says what it is told to say."""

    def __init__(
        self, method: bytes = b"GET", target: bytes = b"/a", status: int = 200, fields: list[RawField] | None = None
    ) -> None:
        self.said = method, target, status, fields

    def request(self, head: bytes) -> tuple[bytes, bytes, list[RawField]]:
        method, target, _, fields = self.said
        return method, target, raw_fields(head) if fields is None else fields

    def response(self, head: bytes) -> tuple[int, list[RawField]]:
        _, _, status, fields = self.said
        return status, raw_fields(head) if fields is None else fields


@final
class RefusingParser:
    """Refuses everything."""

    def request(self, head: bytes) -> tuple[bytes, bytes, list[RawField]]:
        raise ParserRefusal("because")

    def response(self, head: bytes) -> tuple[int, list[RawField]]:
        raise ParserRefusal("because")


def test_a_parser_that_agrees_with_the_gate_is_believed() -> None:
    assert read_request_head(HEAD, FakeParser(), LIMITS) == read_request_head(HEAD, PARSER, LIMITS)
    assert read_response_head(RESPONSE, FakeParser(), LIMITS, request_method=b"GET") == read_response_head(
        RESPONSE, PARSER, LIMITS, request_method=b"GET"
    )


@pytest.mark.parametrize(
    "parser",
    [
        FakeParser(method=b"POST"),
        FakeParser(target=b"/b"),
        FakeParser(fields=[(b"Host", b"h")]),
        FakeParser(fields=[(b"Host", b"h"), (b"X", b"y"), (b"Z", b"z")]),
    ],
)
def test_a_request_that_a_parser_reads_otherwise_is_refused(parser: FakeParser) -> None:
    with pytest.raises(ProxyError, match="more than one way") as refused:
        read_request_head(HEAD, parser, LIMITS)
    assert refused.value.code is Code.BAD_REQUEST


@pytest.mark.parametrize("parser", [FakeParser(status=204), FakeParser(fields=[])])
def test_a_response_that_a_parser_reads_otherwise_is_refused(parser: FakeParser) -> None:
    with pytest.raises(ProxyError, match="more than one way") as refused:
        read_response_head(RESPONSE, parser, LIMITS, request_method=b"GET")
    assert refused.value.code is Code.BAD_RESPONSE


def test_a_parsers_refusal_stands_but_our_rules_say_why_if_they_can() -> None:
    with pytest.raises(ProxyError, match="because"):
        read_request_head(HEAD, RefusingParser(), LIMITS)
    with pytest.raises(ProxyError, match="because"):
        read_response_head(RESPONSE, RefusingParser(), LIMITS, request_method=b"GET")
    with pytest.raises(ProxyError, match="got '01'"):
        read_request_head(HEAD[:-2] + b"Content-Length: 01\r\n\r\n", RefusingParser(), LIMITS)
    with pytest.raises(ProxyError, match="got '01'"):
        read_response_head(
            RESPONSE[:-2] + b"Content-Length: 01\r\n\r\n", RefusingParser(), LIMITS, request_method=b"GET"
        )


@pytest.mark.parametrize(
    "method", [b"GET", b"get", b"QUERY", b"PRI", b"SOURCE", b"ANNOUNCE", b"M-SEARCH", b"!#~", b"X" * 200]
)
def test_any_token_is_a_method(method: bytes) -> None:
    head = read_request_head(method + HEAD[3:], PARSER, LIMITS)
    assert (head.method, head.target) == (method, b"/a")


def test_an_unknown_parser_is_refused() -> None:
    with pytest.raises(ValueError, match="picohttpparser"):
        head_parser("picohttpparser")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the point


text = st.binary(max_size=12).map(lambda raw: bytes(byte for byte in raw if byte == 9 or (byte >= 32 and byte != 127)))
names = st.sampled_from([b"X", b"Upgrade", b"Connection", b"TE", b"Trailer", b"!#$%&'*+-.^_`|~0aZ", b"Content-Type"])
values = text | st.sampled_from([b"", b" ", b"\t", b" upgrade ", b"close, ,", b"h2c", b"trailers"])
lines = st.lists(st.tuples(names, values), max_size=6)
paths = st.text([chr(byte) for byte in range(33, 127) if byte not in b"#%"], max_size=12).map(str.encode)


def block(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(name + b":" + value + b"\r\n" for name, value in fields) + b"\r\n"


@given(st.sampled_from([b"/", b"http://h/", b"https://h:1/", b"http://[::1]?"]), paths, lines)
def test_it_reads_every_request_that_passes_the_gate(form: bytes, path: bytes, fields: list[RawField]) -> None:
    target = form + path
    raw = b"POST " + target + b" HTTP/1.1\r\nHost:h\r\n" + block(fields)
    read_request_head(raw, PARSER, LIMITS)
    method, seen, found = PARSER.request(raw)
    assert (method, seen) == (b"POST", target)
    assert [(name, value.strip(b" \t")) for name, value in found] == [
        (name, value.strip(b" \t")) for name, value in [(b"Host", b"h"), *fields]
    ]


@example(101, b"", [])
@example(101, b" Switching", [(b"Upgrade", b"h2c"), (b"Connection", b"upgrade")])
@given(st.integers(100, 599), text.map(lambda reason: b" " + reason) | st.just(b""), lines)
def test_it_reads_every_response_that_passes_the_gate(status: int, reason: bytes, fields: list[RawField]) -> None:
    raw = b"HTTP/1.1 %d" % status + reason + b"\r\n" + block(fields)
    head = read_response_head(raw, PARSER, LIMITS, request_method=b"GET")
    assert (head.status, head.reason) == (status, reason.strip(b" \t"))
    assert [value for _, _, value in head.fields] == [value.strip(b" \t") for _, value in fields]
