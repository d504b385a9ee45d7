"""What bodies say, through the proxy: usage asked for and taken out again, usage that nobody knows, encoded bodies."""

# pyright: reportPrivateUsage=false
# Statistics do not say what is noted of one request.

from __future__ import annotations

import gzip
import json

import pytest
from trio.testing import MockClock

from script import Conversation, asked, conversation, get, message, post
from trioproxy import Limits, Settings
from trioproxy.apis.usage import Usage
from trioproxy.record import Outcome, RequestRecord

CHAT = "/v1/chat/completions"
INJECT = Settings(usage="inject")
ASKED = '{"stream_options":{"include_usage":true},"model":"m","stream":true}'
LEFT_OPEN = '{"model":"m","stream":true}'
DELTA = 'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
REPORT = 'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'
DONE = "data: [DONE]\n\n"
STREAM = "Content-Type: text/event-stream"
CHUNKED = "Transfer-Encoding: chunked"
USAGE = Usage(7, 3, 10, None)


def chunked(text: str, *, last: bool = True) -> str:
    return f"{len(text):x}\r\n{text}\r\n" + "0\r\n\r\n" * last


def payload(heard: str) -> str:
    """The body of a chunked response, which must be whole."""
    rest = heard.partition("\r\n\r\n")[2]
    found = ""
    while True:
        size, _, rest = rest.partition("\r\n")
        count = int(size, 16)
        found += rest[:count]
        assert rest[count : count + 2] == "\r\n"
        rest = rest[count + 2 :]
        if not count:
            assert not rest
            return found


def records(talk: Conversation) -> list[RequestRecord]:
    """What is noted of the requests of a conversation from now on."""
    found: list[RequestRecord] = []
    talk.proxy._runtime.watchers.append(found.append)
    return found


async def test_a_stream_is_asked_for_its_usage_and_the_report_is_taken_out(autojump_clock: MockClock) -> None:
    async with conversation(INJECT) as talk:
        found = records(talk)
        client = await talk.client()
        await client.says(post(LEFT_OPEN, CHAT))
        upstream = await talk.upstream()
        heard = await upstream.takes()
        assert heard.endswith(f"content-length: {len(ASKED)}\r\n\r\n{ASKED}")
        await upstream.says(message("HTTP/1.1 200 OK", STREAM, CHUNKED))
        for byte in chunked(DELTA, last=False) + chunked(REPORT + DONE):
            await upstream.says(byte)
        assert payload(await client.takes()) == DELTA + DONE
        assert (found[0].usage, found[0].usage_unknown, found[0].events) == (USAGE, False, 3)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize(
    "body",
    [
        '{"model":"m"}',
        '{"stream":true,"stream_options":{"include_usage":true}}',
        '{"stream":true,"stream_options":{"include_usage":false}}',
    ],
)
async def test_a_client_that_spoke_of_it_gets_what_it_asked_for(
    path: str, body: str, autojump_clock: MockClock
) -> None:
    async with conversation(INJECT) as talk:
        client = await talk.client()
        await client.says(post(body, path))
        upstream = await talk.upstream()
        assert (await upstream.takes()).endswith(f"\r\n\r\n{body}")
        await upstream.says(message("HTTP/1.1 200 OK", STREAM, CHUNKED, body=chunked(DELTA + REPORT + DONE)))
        assert payload(await client.takes()) == DELTA + REPORT + DONE


@pytest.mark.parametrize(
    ("settings", "path"),
    [(Settings(), CHAT), (INJECT, "/v1/responses"), (INJECT, "/v1/messages"), (INJECT, "/generate")],
)
async def test_nothing_is_asked_for_otherwise(settings: Settings, path: str, autojump_clock: MockClock) -> None:
    async with conversation(settings) as talk:
        client = await talk.client()
        await client.says(post(LEFT_OPEN, path))
        upstream = await talk.upstream()
        assert (await upstream.takes()).endswith(f"\r\n\r\n{LEFT_OPEN}")
        await upstream.says(message("HTTP/1.1 200 OK", STREAM, CHUNKED, body=chunked(REPORT)))
        assert payload(await client.takes()) == REPORT


@pytest.mark.parametrize(
    "fields",
    [[STREAM, f"Content-Length: {len(REPORT)}"], ["Content-Type: text/plain"], [STREAM, "Content-Encoding: br"]],
)
async def test_what_cannot_be_taken_out_stays(fields: list[str], autojump_clock: MockClock) -> None:
    async with conversation(INJECT) as talk:
        client, upstream = await asked(talk, post(LEFT_OPEN, CHAT))
        await upstream.says(message("HTTP/1.1 200 OK", *fields, body=REPORT))
        await upstream.leaves()
        assert REPORT in await client.takes()


async def test_a_stream_to_a_client_of_old_ends_with_its_connection(autojump_clock: MockClock) -> None:
    request = message("POST /v1/completions HTTP/1.0", "Host: a", f"Content-Length: {len(LEFT_OPEN)}", body=LEFT_OPEN)
    async with conversation(INJECT) as talk:
        client, upstream = await asked(talk, request)
        await upstream.says(message("HTTP/1.1 200 OK", STREAM))
        await upstream.says(DELTA + REPORT[:30])
        await upstream.says(REPORT[30:] + DELTA[:30])
        assert (await client.takes()).endswith(f"\r\n\r\n{DELTA}")
        await upstream.leaves()
        assert await client.takes() == DELTA[:30]
        await client.hears_end()


