"""The probe's reader sees the same message however it is cut, and what a proxy might do wrong ends the measurement."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.messages import (
    LAST_CHUNK,
    STREAM_HEAD,
    EventReader,
    Events,
    MessageReader,
    chat_body,
    chunk,
    completion,
    json_response,
    post,
    user_of,
)
from bench.wire import ProbeError

BODY = completion(300)
STREAM = STREAM_HEAD + chunk(b"one") + b"00A\r\n0123456789\r\n" + LAST_CHUNK
MESSAGES = [
    (post(chat_body(600, stream=True, user=7)), chat_body(600, stream=True, user=7)),
    (json_response(BODY), BODY),
    (STREAM, b"one0123456789"),
    (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b""),
]


@pytest.mark.parametrize(("message", "body"), MESSAGES)
def test_a_message_split_at_every_byte_is_the_same(message: bytes, body: bytes) -> None:
    for at in range(1, len(message)):
        pieces: list[bytes] = []
        reader = MessageReader(pieces.append)
        assert not reader.feed(message[:at])
        assert reader.feed(message[at:])
        assert b"".join(pieces) == body
        assert reader.head == message[: message.index(b"\r\n\r\n") + 4]


def test_messages_follow_one_another_byte_by_byte() -> None:
    pieces: list[bytes] = []
    reader = MessageReader(pieces.append)
    ends = [reader.feed(bytes([byte])) for message, _ in MESSAGES for byte in message]
    assert ends.count(True) == len(MESSAGES)
    assert b"".join(pieces) == b"".join(body for _, body in MESSAGES)


@pytest.mark.parametrize(
    "message",
    [
        *(message + b"x" for message, _ in MESSAGES),
        STREAM_HEAD + b"3;a=b\r\none\r\n" + LAST_CHUNK,
        STREAM_HEAD + b"\r\n",
        STREAM_HEAD + b"-3\r\none\r\n",
        STREAM_HEAD + b"3\r\none \r\n",
        STREAM_HEAD + b"0\r\ntrailer: x\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_wrong_framing_is_found(message: bytes) -> None:
    with pytest.raises(ProbeError):
        MessageReader(lambda _: None).feed(message)


def test_sizes_are_exact_and_events_differ() -> None:
    assert len(chat_body(600, stream=True)) == 600
    assert len(completion(300)) == 300
    events = Events(stream=3, size=250)
    assert {len(events[number]) for number in range(100)} == {250}
    assert len({Events(stream, 250)[number] for stream in range(10) for number in range(10)}) == 100
    assert user_of(chat_body(600, stream=True, user=42)) == 42
    with pytest.raises(ValueError, match="takes at least"):
        chat_body(50, stream=True)


@given(st.lists(st.integers(0, 250 * 6)))
def test_events_cut_anywhere_are_counted_once(cuts: list[int]) -> None:
    events = Events(stream=1, size=250)
    sent = b"".join(events[number] for number in range(6))
    edges = [0, *sorted(cuts), len(sent)]
    reader = EventReader(events)
    assert sum(reader.feed(sent[a:b]) for a, b in itertools.pairwise(edges)) == 6
    reader.end(sent=6)


@pytest.mark.parametrize(
    ("stream", "order"), [(1, [0, 2]), (1, [0, 0]), (1, [1, 0]), (2, [0])], ids=["lost", "doubled", "swapped", "other"]
)
def test_events_that_are_not_the_next_are_found(stream: int, order: list[int]) -> None:
    reader = EventReader(Events(stream=1, size=250))
    with pytest.raises(ProbeError, match="out of order"):
        reader.feed(b"".join(Events(stream, size=250)[number] for number in order))


@pytest.mark.parametrize("seen", [0, 499, 501])
def test_the_end_of_events_is_checked(seen: int) -> None:
    events = Events(stream=1, size=250)
    reader = EventReader(events)
    reader.feed((events[0] + events[1] + events[2])[:seen])
    with pytest.raises(ProbeError, match="arrived of 2 events"):
        reader.end(sent=2)
