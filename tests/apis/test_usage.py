"""Usage in the names of each API, from JSON responses of any size and over any cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioproxy.apis.responses import usage_reader
from trioproxy.apis.usage import Usage, UsageReader, parse_usage

CHAT = (
    b'{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":4,"x":null}}'
)
RESPONSES = b'{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":5,"total_tokens":15}'
FULL = Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15, cached_tokens=4)


def json_reader() -> UsageReader:
    reader = usage_reader(b"application/json", None)
    assert reader is not None
    return reader


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (CHAT, FULL),
        (RESPONSES, FULL),
        (b'{"prompt_tokens":10,"total_tokens":10}', Usage(10, None, 10, None)),
        (b'{"prompt_tokens":10,"completion_tokens":null,"prompt_tokens_details":null}', Usage(10, None, None, None)),
        (b'{"prompt_tokens":10.0,"completion_tokens":"5","total_tokens":true}', Usage(10, None, None, None)),
        (b'{"prompt_tokens":-1,"completion_tokens":5,"total_tokens":1e300}', Usage(None, 5, None, None)),
        (b'{"prompt_tokens":null,"input_tokens":3,"prompt_tokens_details":[]}', Usage(3, None, None, None)),
        (b'{"prompt_tokens":10,"cost":1' + b"0" * 400 + b"}", Usage(10, None, None, None)),
        (b'{"input_tokens":3,"cache_read_input_tokens":2,"cache_creation_input_tokens":5}', Usage(10, None, None, 2)),
        (b'{"input_tokens":3,"cache_read_input_tokens":2.0,"output_tokens":"x"}', Usage(5, None, None, 2)),
        (b'{"input_tokens":3,"cache_read_input_tokens":null,"output_tokens":4}', Usage(3, 4, None, None)),
        (b'{"prompt_tokens":3,"completion_tokens":4,"cached_tokens":2,"e2e_latency":0.5}', Usage(3, 4, None, 2)),
        (b"{}", None),
        (b"null", None),
        (b"[10]", None),
        (b"", None),
        (b'{"prompt_tokens":', None),
    ],
)
def test_usage_object(value: bytes, expected: Usage | None) -> None:
    assert parse_usage(value) == expected


counts = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from([2**63 - 1, 2**63, 4.0, 0.5, 1e300, "1", []])
details = counts | st.dictionaries(st.sampled_from(["cached_tokens", "audio_tokens"]), counts)
objects = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), counts),
        **dict.fromkeys(("input_tokens", "output_tokens", "cost"), counts),
        **dict.fromkeys(("prompt_tokens_details", "input_tokens_details"), details),
    },
)


@settings(max_examples=300, deadline=None)
@given(objects)
def test_a_usage_object_says_the_same_beside_something_malformed(usage: dict[str, object]) -> None:
    without = json.dumps({**usage, "total_tokens": None}).encode()
    malformed = json.dumps({**usage, "total_tokens": "x"}).encode()
    assert parse_usage(malformed) == parse_usage(without)
    for value in (without, malformed):
        body = b'{"usage":%b,"response":{"usage":%b}}' % (value, CHAT)
        reader = json_reader()
        reader.feed(body)
        assert reader.finish() == (parse_usage(value) or FULL)


@pytest.mark.parametrize("usage", [CHAT, RESPONSES])
@pytest.mark.parametrize("size", [1, 20000])
def test_json_over_any_cut(usage: bytes, size: int) -> None:
    body = b'{"choices":[{"text":"%b","usage":{"prompt_tokens":1}}],"usage": %b }\n' % (b'\\"' * size, usage)
    for cut in range(0, len(body), 1 + len(body) // 200):
        reader = json_reader()
        assert (reader.events, reader.at_boundary, reader.finish()) == (0, False, None)
        reader.feed(b"")
        assert reader.events == 0
        reader.feed(body[:cut] or b" ")
        reader.feed(body[cut:])
        assert (reader.events, reader.at_boundary, reader.finish()) == (1, False, FULL)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"{",
        b'{"usage":null}',
        b'{"usage":' + CHAT,
        b'[{"usage":' + CHAT + b"}]",
        b'{"a":{"usage":' + CHAT + b"}}",
    ],
)
def test_json_without_usage(body: bytes) -> None:
    reader = json_reader()
    reader.feed(body)
    assert reader.finish() is None
    reader.feed(b" ")
    assert reader.finish() is None


@pytest.mark.parametrize("junk", [b'"logprobs":[NaN,-Infinity]', b'"text":"\\ud800\xff"', b'"text":"\n"'])
def test_json_that_a_strict_decoder_refuses(junk: bytes) -> None:
    for held in (CHAT, b"null", CHAT + b',"usage":null'):
        for body in (b'{"usage":%b,%b}' % (held, junk), b'{"response":{"usage":%b},%b}' % (held, junk)):
            reader = json_reader()
            reader.feed(body)
            assert reader.finish() == (FULL if held.startswith(CHAT) else None)


@pytest.mark.parametrize(
    ("members", "usage"),
    [
        (b'"text":"x","meta_info":{"prompt_tokens":3,"completion_tokens":4,"cached_tokens":2}', Usage(3, 4, None, 2)),
        (b'"content":"x","tokens_evaluated":9,"tokens_predicted":2', Usage(9, 2, None, None)),
        (b'"tokens_predicted":2,"timings":{"prompt_n":4,"cache_n":5,"predicted_n":2}', Usage(9, 2, None, 5)),
        (b'"timings":{"prompt_n":4,"predicted_n":2}', Usage(4, 2, None, None)),
        (b'"timings":{"prompt_n":"4"}', None),
        (b'"timings":{}', None),
        (b'"tokens_cached":4', None),
    ],
)
@pytest.mark.parametrize("junk", [b'"x":1', b'"x":NaN', b'"usage":7', b'"message":[]', b'"y":"%b"' % (b"z" * 9000)])
def test_json_of_other_servers(members: bytes, usage: Usage | None, junk: bytes) -> None:
    body = b"{%b,%b}" % (junk, members)
    for cut in range(0, len(body), 1 + len(body) // 100):
        reader = json_reader()
        reader.feed(body[:cut])
        reader.feed(body[cut:])
        assert reader.finish() == usage
    reader = json_reader()
    reader.feed(body)
    assert reader.finish() == usage
    assert (reader.token_events, reader.fed_tokens, reader.choices) == (0, 0, {})


def test_json_response_event() -> None:
    reader = json_reader()
    reader.feed(json.dumps({"usage": None, "response": {"usage": json.loads(RESPONSES)}}).encode())
    assert reader.finish() == FULL


@pytest.mark.parametrize(
    ("content_type", "encoding", "name"),
    [
        (b"text/event-stream", None, "SseUsageReader"),
        (b"Text/Event-Stream; charset=utf-8", b"identity", "SseUsageReader"),
        (b"application/json", b"", "JsonUsageReader"),
        (b"application/JSON ;charset=utf-8", None, "JsonUsageReader"),
        (b"application/json", b"gzip", "NoneType"),
        (b"text/event-stream", b"br", "NoneType"),
        (b"text/plain", None, "NoneType"),
        (b"application/jsonl", None, "NoneType"),
        (None, None, "NoneType"),
    ],
)
def test_which_reader(content_type: bytes | None, encoding: bytes | None, name: str) -> None:
    assert type(usage_reader(content_type, encoding)).__name__ == name
