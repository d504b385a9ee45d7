"""The report of usage is taken out of a stream, and nothing else, however the stream is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioproxy.apis.sse import EVENT_LIMIT
from trioproxy.apis.strip import UsageStripper

USAGE = b'{"prompt_tokens":1}'
DELTA = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n'
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
REPORTS = [
    b'data: {"id":"1","choices":[],"usage":%b}\n\n' % USAGE,
    b'data:{"usage": %b , "choices" : [ ]}\n\n' % USAGE,
    b'event: message\nid: 7\ndata: {"choices":[],"usage":%b}\nretry: 5\n\n' % USAGE,
    b': note\ndata: {"choices":[],\ndata: "usage":%b}\n\n' % USAGE,
    b'data: {"choices":[],"usage":{}}\n\n',
]
KEPT = [
    DELTA,
    DONE,
    PING,
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":%b}\n\n' % USAGE,
    b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
    b'data: {"choices":[],"usage":null}\n\n',
    b'data: {"usage":%b}\n\n' % USAGE,
    b'data: {"choices":[{"delta":{"content":"\\"choices\\":[],\\"usage\\":{}"}}]}\n\n',
    b': {"choices":[],"usage":{}}\n\n',
    b'data: {"choices":[],"usage":%b\n\n' % USAGE,
    b'data: {"error":{"message":"x"}}\n\n',
    b'data: {"x":{"choices":[]},"choices":[{"index":0}],"usage":%b}\n\n' % USAGE,
    b"\n",
]


def strip(stream: bytes, *cuts: int) -> list[bytes]:
    """What is passed on for each piece, and at last for the end."""
    stripper = UsageStripper()
    pieces = [stream[begin:end] for begin, end in pairwise([0, *cuts, len(stream)])]
    return [b"".join(stripper.take([piece], last=False)) for piece in pieces] + [b"".join(stripper.take([], last=True))]


def events(stream: bytes) -> list[list[bytes]]:
    """The lines of each event. An empty line more or less between two says nothing."""
    found: list[list[bytes]] = [[]]
    for line in stream.splitlines():
        if line:
            found[-1].append(line)
        else:
            found.append([])
    return [event for event in found if event]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("report", REPORTS)
def test_every_cut(report: bytes, newline: bytes) -> None:
    expected = (DELTA + PING + DELTA + DONE).replace(b"\n", newline)
    stream = (DELTA + PING + DELTA + report + DONE).replace(b"\n", newline)
    assert b"".join(strip(stream)) == expected
    for cut in range(len(stream) + 1):
        assert events(b"".join(strip(stream, cut))) == events(expected)
    assert events(b"".join(strip(stream, *range(1, len(stream))))) == events(expected)


@pytest.mark.parametrize("kept", KEPT)
def test_nothing_else_is_taken_out(kept: bytes) -> None:
    for newline in (b"\n", b"\r\n", b"\r"):
        stream = (DELTA + kept + DELTA + REPORTS[0] + kept).replace(b"\n", newline)
        expected = (DELTA + kept + DELTA + kept).replace(b"\n", newline)
        for cut in range(len(stream) + 1):
            assert events(b"".join(strip(stream, cut))) == events(expected)


def test_whole_events_are_passed_on_at_once_and_the_rest_of_one_waits() -> None:
    assert strip(DELTA + DELTA[:20], len(DELTA)) == [DELTA, b"", DELTA[:20]]
    assert strip(DELTA * 2, len(DELTA) - 1, len(DELTA)) == [b"", DELTA, DELTA, b""]
    assert strip(DELTA + REPORTS[0] + DONE, 5, len(DELTA) + 9, len(DELTA) + len(REPORTS[0])) == [
        b"",
        DELTA,
        b"",
        DONE,
        b"",
    ]


def test_a_report_that_the_end_cuts_is_taken_out_too() -> None:
    assert b"".join(strip(DELTA + REPORTS[0].rstrip())) == DELTA
    assert b"".join(strip(DELTA + REPORTS[0][:-9])) == DELTA + REPORTS[0][:-9]


def test_what_is_held_is_bounded() -> None:
    stripper = UsageStripper()
    passed = 0
    for number in range(40):
        passed += sum(map(len, stripper.take([b"data: " + b"x" * 65530], last=False)))
        assert (number + 1) * 65536 - passed <= EVENT_LIMIT + 65536
    assert passed > 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*REPORTS, *KEPT])), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
def test_any_stream(parts: list[bytes], newline: bytes, data: st.DataObject) -> None:
    stream = b"".join(parts).replace(b"\n", newline)
    expected = b"".join(part for part in parts if part not in REPORTS).replace(b"\n", newline)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5).map(sorted))
    assert events(b"".join(strip(stream, *cuts))) == events(expected)