async def test_a_stream_that_breaks_off_shows_it_and_what_was_seen_counts(autojump_clock: MockClock) -> None:
    continuous = DELTA.replace("}]}", '}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}')
    async with conversation(INJECT) as talk:
        found = records(talk)
        client, upstream = await asked(talk, post(LEFT_OPEN, CHAT))
        await upstream.says(message("HTTP/1.1 200 OK", STREAM, CHUNKED))
        await upstream.says(chunked(continuous + DELTA[:20], last=False))
        await upstream.leaves()
        assert (await client.takes()).endswith(chunked(continuous, last=False))
        await client.hears_end()
        assert found[0].outcome is Outcome.UPSTREAM_ERROR
        assert (found[0].usage, found[0].usage_unknown) == (USAGE, False)


async def test_a_client_that_leaves_has_used_what_was_seen(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        found = records(talk)
        client, upstream = await asked(talk, post(LEFT_OPEN, "/v1/messages"))
        await upstream.says(message("HTTP/1.1 200 OK", STREAM, CHUNKED))
        start = {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}}
        await upstream.says(chunked(f"event: message_start\ndata: {json.dumps(start)}\n\n", last=False))
        await client.takes()
        await client.leaves()
        await upstream.hears_end()
        assert found[0].outcome is Outcome.CLIENT_CLOSED
        assert found[0].usage == Usage(7, 1, None, None)


@pytest.mark.parametrize(
    ("request_", "fields", "body", "unknown"),
    [
        (post(LEFT_OPEN, CHAT), [STREAM], DELTA + DONE, True),
        (post(LEFT_OPEN, CHAT), [STREAM, "Content-Encoding: gzip"], REPORT, True),
        (post(LEFT_OPEN, CHAT), ["Content-Type: application/json"], '{"usage":{"prompt_tokens":"x"}}', True),
        (post(LEFT_OPEN, CHAT), [STREAM], REPORT, False),
        (get("/v1/models"), ["Content-Type: application/json"], "{}", False),
        (post("{}", "/tokenize"), ["Content-Type: application/json"], "{}", False),
        (get("/"), [STREAM], DELTA, False),
    ],
)
async def test_usage_is_unknown_where_there_should_be_some(
    request_: str, fields: list[str], body: str, unknown: bool, autojump_clock: MockClock
) -> None:
    async with conversation() as talk:
        found = records(talk)
        client, upstream = await asked(talk, request_)
        await upstream.says(message("HTTP/1.1 200 OK", *fields, f"Content-Length: {len(body)}", body=body))
        assert (await client.takes()).endswith(body)
        assert found[0].usage_unknown == unknown


async def test_an_error_of_the_upstream_costs_nothing(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        found = records(talk)
        client, upstream = await asked(talk, post(LEFT_OPEN, CHAT))
        await upstream.says(message("HTTP/1.1 429 No", "Content-Length: 2", body="{}"))
        await client.takes()
        assert (found[0].usage, found[0].usage_unknown) == (None, False)


# Encoded bodies


def encoded(body: str, coding: str = "gzip", *, data: bytes | None = None) -> tuple[str, str]:
    """A request with an encoded body, and that body."""
    text = (gzip.compress(body.encode()) if data is None else data).decode("latin-1")
    return post(text, CHAT, "Content-Type: application/json", f"Content-Encoding: {coding}"), text


@pytest.mark.parametrize("settings", [Settings(), INJECT, Settings(body="buffer")])
async def test_an_encoded_body_is_read_and_goes_on_as_it_came(settings: Settings, autojump_clock: MockClock) -> None:
    async with conversation(settings) as talk:
        found = records(talk)
        client = await talk.client()
        request, body = encoded('{"messages":"%s","model":"m","stream":true,"max_tokens":7}' % ("x" * 200_000))
        await client.says(request)
        upstream = await talk.upstream()
        heard = await upstream.takes()
        assert heard.endswith(f"content-length: {len(body)}\r\n\r\n{body}")
        assert "Content-Encoding: gzip" in heard
        await upstream.says(message("HTTP/1.1 200 OK", STREAM, CHUNKED, body=chunked(DELTA)))
        assert payload(await client.takes()) == DELTA
        assert (found[0].model, found[0].stream, found[0].max_output_tokens) == ("m", True, 7)


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "x", "gzip\r\nContent-Encoding: gzip"])
async def test_what_cannot_be_decoded_goes_on_unread(coding: str, autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        found = records(talk)
        client, upstream = await asked(talk, encoded(LEFT_OPEN, coding)[0])
        await upstream.says(message("HTTP/1.1 415 No", "Content-Length: 0"))
        await client.takes()
        assert (found[0].model, found[0].stream) == (None, False)


@pytest.mark.parametrize(
    "limits",
    [Limits(decoded_ratio=50), Limits(decoded_size=1 << 20), Limits(decoded_size=1 << 20, decoded_ratio=10**9)],
)
async def test_a_bomb_is_refused(limits: Limits, autojump_clock: MockClock) -> None:
    async with conversation(Settings(limits=limits)) as talk:
        client = await talk.client()
        await client.says(encoded('{"model":"%s"}' % ("x" * (3 << 20)))[0])
        assert "decodes to more than" in await client.hears_refusal(413, "body_too_large", closes=False)


async def test_a_duplicate_in_an_encoded_body_is_refused(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(encoded('{"model":"a","model":"b"}')[0])
        await client.hears_refusal(400, "duplicate_field", closes=False)
