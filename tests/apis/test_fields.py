"""What odd bodies say, that both ways of reading one say the same, and who is looked at."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioproxy.apis import fields as fields_module
from trioproxy.apis.fields import UNKNOWN_FIELDS, BodyState, FieldReader, RequestFields, is_json
from trioproxy.apis.operations import Form
from trioproxy.errors import Code, ProxyError

UNREADABLE = RequestFields(model=None, stream=False, max_output_tokens=None, user=None, state=BodyState.UNREADABLE)


def fields(
    model: str | None = "m", stream: bool = True, max_output_tokens: int | None = 7, user: str | None = "u"
) -> RequestFields:
    return RequestFields(model, stream, max_output_tokens, user, BodyState.READ)


def read(body: bytes, *cuts: int, form: Form = Form.CHAT) -> RequestFields:
    reader = FieldReader(form)
    edges = [0, *cuts, len(body)]
    for begin, end in pairwise(edges):
        reader.feed(body[begin:end])
    return reader.finish()


REST = b'"model":"m","stream":true,"max_tokens":7,"user":"u"}'
DEEP = b"[" * 300 + b"]" * 300

ODD = [
    # The rest of the body costs no field.
    (b'{"p":"\\ud800",' + REST, fields()),
    (b'{"p":"\xff\xfe",' + REST, fields()),
    (b'{"p":"\x00\n",' + REST, fields()),
    (b'{"p":[NaN,-Infinity,1e999,01],' + REST, fields()),
    (b'{"p":1' + b"0" * 9000 + b"," + REST, fields()),
    (b'{"messages":[{"role":"user","user":"a","model":"b"},{"role": "user"}],' + REST, fields()),
    (b'{"p":"\\"model\\":1","q":"model","r":["user","user"],' + REST, fields()),
    (b'{ "\\u006dode\\u006C" : "m" , "stre\\u0061m":true,"\\u0075ser":"u","max\\u005ftokens":7}', fields()),
    # Nor does one field cost another.
    (b'{"model":null,"stream":true,"max_tokens":7,"user":"u"}', fields(model=None)),
    (b'{"model":["m"],"stream":true,"max_tokens":7,"user":"u"}', fields(model=None)),
    (b'{"model":"\\ud800","stream":true,"max_tokens":7,"user":"u"}', fields(model=None)),
    (b'{"model":"\xff","stream":true,"max_tokens":7,"user":"u"}', fields(model=None)),
    (b'{"model":"' + b"m" * 4096 + b'","stream":true,"max_tokens":7,"user":"u"}', fields(model="m" * 4096)),
    (b'{"model":"' + b"m" * 4097 + b'","stream":true,"max_tokens":7,"user":"u"}', fields(model=None)),
    (b'{"model":"m","stream":true,"max_tokens":7,"user":12}', fields(user=None)),
    (b'{"model":"\\u00e9\\ud83d\\ude00","stream":true,"max_tokens":7,"user":"\\n"}', fields(model="é😀", user="\n")),
    (b'{"model":"","stream":true,"max_tokens":7,"user":""}', fields(model="", user="")),
    (b"{}", RequestFields(None, False, None, None, BodyState.READ)),
    # Unreadable as a whole.
    (b"", UNREADABLE),
    (b"[" + REST[:-1] + b"]", UNREADABLE),
    (b"{" + REST + b"x", UNREADABLE),
    (b"{" + REST[:-1], UNREADABLE),
    (b"\xef\xbb\xbf{" + REST, UNREADABLE),
    ((b"{" + REST).decode().encode("utf-16"), UNREADABLE),
    ((b"{" + REST).decode().encode("utf-16-le"), UNREADABLE),
    (b'{"p":' + DEEP + b"," + REST, UNREADABLE),
    (b'{"p":' + DEEP * 200 + b"," + REST, UNREADABLE),
    (b"model=m&stream=true", UNREADABLE),
]


@pytest.mark.parametrize(("body", "expected"), ODD)
def test_odd_bodies(body: bytes, expected: RequestFields) -> None:
    assert read(body) == expected
    for cut in range(0, len(body), 1 + len(body) // 300):
        assert read(body, cut) == expected


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"true", True),
        (b"1", True),
        (b"1.0", True),
        (b'"true"', True),
        (b'"TRUE"', True),
        (b'"on"', True),
        (b'"yes"', True),
        (b"null", False),
        (b"false", False),
        (b"0", False),
        (b"2", False),
        (b'"false"', False),
        (b'"x"', False),
        (b"[true]", False),
        (b"{}", False),
        (b"truth", False),
        (b"NaN", False),
    ],
)
def test_stream(stream: bytes, expected: bool) -> None:
    body = b'{"model":"m","stream":%b,"max_tokens":7,"user":"u"}' % stream
    assert read(body) == read(body, 5) == fields(stream=expected)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (b"10", 10),
        (b"10.0", 10),
        (b"1e3", 1000),
        (b'"10"', 10),
        (b"0", 0),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", None),
        (b"1" + b"0" * 5000, None),
        (b"1e400", None),
        (b"-1", None),
        (b"10.5", None),
        (b"true", None),
        (b"null", None),
        (b'"x"', None),
        ('"²"'.encode(), None),
        (b'"99999999999999999999"', None),
        (b"[10]", None),
        (b"NaN", None),
        (b"Infinity", None),
        (b"01", None),
    ],
)
def test_max_tokens(number: bytes, expected: int | None) -> None:
    body = b'{"model":"m","stream":true,"max_tokens":%b,"user":"u"}' % number
    assert read(body) == read(body, 5) == fields(max_output_tokens=expected)


@pytest.mark.parametrize("skipped", [b"null", b'"x"', b"-1"])
@pytest.mark.parametrize(
    ("form", "body"),
    [
        (Form.CHAT, b'{"max_tokens":%b,"max_completion_tokens":%b}'),
        (Form.LLAMA, b'{"max_tokens":%b,"n_predict":%b}'),
        (Form.GENERATE, b'{"max_tokens":%b,"sampling_params":{"max_new_tokens":%b}}'),
        (Form.GENERATE, b'{"sampling_params":{"max_tokens":%b,"max_new_tokens":%b}}'),
    ],
)
def test_precedence_of_bounds(form: Form, body: bytes, skipped: bytes) -> None:
    def most(*values: bytes) -> int | None:
        text = body % values
        assert read(text, form=form) == read(text, 7, form=form)
        return read(text, form=form).max_output_tokens

    assert most(b"2", b"1") == 1
    assert most(b"2", skipped) == 2
    assert most(skipped, skipped) is None


NAMED: list[tuple[Form, bytes, dict[str, object]]] = [
    (Form.RESPONSES, b'"max_output_tokens":7', {"max_output_tokens": 7}),
    (Form.RESPONSES, b'"max_tokens":7', {}),
    (Form.RESPONSES, b'"previous_response_id":"resp_1"', {"refers_to": "resp_1"}),
    (Form.RESPONSES, b'"previous_response_id":null', {}),
    (Form.RESPONSES, b'"previous_response_id":7', {}),
    (Form.CHAT, b'"previous_response_id":"resp_1","max_output_tokens":7,"n_predict":7', {}),
    (Form.PLAIN, b'"max_tokens":7', {}),
    (Form.BATCH, b'"input_file_id":"file-1","endpoint":"/v1/completions"', {"refers_to": "file-1"}),
    (Form.MESSAGES, b'"max_tokens":7,"metadata":{"user_id":"u"}', {"max_output_tokens": 7, "user": "u"}),
    (Form.MESSAGES, b'"max_tokens":7,"user":"u"', {"max_output_tokens": 7}),
    (Form.MESSAGES, b'"metadata":{"user_id":7}', {}),
    (Form.MESSAGES, b'"metadata":{"user_id":"%b"}' % (b"u" * 5000), {}),
    (Form.MESSAGES, b'"metadata":"u"', {}),
    (Form.GENERATE, b'"sampling_params":{"max_new_tokens":7,"x":[1]}', {"max_output_tokens": 7}),
    (Form.GENERATE, b'"sampling_params":{"x":"%b","max_tokens":7}' % (b"x" * 9000), {"max_output_tokens": 7}),
    (Form.GENERATE, b'"sampling_params":{"max_new_tokens":7,"x":"%b"}' % (b"x" * 70000), {}),
    (Form.GENERATE, b'"sampling_params":[{"max_new_tokens":7}]', {}),
    (Form.GENERATE, b'"sampling_params":{"max_new_tokens":7,"x":NaN}', {}),
    (Form.GENERATE, b'"sampling_params":null', {}),
    (Form.LLAMA, b'"n_predict":-1', {}),
]


@pytest.mark.parametrize(("form", "member", "expected"), NAMED)
def test_names_of_each_api(form: Form, member: bytes, expected: dict[str, object]) -> None:
    body = b'{"model":"m","stream":true,%b}' % member
    found = {"max_output_tokens": None, "user": None, "refers_to": None} | expected
    for cut in range(0, len(body), 1 + len(body) // 100):
        for said in (read(body, form=form), read(body, cut, form=form)):
            assert (said.model, said.stream, said.state) == ("m", True, BodyState.READ)
            assert {name: getattr(said, name) for name in found} == found


@pytest.mark.parametrize("name", ["model", "stream", "max_tokens", "max_completion_tokens", "user"])
@pytest.mark.parametrize("second", [b'"%b":1', b'"%b" : null', b'"%b"\n:{}', b'"\\u00%x%b":1'])
def test_duplicates_are_refused(name: str, second: bytes) -> None:
    key = name.encode()
    again = second % ((key[0], key[1:]) if second.startswith(b'"\\') else key)
    for body in (b'{"%b":1,"p":[],%b}' % (key, again), b'{%b,"p":"%b","%b":1}' % (again, b"x" * 9000, key)):
        with pytest.raises(ProxyError, match=f"'{name}' more than once") as caught:
            read(body)
        assert (caught.value.code, caught.value.param) == (Code.DUPLICATE_FIELD, name)


def test_a_repeated_field_that_decides_nothing_is_passed() -> None:
    assert read(b'{"n":1,"n":2,"metadata":{"user":1,"user":2},"metadata":{"model":1},' + REST) == fields()


pieces = st.sampled_from(
    [
        b'"model"',
        b'"user"',
        b'"stream"',
        b"model",
        b":",
        b": ",
        b":  ",
        b",",
        b'"',
        b"\\",
        b"\\u006d",
        b"{",
        b"}",
        b"[",
        b"]",
        b"1",
        b"true",
        b" ",
        b"\xff",
    ]
)
members = st.sampled_from(
    [
        b'"model":"m"',
        b'"user": "user"',
        b'"role":"user"',
        b'"user" :"a"',
        b'"p":[{"role": "user"}]',
        b'"stream":true',
        b'"max_tokens":5',
        b'"p":"\\"model\\":"',
        b'"p":":\\"user"',
        b'"metadata":{"user_id":"u","model":"n"}',
        b'"metadata":7',
        b'"sampling_params":{"max_new_tokens":9,"max_tokens":"x"}',
        b'"sampling_params":[{"max_tokens":9}]',
        b'"previous_response_id":"r"',
        b'"input_file_id" : ["f"]',
        b'"n_predict":3',
        b'"max_output_tokens":4',
    ]
)


def outcome(form: Form, body: bytes, *cuts: int) -> RequestFields | str | None:
    try:
        return read(body, *cuts, form=form)
    except ProxyError as refusal:
        return refusal.param


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(Form),
    st.lists(members, max_size=6).map(lambda m: b"{" + b",".join(m) + b"}")
    | st.lists(pieces).map(lambda p: b"{" + b"".join(p) + b"}"),
)
def test_decoding_a_small_body_at_once_is_the_same_as_scanning_it(form: Form, body: bytes) -> None:
    # Two pieces are never decoded at once.
    assert outcome(form, body) == outcome(form, body, len(body) // 2)


def test_usual_bodies_are_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields_module, "TopLevelScanner", None)
    body = {"model": "m", "messages": [{"role": "user", "content": 'é "model" \n'}] * 9, "stream": True, "user": "u"}
    for separators in ((",", ":"), (", ", ": ")):
        text = json.dumps(body, ensure_ascii=False, separators=separators)
        assert read(text.encode()) == fields(max_output_tokens=None)


def test_what_was_fed_may_be_freed_at_once() -> None:
    for size in (10, 9000):
        reader = FieldReader(Form.CHAT)
        for piece in (b'{"model":"m","p":"' + b"x" * size, b'"}'):
            body = bytearray(piece)
            reader.feed(memoryview(body).toreadonly())
            body.clear()
        assert reader.finish().model == "m"


def test_which_types_are_read() -> None:
    for kind in (
        None,
        b"application/json",
        b"Application/JSON; charset=utf-8",
        b"application/vnd.x+json",
        b"application/x-www-form-urlencoded",
    ):
        assert is_json(kind)
    for kind in (b"multipart/form-data; boundary=x", b"text/plain", b"", b"application/jsonl"):
        assert not is_json(kind)
    assert UNKNOWN_FIELDS.state is BodyState.UNKNOWN
