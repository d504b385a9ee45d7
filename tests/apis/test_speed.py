"""No shape of input costs out of proportion: each is measured against a plain one of the same run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from trioproxy.apis.fields import FieldReader
from trioproxy.apis.json_scan import STEP, TopLevelScanner
from trioproxy.apis.operations import Form
from trioproxy.apis.sse import SseUsageReader

WANTED = frozenset({b"model", b"stream", b"user"})


def best(work: Callable[[], None]) -> float:
    def once() -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    return min(once() for _ in range(7))


def plain() -> float:
    """Splitting 64 KiB of empty strings, the step that no scan of them can do without: about 0.3 ms."""
    text = (b'"",' * STEP)[:STEP]
    return best(lambda: text.split(b'"').clear())


SHAPES = {
    "text": (b'{"a":"', b'He said \\"yes\\" and left.\\n'),
    "escaped quotes": (b'{"a":"', b'\\"'),
    "backslashes": (b'{"a":"', b"\\\\"),
    "messages": (b'{"a":[', b'{"role":"user","content":"Tell me a story"},'),
    "empty strings": (b'{"a":[', b'"",'),
    "strings at the top": (b"{", b'"",'),
    "escaped strings": (b"{", b'"\\u0061",'),
    "escaped keys": (b"{", b'"\\u0061":1,'),
    "keys as values": (b"{", b'"\\u006dodel",'),
    "small fields": (b"{", b'"":1,'),
    "numbers": (b'{"a":[', b"1,"),
    "lists": (b'{"a":[', b"[],"),
    "nested lists": (b"{", b'"a":[[[[]]]],'),
    "deep lists": (b'{"a":[', b"[" * 250 + b"]" * 250 + b","),
    "nested keys": (b"{", b'"a":{"model":1},'),
    "repeated keys": (b"{", b'"model":1,'),
    "a long value": (b'{"model":[', b"[],"),
    "repeated values": (b"{", b'"model":[' + b"[]," * 1000 + b"1],"),
    "quotes": (b"{", b'"'),
    "openings": (b'{"a":', b"["),
    "spaces": (b'{"model"', b" "),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_of_the_scanner(shape: str) -> None:
    head, unit = SHAPES[shape]
    body = unit * (2 * STEP // len(unit) + 1)
    pieces = [body[:STEP], body[STEP : 2 * STEP]]

    def work() -> None:
        scanner = TopLevelScanner(WANTED)
        scanner.feed(head)
        for piece in pieces:
            scanner.feed(piece)

    assert best(work) < 2 * 30 * plain()


def test_single_bytes_cost_the_same_each() -> None:
    def cost(size: int) -> float:
        body = b'{"model":"' + b"x" * size + b'","' + b"y" * size + b'":[' + b"1," * size + b"1]}"

        def work() -> None:
            reader = FieldReader(Form.CHAT)
            for i in range(len(body)):
                reader.feed(body[i : i + 1])

        return best(work) / len(body)

    assert cost(4000) < 5 * cost(500)


def test_a_million_small_fields() -> None:
    body = b"{" + b",".join(b'"k%d":%d' % (i, i) for i in range(1_000_000)) + b',"model":"m"}'
    reader = FieldReader(Form.CHAT)
    reader.feed(body)
    assert reader.finish().model == "m"


def test_a_small_body_costs_less_decoded_than_scanned() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}],"stream":true}' % (b"x" * 500)

    def cost(*pieces: bytes) -> float:
        def work() -> None:
            for _ in range(200):
                reader = FieldReader(Form.CHAT)
                for piece in pieces:
                    reader.feed(piece)
                reader.finish()

        return best(work)

    assert cost(body) < cost(body[:100], body[100:])


@pytest.mark.parametrize(
    "unit", [b"\n", b"\r", b"a\n\n", b"data:\n\n", b"data:\r\n\r\n", b'data: {"usage":1}\n\n', b"data: x\n"]
)
def test_a_step_of_a_stream(unit: bytes) -> None:
    piece = unit * (STEP // len(unit))
    reader = SseUsageReader()
    assert best(lambda: reader.feed(piece)) < 80 * plain()
    assert best(lambda: reader.feed(DELTA)) < best(lambda: reader.feed(piece))


def test_an_event_costs_less_than_decoding_it_with_the_standard_library() -> None:
    event = (
        b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"%b","choices":[%b]}\n\n'
        % (
            b"m" * 40,
            b'{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}',
        )
    )
    data = event[6:-2]
    reader = SseUsageReader()

    def read() -> None:
        for _ in range(1000):
            reader.feed(event)

    def decode() -> None:
        for _ in range(1000):
            json.loads(data)

    assert best(read) < best(decode)
    assert reader.token_events == reader.events


DELTA = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
