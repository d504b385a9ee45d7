"""Events, boundaries and usage of a stream are the same however it is cut and whichever line ends it has."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioproxy.apis.sse import EVENT_LIMIT, SseUsageReader
from trioproxy.apis.usage import Usage

USAGE = b'{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}'
FULL = Usage(10, 5, 15, None)
DELTA = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
NULL = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n'
LAST = b'data: {"choices":[],"usage":' + USAGE + b"}\n\n"
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
COMPLETED = b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":%b}}\n\n' % (
    b'{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":5,"total_tokens":15}'
)

STREAMS: list[tuple[bytes, int, Usage | None]] = [
    (b"", 0, None),
    (DELTA * 2 + DONE, 3, None),
    (NULL * 2 + LAST + DONE, 4, FULL),
    (b"\xef\xbb\xbf" + NULL + PING + LAST + NULL + DONE, 4, FULL),
    (b"\n\n\n" + PING + DELTA + b"\n" + LAST + b"\n\n" + PING + DONE, 3, FULL),
    (DELTA + COMPLETED, 2, Usage(10, 5, 15, 4)),
    (b'data:{"usage":' + USAGE + b"}\n\n", 1, FULL),
    (b'id: 1\ndata: {"usage":\n: between\ndata:' + USAGE + b"\ndata: }\n\ndata\n\ndata:\n\n", 3, FULL),
    (b"event: x\nid: 7\n\ndatabase: 1\n\ndat: 2\n\n: data: 3\n\nretry: 5\n\n", 0, None),
    (b'data: {"a":"\\"usage\\"","usage":' + USAGE + b',"x":NaN}\n\n', 1, FULL),
    (b'data: {"usage": {}}\n\ndata: {"usage":' + USAGE + b'}\n\ndata: {"usage" :null}\n\ndata: "usage"\n\n', 4, FULL),
    (LAST.replace(b"10", b"1") + LAST, 2, FULL),
    (b'data: {"x":[{"usage":' + USAGE + b'}]}\n\ndata: {"response":["usage"]}\n\n', 2, None),
]


def follow(stream: bytes, *cuts: int) -> SseUsageReader:
    reader = SseUsageReader()
    edges = [0, *cuts, len(stream)]
    for begin, end in pairwise(edges):
        reader.feed(stream[begin:end])
    return reader


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(("stream", "events", "usage"), STREAMS)
def test_every_cut(stream: bytes, events: int, usage: Usage | None, newline: bytes) -> None:
    stream = stream.replace(b"\n", newline)
    for cut in range(len(stream) + 1):
        reader = follow(stream, cut)
        assert (reader.events, reader.at_boundary, reader.finish()) == (events, True, usage)
    reader = follow(stream, *range(1, len(stream)))
    assert (reader.events, reader.at_boundary, reader.finish()) == (events, True, usage)


class Lines:
    """The standard's own algorithm, line by line, for whole streams."""

    def __init__(self, stream: bytes) -> None:
        stream = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = stream.split(b"\n")
        self.events = 0
        data = pending = False
        for line in lines:
            pending = bool(line)
            if not line:
                self.events += data
                data = False
            data = data or line == b"data" or line.startswith(b"data:")
        self.at_boundary = not rest and not pending


pieces = st.sampled_from(
    [
        b"data: 1",
        b"data",
        b"data:",
        b"dat",
        b"a: b",
        b": c",
        b":",
        b"\n",
        b"\n\n",
        b"\r",
        b"\r\n",
        b"\r\n\r\n",
        b"data: 2\n\n",
        b"data: 1\r\rdata: 2\n\n",
        b"data: 1\n\n: c\n\n",
        b"\ndata:3\n\n",
        b'data: {"usage":null}\n\n',
        b"\xef\xbb\xbf",
        b" ",
    ]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(pieces, max_size=12))
def test_agrees_with_the_standard_after_each_piece(chunks: list[bytes]) -> None:
    reader = SseUsageReader()
    stream = b""
    for chunk in chunks:
        reader.feed(chunk)
        stream += chunk
        model = Lines(stream)
        assert (reader.events, reader.at_boundary) == (model.events, model.at_boundary), stream
    single = follow(stream, *range(1, len(stream)))
    assert (single.events, single.at_boundary) == (reader.events, reader.at_boundary)


def test_usage_of_an_event_that_the_end_cuts() -> None:
    reader = follow(DELTA + LAST.rstrip())
    assert (reader.events, reader.at_boundary, reader.finish()) == (1, False, FULL)
    assert follow(DELTA + LAST[:-10]).finish() is None


@pytest.mark.parametrize("step", [65536, 65521, EVENT_LIMIT * 3])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_an_event_over_the_limit_is_counted_and_skipped(step: int, newline: bytes) -> None:
    big = b'data: {"usage":{"prompt_tokens":1},"x":"' + b"y" * (2 * EVENT_LIMIT) + b'"}\n\n'
    comment = b": " + b"data:" * (EVENT_LIMIT // 2) + b"\n"
    late = comment + b"data: 1\n\n"
    never = comment + b"database: 1\n\n"
    stream = (LAST + big + DELTA + late + never + DELTA).replace(b"\n", newline)
    for shift in range(12):
        reader = follow(stream, *range(step - shift, len(stream), step))
        assert (reader.events, reader.at_boundary, reader.finish()) == (5, True, FULL)


def test_memory_is_bounded() -> None:
    reader = SseUsageReader()
    tracemalloc.start()
    try:
        for _ in range(100):
            reader.feed(b"data: " + b"x" * 65536)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4096
    assert peak < 3 * EVENT_LIMIT
