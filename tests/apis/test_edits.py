"""Asking a stream for its usage: only where the client left it open, and changing nothing else."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioproxy.apis.fields import FieldReader
from trioproxy.apis.operations import Form


def edited(body: bytes, *cuts: int, includes_usage: bool = True) -> bytes | None:
    """The body after the edit that its reader proposes; None if it proposes none."""
    reader = FieldReader(Form.CHAT, includes_usage=includes_usage)
    for begin, end in pairwise([0, *cuts, len(body)]):
        reader.feed(body[begin:end])
    reader.finish()
    edit = reader.edit
    return None if edit is None else body[: edit.begin] + edit.text + body[edit.end :]


ASKS = b'"stream_options":{"include_usage":true},'
OPEN = [
    (b'{"model":"m","stream":true}', b"{" + ASKS + b'"model":"m","stream":true}'),
    (b' \r\n{ "stream" : true }', b" \r\n{" + ASKS + b' "stream" : true }'),
    (b'{"stream":true,"stream_options":null}', b'{"stream":true,"stream_options":{"include_usage":true}}'),
    (b'{"stream_options": { } ,"stream":1}', b'{"stream_options": {"include_usage":true } ,"stream":1}'),
    (
        b'{"stream":"yes","stream_options":{"x":[1,{"include_usage":1}]}}',
        b'{"stream":"yes","stream_options":{"include_usage":true,"x":[1,{"include_usage":1}]}}',
    ),
    (
        b'{"stream":true,"p":{"stream_options":{}},"\\u0073tream_options":{}}',
        b'{"stream":true,"p":{"stream_options":{}},"\\u0073tream_options":{"include_usage":true}}',
    ),
    (
        b'{"p":"\\"stream_options\\":{}","n":100000000000000000000000001,"n":1.0,"stream":true}',
        b"{" + ASKS + b'"p":"\\"stream_options\\":{}","n":100000000000000000000000001,"n":1.0,"stream":true}',
    ),
]
SPOKEN = [
    b'{"model":"m"}',
    b'{"model":"m","stream":false}',
    b'{"stream":true,"stream_options":{"include_usage":true}}',
    b'{"stream":true,"stream_options":{"include_usage":false}}',
    b'{"stream":true,"stream_options":{"include_usage":null}}',
    b'{"stream":true,"stream_options":{"include\\u005fusage":true}}',
    b'{"stream":true,"stream_options":{"continuous_usage_stats":true}}',
    b'{"stream":true,"stream_options":true}',
    b'{"stream":true,"stream_options":[]}',
    b'{"stream":true,"stream_options":"x"}',
    b'{"stream":true,"stream_options":{},"stream_options":{}}',
    b'{"stream":true,"stream_options":{"x":NaN}}',
    b'{"stream":true,"stream_options":{"x":"%b"}}' % (b"x" * 70000),
    b'{"stream":true',
    b'["stream"]',
    b"",
]


@pytest.mark.parametrize(("body", "expected"), OPEN)
def test_what_the_client_left_open_is_asked_for(body: bytes, expected: bytes) -> None:
    assert edited(body) == expected
    for cut in range(len(body) + 1):
        assert edited(body, cut) == expected
    assert edited(body, *range(1, len(body))) == expected
    assert edited(body, includes_usage=False) is None


@pytest.mark.parametrize("body", SPOKEN)
def test_what_the_client_spoke_of_stays(body: bytes) -> None:
    for cut in range(0, len(body) + 1, 1 + len(body) // 100):
        assert edited(body, cut) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["stream_options", "include_usage", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)
bodies = st.dictionaries(st.sampled_from(["stream_options", "messages", "a", "é"]), json_values, max_size=4)


@settings(max_examples=300, deadline=None)
@given(bodies, st.data())
def test_the_body_says_the_same_but_for_that(body: dict[str, object], data: st.DataObject) -> None:
    body["stream"] = True
    text = json.dumps(body, indent=data.draw(st.sampled_from([None, 1])), ensure_ascii=data.draw(st.booleans()))
    cuts = data.draw(st.lists(st.integers(0, len(text.encode())), max_size=3).map(sorted))
    after = edited(text.encode(), *cuts)
    options = body.get("stream_options")
    if options is not None and (not isinstance(options, dict) or "include_usage" in options):
        assert after is None
    else:
        assert after is not None
        assert json.loads(after) == {**body, "stream_options": {**(options or {}), "include_usage": True}}
