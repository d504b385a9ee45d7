"""The scanner finds what ``json.loads`` finds, however the body is written and cut, and keeps none of it."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioproxy.apis.json_scan import (
    DEPTH_LIMIT,
    OCCURRENCE_LIMIT,
    STEP,
    TOO_LONG,
    ScanResult,
    ScanState,
    TopLevelScanner,
)

WANTED = frozenset({b"model", b"stream", b"a"})


class Object(list[tuple[str, Any]]):
    """An object as its members, in order and with those that are repeated."""


def scan(body: bytes, *cuts: int, **options: Any) -> ScanResult:
    scanner = TopLevelScanner(WANTED, **options)
    edges = [0, *sorted(cuts), len(body)]
    for begin, end in pairwise(edges):
        scanner.feed(body[begin:end])
    return scanner.finish()


def by_bytes(body: bytes) -> ScanResult:
    return scan(body, *range(1, len(body)))


text = st.text(max_size=6) | st.sampled_from(
    ['"', "\\", '\\"', "model", 'model":1', "{", "]}", "\\u006dodel", "é", "\u2028", "😀"]
)
keys = st.sampled_from(["model", "stream", "a"]) | text
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(keys, inner), max_size=4).map(Object),
    max_leaves=12,
)
objects = st.lists(st.tuples(keys, values), max_size=7).map(Object)


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """The value as JSON, with white space and escapes as they fall."""
    space = st.sampled_from(["", "", "", " ", "\r\n\t"])

    def spaced(text: str) -> str:
        return draw(space) + text + draw(space)

    def string(value: str) -> str:
        text = json.dumps(value, ensure_ascii=draw(st.booleans()))
        if value.isascii() and value.isalnum() and draw(st.booleans()):
            at = draw(st.integers(0, len(value) - 1))
            form = draw(st.sampled_from(["\\u%04x", "\\u%04X"]))
            text = f'"{value[:at]}{form % ord(value[at])}{value[at + 1 :]}"'
        return text

    def write(value: Any) -> str:
        if isinstance(value, Object):
            return "{" + (",".join(f"{spaced(string(k))}:{spaced(write(v))}" for k, v in value) or draw(space)) + "}"
        if isinstance(value, list):
            items: list[Any] = value  # pyright: ignore[reportUnknownVariableType] # it narrows Any to an unknown list
            return "[" + (",".join(spaced(write(item)) for item in items) or draw(space)) + "]"
        return string(value) if isinstance(value, str) else json.dumps(value)

    return spaced(write(value))


def expected(body: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in json.loads(body, object_pairs_hook=Object):
        if key.encode("utf-8", "replace") in WANTED and len(found.get(key, [])) < OCCURRENCE_LIMIT:
            found.setdefault(key, []).append(repr(value))
    return found


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_agrees_with_json_loads_over_any_cut(data: st.DataObject) -> None:
    body = data.draw(objects.flatmap(written)).encode("utf-8", "surrogatepass")
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=6))
    result = scan(body, *cuts)
    assert result.state is ScanState.OBJECT
    read = {k: [repr(json.loads(v, object_pairs_hook=Object)) for v in vs] for k, vs in result.values.items()}
    assert read == expected(body)
    assert body[: result.opening + 1].strip() == b"{"
    for name, texts in result.values.items():
        assert [body[at:][: len(v)] for at, v in zip(result.offsets[name], texts, strict=True)] == texts
    assert by_bytes(body) == result
    assert scan(body[: data.draw(st.integers(0, len(body.rstrip()) - 1))]).state is ScanState.UNREADABLE


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b" ", b'"a"', b'"a":', b"\\u0061", b"1", b"\xff"]
        )
    )
)
def test_what_is_no_json_is_the_same_over_any_cut(pieces: list[bytes]) -> None:
    body = b'{"a":' + b"".join(pieces)
    whole = scan(body)
    assert by_bytes(body) == whole
    try:
        json.loads(body.decode("latin-1"), strict=False)
    except ValueError:
        return
    assert whole.state is ScanState.OBJECT


BODIES = [
    rb' {"a":[1,{"model":2}],"model" : "x\"y\\","b":{"q":[1,"]\\\"}"]},"\u006dode\u006C": 12.5 , "stream":true} ',
    b'{"model":{"a":["}",{"b":"\\\\"}]} , "a":[[],[[{}]],"model"],"b":"model","stream":null}\r\n',
    '{"prompt":"\\ud800 é \\n \\\\\\" \\u0022model\\u0022:","model":"é😀\\u00e9"}'.encode(),
    b'{"":"","a\\":":1,"\\\\model":2,"\\\\u006dodel":3,"model\\u0000":4,"a":-0}',
]


@pytest.mark.parametrize("body", BODIES)
def test_every_cut_in_two_and_three(body: bytes) -> None:
    whole = scan(body)
    assert whole.state is ScanState.OBJECT
    for first in range(len(body) + 1):
        for second in range(first, len(body) + 1, 3):
            assert scan(body, first, second) == whole


def test_values_are_the_bytes_that_came() -> None:
    assert scan(BODIES[0]).values == {
        "a": [b'[1,{"model":2}]'],
        "model": [rb'"x\"y\\"', b"12.5"],
        "stream": [b"true"],
    }
    assert scan(BODIES[3]).values == {"a": [b"-0"]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"[]",
        b'"a"',
        b"null",
        b"1",
        b"{",
        b'{"a":1',
        b'{"a":"}',
        b'{"a":1}}',
        b'{"a":1}{}',
        b'{"a":1} x',
        b'{"a":1}"',
        b'{"a":1]',
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        '{"a":1}'.encode("utf-16-be"),
        '{"a":1}'.encode("utf-32-le"),
        b"a=1&b=2",
        b"\x1f\x8b\x08\x00",
    ],
)
def test_unreadable(body: bytes) -> None:
    assert scan(body) == by_bytes(body) == ScanResult(ScanState.UNREADABLE, {}, {}, 0)


def test_depth_is_limited_to_the_bracket() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"x":', b"}")):
        for size, state in ((DEPTH_LIMIT - 1, ScanState.OBJECT), (DEPTH_LIMIT, ScanState.UNREADABLE)):
            body = b'{"b":' + opening * size + b"1" + closing * size + b',"a":1}'
            assert scan(body).state is by_bytes(body).state is state
    assert scan(b'{"a":[[1]]}', depth_limit=3).state is ScanState.OBJECT
    assert scan(b'{"a":[[1]]}', depth_limit=2).state is ScanState.UNREADABLE


def test_after_the_limit_of_depth_nothing_is_looked_at() -> None:
    scanner = TopLevelScanner(WANTED)
    scanner.feed(b'{"a":1,"b":' + b"[" * STEP)
    scanner.feed(b"]" * (STEP - DEPTH_LIMIT) + b"}")
    assert "not an object" in repr(scanner)
    assert scanner.finish() == ScanResult(ScanState.UNREADABLE, {}, {}, 0)


@pytest.mark.parametrize(
    "value", [b'"' + b"x" * 8 + b'"', b"1" * 10, b"[" + b"1," * 4 + b"]", b'{"a": [1]}', b'"\\"\\"\\"\\""']
)
def test_limit_of_a_value(value: bytes) -> None:
    assert len(value) == 10
    body = b'{"model":' + value + b',"a":1}'
    for cut in range(len(body)):
        assert scan(body, cut, value_limit=10).values == {"model": [value], "a": [b"1"]}
        assert scan(body, cut, value_limit=9).values == {"model": [TOO_LONG], "a": [b"1"]}
    assert by_bytes(body) == scan(body)


def test_containers_of_every_size_end_where_they_end() -> None:
    for size in (1, 60, 126, 127, 128, 129, 300, 5000):
        for unit in (b"[],", b'["]"],', b"[[{}]],", b'"\\"",', b'{"model":[]},'):
            value = b"[" + unit * size + b"1]"
            body = b'{"a":' + value + b',"model":1}'
            assert scan(body, size).values == {"a": [value], "model": [b"1"]}


def test_scalars_only() -> None:
    body = b'{"a":[1,{"model":2}],"model":{"a":1},"stream":true,"a":1}'
    found = {"a": [TOO_LONG, b"1"], "model": [TOO_LONG], "stream": [b"true"]}
    for cut in range(len(body)):
        assert scan(body, cut, scalars_only=True).values == found


def test_occurrences_are_limited() -> None:
    body = b"{" + b",".join(b'"a":%d' % i for i in range(100)) + b',"model":1}'
    kept = {"a": [b"%d" % i for i in range(OCCURRENCE_LIMIT)], "model": [b"1"]}
    assert scan(body).values == by_bytes(body).values == kept


@pytest.mark.parametrize("key", [b"", b'a"', b"\\", "é".encode(), b"a\n"])
def test_keys_that_cannot_be_looked_for(key: bytes) -> None:
    with pytest.raises(ValueError, match="a key that"):
        TopLevelScanner(frozenset({b"model", key}))


def test_what_was_fed_may_be_freed_at_once() -> None:
    scanner = TopLevelScanner(WANTED)
    for piece in (b'{"model":"x', b"y" * (3 * STEP), b'","a":"', b'z"}'):
        body = bytearray(piece)
        scanner.feed(body)
        body.clear()  # BufferError if a view were left
        body = bytearray(piece)
        with memoryview(body) as view:
            TopLevelScanner(WANTED).feed(view)
        body.clear()
    assert scanner.finish().values == {"model": [TOO_LONG], "a": [b'"z"']}


def test_nothing_of_the_size_of_a_body_is_kept() -> None:
    scanner = TopLevelScanner(WANTED)
    message = b'{"content":"' + b"x" * 50000 + b'\\n"},'
    pieces = [b'{"messages":[', *[message * 20] * 3, b'""],"b":"' + b"y" * STEP]
    scanner.feed(b" ")
    tracemalloc.start()
    try:
        for piece in pieces:
            scanner.feed(bytearray(piece))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4096
    scanner.feed(b'","model":"m"}')
    assert scanner.finish().values == {"model": [b'"m"']}
