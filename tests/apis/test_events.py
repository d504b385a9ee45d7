"""Which events carry tokens, in each API's own form, however a stream is cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from trioproxy.apis.sse import SseUsageReader
from trioproxy.apis.usage import Usage


def chat(delta: object, **others: object) -> dict[str, object]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, **others}]}


TOKENS: list[object] = [
    chat({"content": "x"}),
    chat({"role": "assistant", "content": "x"}),
    chat({"content": None, "reasoning_content": "x"}),
    chat({"reasoning": "x"}),
    chat({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}),
    chat({"refusal": "no"}),
    chat({"function_call": {"arguments": "{"}}),
    chat({"content": "x"}, logprobs={"content": []}, finish_reason="stop"),
    {"choices": [{"index": 0, "text": "x"}]},
    {"choices": [{"index": 0, "token_ids": [7]}], "output_mode": "tokens"},
    {"choices": [], "usage": None} | chat({"content": "x"}),
    {"type": "response.output_text.delta", "delta": "x", "output_index": 0},
    {"type": "response.reasoning_text.delta", "delta": "x"},
    {"type": "response.function_call_arguments.delta", "delta": "{"},
    {"type": "transcript.text.delta", "delta": "x"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "thinking_delta", "thinking": "x"}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{"}},
    {"text": "x", "meta_info": {"completion_tokens": 1}},
    {"text": "", "output_ids": [7], "meta_info": {"completion_tokens": 1}},
    {"text": "x", "meta_info": {"id": "1"}},
    {"index": 0, "content": "x", "tokens": [7], "stop": False, "id_slot": 0},
    # Of another form than today's servers give them.
    chat({"content": [{"type": "text", "text": "x"}]}),
    chat({"content": "\ud83d"}),
    chat({"content": "x"}, logprobs=float("nan")),
    chat({"content": None, "tool_calls": {}, "reasoning": "x"}),
]
NONE: list[object] = [
    chat({"role": "assistant"}),
    chat({"role": "assistant", "content": ""}),
    chat({"content": "", "reasoning_content": "", "tool_calls": []}),
    chat({}, finish_reason="stop"),
    chat({"content": None}),
    chat(None),
    {"choices": [], "usage": {"prompt_tokens": 1}},
    {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]},
    {"choices": [{"index": 0, "token_ids": []}]},
    {"type": "response.created", "response": {"id": "resp_1"}},
    {"type": "response.output_text.delta", "delta": ""},
    {"type": "response.output_text.done", "text": "all of it"},
    {"type": "response.completed", "response": {"usage": {"input_tokens": 1}}},
    {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "EqQB"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop"},
    {"type": "ping"},
    {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
    {"error": {"message": "x"}},
    {"text": "", "meta_info": {"completion_tokens": 0}},
    {"index": 0, "content": "", "stop": True, "tokens_evaluated": 3, "tokens_predicted": 1},
    {"message": "x", "response": "x"},
    {"content": 1, "choices": 7},
    {},
    [],
    7,
    "content",
]


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def follow(stream: bytes, *cuts: int) -> SseUsageReader:
    reader = SseUsageReader()
    for begin, end in pairwise([0, *cuts, len(stream)]):
        reader.feed(stream[begin:end])
    return reader


@pytest.mark.parametrize("value", TOKENS)
def test_tokens(value: object) -> None:
    reader = follow(event(value))
    assert (reader.events, reader.token_events, reader.fed_tokens) == (1, 1, 1)
    assert reader.choices == {0: 1}


@pytest.mark.parametrize("value", NONE)
def test_no_tokens(value: object) -> None:
    reader = follow(event(value))
    assert (reader.events, reader.token_events, reader.fed_tokens) == (1, 0, 0)
    assert reader.choices == {}


@pytest.mark.parametrize("data", [b": ping\n\n", b"event: ping\n\n", b"retry: 5\n\n"])
def test_what_is_no_event(data: bytes) -> None:
    reader = follow(data)
    assert (reader.events, reader.token_events) == (0, 0)


def test_what_is_no_json() -> None:
    for data in (b"data: [DONE]\n\n", b"data\n\n", b'data: "content":"x"\n\n', b'data: {"content":\n\n'):
        reader = follow(data)
        assert (reader.events, reader.token_events, reader.finish()) == (1, 0, None)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_every_cut(newline: bytes) -> None:
    parts = [event(value) for value in (*TOKENS[:12], *NONE[:12])]
    parts.append(b'event: x\ndata: {"choices":[{"delta":\n: between\ndata: {"content":"x"}}]}\nid: 1\n\n')
    stream = b"".join(parts).replace(b"\n", newline)
    whole = follow(stream)
    assert (whole.events, whole.token_events) == (25, 13)
    for cut in range(len(stream) + 1):
        reader = follow(stream, cut)
        assert (reader.events, reader.token_events, reader.choices) == (25, 13, {0: 13})
    assert follow(stream, *range(1, len(stream))).token_events == 13


def test_each_piece_says_what_was_in_it() -> None:
    token, role = event(chat({"content": "x"})), event(chat({"role": "assistant"}))
    reader = SseUsageReader()
    fed: list[int] = []
    for piece in (role, token, token[:9], token[9:] + token, b": ping\n\n", role + token * 3 + role, role):
        reader.feed(piece)
        fed.append(reader.fed_tokens)
    assert fed == [0, 1, 0, 2, 0, 3, 0]
    assert (reader.events, reader.token_events) == (10, 6)


def test_choices_are_told_apart() -> None:
    reader = SseUsageReader()
    for index in (0, 1, 1, 3):
        reader.feed(event({"choices": [{"index": index, "delta": {"content": "x"}}]}))
    reader.feed(event({"choices": [{"index": i, "delta": {"content": "x" * i}} for i in range(4)]}))
    reader.feed(event({"choices": [{"index": 3, "delta": {"content": ["odd"]}}]}))
    assert (reader.events, reader.token_events) == (6, 6)
    assert reader.choices == {0: 1, 1: 3, 2: 1, 3: 3}


def test_choices_are_bounded() -> None:
    reader = SseUsageReader()
    for index in range(-5000, 5000):
        reader.feed(event({"choices": [{"index": index, "text": "x"}]}))
    assert reader.token_events == 10000
    assert len(reader.choices) < 200
    assert sum(reader.choices.values()) == 10000


def test_sequences_of_sglang_repeat_their_text() -> None:
    reader = SseUsageReader()
    for index, tokens in ((0, 1), (1, 1), (0, 2), (1, 1), (0, 2)):
        reader.feed(event({"index": index, "text": "x" * tokens, "meta_info": {"completion_tokens": tokens}}))
    assert (reader.events, reader.token_events) == (5, 3)
    assert reader.choices == {0: 2, 1: 1}


@pytest.mark.parametrize(
    ("values", "usage"),
    [
        (
            [
                {"type": "message_start", "message": {"usage": {"input_tokens": 10, "cache_read_input_tokens": 5}}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}},
                {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}},
                {"type": "message_stop"},
            ],
            Usage(15, 7, None, 5),
        ),
        # vLLM tells of the cache at the end only.
        (
            [
                {"type": "message_start", "message": {"usage": {"input_tokens": 15, "output_tokens": 0}}},
                {"type": "message_delta", "usage": {"input_tokens": 9, "cache_read_input_tokens": 5,
                                                    "cache_creation_input_tokens": 1, "output_tokens": 7}},
            ],
            Usage(15, 7, None, 5),
        ),
        # Cut off after the first event.
        ([{"type": "message_start", "message": {"usage": {"input_tokens": 15, "output_tokens": 1}}}],
         Usage(15, 1, None, None)),
        ([{"usage": {"prompt_tokens": 3, "total_tokens": 4}}, {"usage": {"completion_tokens": 5}}],
         Usage(3, 5, None, None)),
        # continuous_usage_stats: the last one wins.
        (
            [{**chat({"content": "x"}), "usage": {"prompt_tokens": 3, "completion_tokens": n, "total_tokens": 3 + n}}
             for n in range(1, 5)],
            Usage(3, 4, 7, None),
        ),
        (
            [{"text": "x", "meta_info": {"prompt_tokens": 3, "completion_tokens": n, "cached_tokens": 2}}
             for n in range(1, 5)],
            Usage(3, 4, None, 2),
        ),
        (
            [
                {"index": 0, "content": "x", "stop": False},
                {"index": 0, "content": "", "stop": True, "tokens_evaluated": 9, "tokens_predicted": 2,
                 "timings": {"prompt_n": 4, "cache_n": 5, "predicted_n": 2}},
            ],
            Usage(9, 2, None, 5),
        ),
        # llama.cpp says how long it took, asked for usage or not.
        ([chat({}, finish_reason="stop") | {"timings": {"prompt_n": 4, "predicted_n": 2}}], Usage(4, 2, None, None)),
        ([{"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 4,
                                                                "input_tokens_details": {"cached_tokens": 1}}}}],
         Usage(3, 4, None, 1)),
        ([chat({"content": "\ud83d"}) | {"usage": {"prompt_tokens": 3}}], Usage(3, None, None, None)),
    ],
)  # fmt: skip
def test_usage_of_streams(values: list[object], usage: Usage) -> None:
    stream = b"".join(map(event, values))
    for cut in range(len(stream) + 1):
        assert follow(stream, cut).finish() == usage
