"""What is written can be read in one way only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioproxy.http1 import (
    LAST_CHUNK,
    chunk_prefix,
    field_block,
    last_chunk,
    pairs,
    read_request_head,
    read_response_head,
    request_head,
    request_head_of,
    response_head,
    response_head_of,
)

from .driver import LIMITS, PARSER

TOKEN = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RULED = (b"host", b"content-length", b"transfer-encoding", b"content_length", b"transfer_encoding", b"expect")

names = st.text(TOKEN, min_size=1, max_size=12).map(str.encode).filter(lambda name: name.lower() not in RULED)
values = st.binary(max_size=20).map(
    lambda value: bytes(byte for byte in value if byte == 9 or (byte >= 32 and byte != 127)).strip(b" \t")
)
some_fields = st.lists(st.tuples(names, values), max_size=8)
methods = st.text(TOKEN, min_size=1, max_size=10).map(str.encode).filter(lambda method: method != b"CONNECT")
targets = st.text([chr(byte) for byte in range(33, 127) if byte not in b"#%"], max_size=20).map(
    lambda text: b"/" + text.encode()
)


@given(methods, targets, some_fields)
def test_a_request_that_is_written_is_read_back(
    method: bytes, target: bytes, fields: list[tuple[bytes, bytes]]
) -> None:
    fields = [(b"Host", b"h"), *fields]
    head = read_request_head(request_head(method, target, fields), PARSER, LIMITS)
    assert (head.method, head.target, pairs(head.fields)) == (method, target, fields)


@given(st.integers(200, 599).filter(lambda status: status != 204), values, some_fields)
def test_a_response_that_is_written_is_read_back(status: int, reason: bytes, fields: list[tuple[bytes, bytes]]) -> None:
    head = read_response_head(response_head(status, reason, fields), PARSER, LIMITS, request_method=b"GET")
    assert (head.status, head.reason, pairs(head.fields)) == (status, reason, fields)


def test_bytes_for_the_wire() -> None:
    assert request_head(b"GET", b"/", [(b"Host", b"h"), (b"X", b"")]) == b"GET / HTTP/1.1\r\nHost: h\r\nX: \r\n\r\n"
    assert request_head(b"GET", b"/", iter([])) == b"GET / HTTP/1.1\r\n\r\n"
    assert response_head(204, b"", []) == b"HTTP/1.1 204 \r\n\r\n"
    assert chunk_prefix(255) == b"ff\r\n"
    assert last_chunk([]) == LAST_CHUNK
    assert last_chunk([(b"X", b"y")]) == b"0\r\nX: y\r\n\r\n"


WRONG_NAMES = [b"", b"a b", b"a:", b"a\r\nb", b"a\n", b"a\r", b"a\x00", b"\xe9", b"a\x7f", b"(a)"]
WRONG_VALUES = [b"a\r\nb: c", b"a\n", b"\r", b"a\x00b", b"\x7f", b"\x1b[0m"]


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_names_that_are_no_tokens_are_refused(name: bytes) -> None:
    for wrong in ([(name, b"v")], [(b"A", b"v"), (name, b"v"), (b"B", b"v")]):
        with pytest.raises(ValueError, match="tokens"):
            field_block(wrong)


@pytest.mark.parametrize("value", WRONG_VALUES)
def test_values_that_inject_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="a value has"):
        field_block([(b"A", b"v"), (b"X", value)])
    with pytest.raises(ValueError, match="a value has"):
        last_chunk([(b"X", value)])
    with pytest.raises(ValueError, match="not a reason"):
        response_head(200, value, [])
    with pytest.raises(ValueError, match="not a method"):
        request_head(value, b"/", [])
    with pytest.raises(ValueError, match="not a request target"):
        request_head(b"GET", b"/" + value, [])


@pytest.mark.parametrize(
    ("method", "target"), [(b"", b"/"), (b"GE T", b"/"), (b"GET", b""), (b"GET", b"/ "), (b"GET", b"/#")]
)
def test_start_lines_that_could_be_read_otherwise_are_refused(method: bytes, target: bytes) -> None:
    with pytest.raises(ValueError):
        request_head(method, target, [])


def test_statuses_and_chunks_that_do_not_exist_are_refused() -> None:
    for status in (0, 99, 600, -200):
        with pytest.raises(ValueError, match="status"):
            response_head(status, b"", [])
    for size in (0, -1):
        with pytest.raises(ValueError, match="chunk"):
            chunk_prefix(size)


@given(some_fields)
def test_lines_that_are_ready_make_the_same_heads(fields: list[tuple[bytes, bytes]]) -> None:
    lines, names = [b": ".join(field) for field in fields], [name for name, _ in fields]
    assert request_head_of(b"BREW", b"/", lines, names) == request_head(b"BREW", b"/", fields)
    assert response_head_of(200, b"OK", lines, names) == response_head(200, b"OK", fields)


@pytest.mark.parametrize("wrong", [b"\r", b"\n", b"\r\n", b"\r\nX: y", b"\x00", b"\x7f", b"\x0b"])
def test_lines_that_inject_are_refused_wherever_it_is(wrong: bytes) -> None:
    for at in range(5):
        line = b"A: b"[:at] + wrong + b"A: b"[at:]
        for lines in ([line], [b"C: d", line], [line, b"C: d"]):
            with pytest.raises(ValueError, match="a value has"):
                request_head_of(b"GET", b"/", lines, [])
            with pytest.raises(ValueError, match="a value has"):
                response_head_of(200, b"OK", lines, [])


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_names_of_lines_that_are_no_tokens_are_refused(name: bytes) -> None:
    for names in ([name], [b"A", name], [name, b"A"]):
        with pytest.raises(ValueError, match="tokens"):
            request_head_of(b"GET", b"/", [b"A: b"], names)
        with pytest.raises(ValueError, match="tokens"):
            response_head_of(200, b"OK", [b"A: b"], names)
