"""What is forwarded and what ends with its connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioproxy.http1 import Field, FieldFilter, end_to_end, get, get_all, pairs


def fields(*lines: bytes) -> list[Field]:
    return [(name.lower(), name, value) for name, value in (line.split(b": ") for line in lines)]


def kept(*lines: bytes) -> list[bytes]:
    return [name for _, name, _ in end_to_end(fields(*lines))]


@pytest.mark.parametrize(
    "name",
    [
        b"Connection", b"Proxy-Connection", b"Keep-Alive", b"Proxy-Authenticate", b"Proxy-Authorization", b"TE",
        b"Trailer", b"Transfer-Encoding", b"Upgrade",
    ],
)  # fmt: skip
def test_hop_by_hop_fields_are_dropped_in_any_case(name: bytes) -> None:
    assert kept(b"A: b", name + b": x", name.upper() + b": x", name.lower() + b": x", b"C: d") == [b"A", b"C"]


@pytest.mark.parametrize(
    "connections",
    [
        [b"Connection: x-drop, X-Drop-Too"],
        [b"Connection: close, X-DROP", b"Connection: keep-alive,\tx-drop-too ,"],
        [b"Connection: ,,x-drop,x-drop-too,,"],
    ],
)
def test_every_connection_line_names_what_is_dropped(connections: list[bytes]) -> None:
    assert kept(b"X-Drop: 1", b"X-Keep: 2", *connections, b"x-drop-too: 3", b"X-Drop: 4") == [b"X-Keep"]


def test_nominations_never_remove_what_the_next_hop_relies_on() -> None:
    lines = [b"Host: h", b"Content-Length: 5", b"X-Forwarded-For: a", b"X-Forwarded-Proto: b", b"X-Forwarded-New: c"]
    nomination = b"Connection: host, content-length, x-forwarded-for, X-Forwarded-Proto, x-forwarded-new, x-other"
    assert kept(*lines, nomination, b"X-Other: d") == [line.split(b":")[0] for line in lines]


def test_repeated_fields_stay_repeated_and_in_order() -> None:
    assert end_to_end(fields(b"Set-Cookie: a", b"X: y", b"Set-Cookie: b")) == fields(
        b"Set-Cookie: a", b"X: y", b"Set-Cookie: b"
    )


def test_looking_up() -> None:
    some = fields(b"A: 1", b"B: 2", b"a: 3")
    assert get(some, b"a") == b"1"
    assert get(some, b"c") is None
    assert get_all(some, b"a") == [b"1", b"3"]
    assert pairs(some) == [(b"A", b"1"), (b"B", b"2"), (b"a", b"3")]


FORWARDED = FieldFilter(dropped=frozenset({b"host"}), noted=frozenset({b"date", b"x-id"}), once=frozenset({b"date"}))


@pytest.mark.parametrize(
    ("lines", "sent", "seen"),
    [
        ([b"A: b", b"Te: c", b"HOST: d", b"a: e"], [b"A: b", b"a: e"], []),
        (
            [b"X-Id: 1", b"x-id: 2", b"Date: a", b"date: b"],
            [b"X-Id: 1", b"x-id: 2", b"Date: a"],
            [b"x-id", b"x-id", b"date"],
        ),
        ([b"X-Id: 1", b"A: b", b"Connection: close, X-ID", b"Date: a"], [b"A: b", b"Date: a"], [b"date"]),
        ([b"Connection: keep-alive", b"A: b"], [b"A: b"], []),
    ],
)  # fmt: skip
def test_a_filter_says_what_goes_on_and_what_was_there(
    lines: list[bytes], sent: list[bytes], seen: list[bytes]
) -> None:
    assert FORWARDED.lines(fields(*lines)) == (sent, [line.split(b":")[0] for line in sent], seen)


some_names = st.sampled_from([b"A", b"b", b"X-Id", b"Host", b"TE", b"Upgrade", b"Keep-Alive", b"X-Forwarded-For"])
some_lines = st.lists(
    st.tuples(some_names, st.just(b"v"))
    | st.tuples(
        st.sampled_from([b"Connection", b"connection"]),
        st.lists(some_names | st.sampled_from([b"close", b"Keep-Alive", b""]), max_size=3).map(b", ".join),
    ),
    max_size=6,
)


@given(some_lines)
def test_a_filter_that_drops_nothing_of_its_own_leaves_what_is_end_to_end(lines: list[tuple[bytes, bytes]]) -> None:
    some: list[Field] = [(name.lower(), name, value) for name, value in lines]
    everything = FieldFilter(noted=frozenset({b"x-id"}))
    sent, names, seen = everything.lines(some)
    kept_fields = end_to_end(some)
    assert sent == [name + b": " + value for _, name, value in kept_fields]
    assert names == [name for _, name, _ in kept_fields]
    assert seen == [key for key, _, _ in kept_fields if key == b"x-id"]
