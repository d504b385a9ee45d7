"""One exchange between its two sides: fields, framing of responses, truncation, early answers, and what is counted."""

from __future__ import annotations

import json

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from script import OK, OK_HEARD, asked, conversation, forwarded, get, message, post, relayed
from trioproxy import Deadlines, Limits, Settings

CHUNKED = "Transfer-Encoding: chunked"


# Fields


async def test_fields_of_the_connection_stay_on_it_in_both_directions(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        hop = ["Connection: x-hop, keep-alive", "X-Hop: 1", "Keep-Alive: 5", "TE: trailers", "Proxy-Connection: x"]
        await client.says(get("/", *hop, "Upgrade: h2c", "X-End: 1"))
        upstream = await talk.upstream()
        await upstream.hears(forwarded("GET / HTTP/1.1", "X-End: 1"))
        await upstream.says(message("HTTP/1.1 200 OK", *hop, "X-End: 2", "Content-Length: 2", body="ok"))
        await client.hears(relayed("HTTP/1.1 200 OK", "X-End: 2", "Content-Length: 2", body="ok"))


async def test_repeated_fields_stay_repeated_and_in_order_and_date_and_id_are_not_doubled(
    autojump_clock: MockClock,
) -> None:
    lines = ["Set-Cookie: a=1", "DATE: Thu, 01 Jan 1970 00:00:00 GMT", "X-Request-Id: mine", "Set-Cookie: b=2"]
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(message("HTTP/1.1 200 OK", *lines, "set-cookie: c", "Content-Length: 0"))
        await client.hears(message("HTTP/1.1 200 OK", *lines, "set-cookie: c", "Content-Length: 0"))


async def test_a_second_date_of_the_upstream_is_dropped(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, get("/", "X-Request-Id: mine"))
        await upstream.says(message("HTTP/1.1 204 None", "Date: x", "Date: y", "X-Request-Id: z"))
        await client.hears(message("HTTP/1.1 204 None", "Date: x", "X-Request-Id: z"))


async def test_a_request_that_comes_back_is_a_loop(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get())
        upstream = await talk.upstream()
        sent = await upstream.takes()
        again = await talk.client()
        await again.says(sent)
        heard = await again.hears_refusal(508, "loop_detected")
        assert "points back" in heard
        await again.hears_end()
        await upstream.says(OK)
        await client.hears(OK_HEARD)


# Framing of responses


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    ("fields", "body", "ends"),
    [
        (["Content-Length: 5"], "hello", False),
        (["Content-Length: 0"], "", False),
        ([CHUNKED], "2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nX-T: 1\r\n\r\n", False),
        ([], "hello", True),
    ],
    ids=["length", "empty", "chunked", "until close"],
)
async def test_a_response_is_framed_for_the_client_that_gets_it(
    version: str, fields: list[str], body: str, ends: bool, autojump_clock: MockClock
) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, message(f"GET / HTTP/{version}", "Host: a", "Connection: keep-alive"))
        await upstream.says(message("HTTP/1.1 200 OK", *fields, body=body))
        if ends:
            await upstream.leaves()
        head, _, heard = (await client.takes()).partition("\r\n\r\n")
        by_length = bool(fields) and fields[0].startswith("Content-Length")
        assert ("Content-Length" in head) == by_length
        assert ("transfer-encoding: chunked" in head) == (version == "1.1" and not by_length)
        if by_length:
            assert heard == body
            assert ("connection: keep-alive" in head) == (version == "1.0")
        elif version == "1.1":
            # All that one read brought is one chunk; an end that comes by itself is one too.
            assert heard == "5\r\nhello\r\n0\r\n\r\n"
            assert "connection:" not in head
        else:
            assert heard == "hello"
            assert "connection: close" in head
        if version == "1.0" and not by_length:
            await client.hears_end()
        else:
            await client.says(get("/again"))
            other = await talk.upstream() if ends else upstream
            await other.hears(forwarded("GET /again HTTP/1.1"))
            await other.says(OK)
            await client.hears(OK_HEARD)


@pytest.mark.parametrize(
    ("method", "response", "expected"),
    [
        ("HEAD", message("HTTP/1.1 200 OK", "Content-Length: 5"), ["HTTP/1.1 200 OK", "Content-Length: 5"]),
        ("HEAD", message("HTTP/1.1 200 OK", CHUNKED), ["HTTP/1.1 200 OK"]),
        ("HEAD", message("HTTP/1.1 200 OK", "Content-Type: text/event-stream"), None),
        ("GET", message("HTTP/1.1 304 Same", "Content-Length: 5"), ["HTTP/1.1 304 Same", "Content-Length: 5"]),
        ("GET", message("HTTP/1.1 204 None", "Content-Length: 5"), ["HTTP/1.1 204 None"]),
        ("GET", message("HTTP/1.1 204 None", CHUNKED), ["HTTP/1.1 204 None"]),
    ],
)
async def test_a_response_without_a_body_by_its_kind(
    method: str, response: str, expected: list[str] | None, autojump_clock: MockClock
) -> None:
    """What follows is the next response: both connections go on."""
    expected = expected or ["HTTP/1.1 200 OK", "Content-Type: text/event-stream"]
    async with conversation() as talk:
        client, upstream = await asked(talk, message(f"{method} / HTTP/1.1", "Host: a"))
        await upstream.says(response)
        await client.hears(relayed(*expected))
        await client.says(get("/again"))
        await upstream.hears(forwarded("GET /again HTTP/1.1"))
        await upstream.says(OK)
        await client.hears(OK_HEARD)


@pytest.mark.parametrize(
    ("method", "response", "heard"),
    [
        ("GET", OK, OK_HEARD),
        ("HEAD", message("HTTP/1.1 200 OK", "Content-Length: 2"), relayed("HTTP/1.1 200 OK", "Content-Length: 2")),
        ("GET", message("HTTP/1.1 204 None"), relayed("HTTP/1.1 204 None")),
        ("GET", message("HTTP/1.1 304 Same"), relayed("HTTP/1.1 304 Same")),
        (
            "GET",
            message("HTTP/1.1 200 OK", CHUNKED, body="0\r\n\r\n"),
            relayed("HTTP/1.1 200 OK", more=["transfer-encoding: chunked"], body="0\r\n\r\n"),
        ),
    ],
    ids=["length", "HEAD", "204", "304", "chunked"],
)
@pytest.mark.parametrize("extra", ["x", OK, "\r\n"], ids=["byte", "response", "line"])
async def test_bytes_after_a_response_reach_nobody(
    method: str, response: str, heard: str, extra: str, autojump_clock: MockClock
) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, message(f"{method} / HTTP/1.1", "Host: a"))
        await upstream.says(response + extra)
        await client.hears(heard)
        await upstream.hears_end()
        await client.says(get("/again"))
        await (other := await talk.upstream()).hears(forwarded("GET /again HTTP/1.1"))
        await other.says(OK)
        await client.hears(OK_HEARD)


@pytest.mark.parametrize("close", ["HTTP/1.0 200 OK", "HTTP/1.1 200 OK\r\nConnection: close"])
async def test_a_connection_that_the_upstream_gives_up_is_not_used_again(close: str, autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(message(close, "Content-Length: 2", body="ok"))
        await client.hears(relayed("HTTP/1.1 200 OK", "Content-Length: 2", body="ok"))
        await upstream.hears_end()
        assert talk.proxy.statistics().pool.idle == 0


# Responses that break


@pytest.mark.parametrize("at", ["head", "body"])
@pytest.mark.parametrize(
    ("fields", "body"),
    [(["Content-Length: 5"], "hell"), ([CHUNKED], "5\r\nhello\r\n"), ([CHUNKED], "5\r\nhel"), ([CHUNKED], "")],
    ids=["length", "chunks", "chunk", "empty"],
)
async def test_a_response_that_is_cut_never_looks_whole(
    fields: list[str], body: str, at: str, autojump_clock: MockClock
) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(message("HTTP/1.1 200 OK", *fields, body=body if at == "head" else ""))
        if at == "body":
            await wait_all_tasks_blocked()
            await upstream.says(body) if body else None
        await upstream.leaves()
        head, _, heard = (await client.takes()).partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 OK")
        if "transfer-encoding: chunked" in head:
            assert not heard.endswith("0\r\n\r\n")
        else:
            assert "Content-Length: 5" in head
            assert heard == "hell"
        await client.hears_end()
        assert talk.count("upstream_error") == 1
        assert talk.proxy.statistics().errors == {"upstream_closed": 1}


async def test_broken_framing_after_the_head_cuts_the_response(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(message("HTTP/1.1 200 OK", CHUNKED, body="2\r\nhe\r\n"))
        await wait_all_tasks_blocked()
        await upstream.says("zz\r\n")
        assert (await client.takes()).endswith("\r\n\r\n2\r\nhe\r\n")
        await client.hears_end()
        await upstream.hears_end()
        assert talk.proxy.statistics().errors == {"bad_response": 1}


async def test_broken_framing_that_comes_with_the_head_is_a_502(autojump_clock: MockClock) -> None:
    """Nothing has been sent then: a connection closed without an answer would be tried again by clients."""
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(message("HTTP/1.1 200 OK", CHUNKED, body="zz\r\n"))
        await client.hears_refusal(502, "bad_response", closes=False)
        await upstream.hears_end()


@pytest.mark.parametrize(
    "answer",
    [
        "nonsense\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        message("HTTP/1.1 200 OK", "Content-Length: 2", CHUNKED, body="ok"),
        message("HTTP/1.1 200 OK", "Content-Length: 2", "Content-Length: 2", body="ok"),
        message("HTTP/1.1 200 OK", "Transfer-Encoding: gzip", body="ok"),
        message("HTTP/1.1 200 OK", "X: " + "y" * 65536),
        message("HTTP/1.1 101 Switching", "Upgrade: h2c"),
        message("HTTP/1.1 103 Hints") * 6,
    ],
)
async def test_an_answer_that_is_none_is_a_502(answer: str, autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, message("GET / HTTP/1.0", "Host: a", "Connection: keep-alive"))
        await upstream.says(answer)
        await client.hears_refusal(502, "bad_response", closes=False)
        await upstream.hears_end()
        assert talk.count("upstream_error") == 1


@pytest.mark.parametrize("before", ["", "HTTP/1.1 20", message("HTTP/1.1 103 Hints", "Link: x")])
async def test_an_upstream_that_ends_before_its_head_is_a_502(before: str, autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, post("abc"))
        await upstream.says(before)
        if before.endswith("\r\n"):
            await client.hears(message("HTTP/1.1 103 Hints", "Link: x"))
        await upstream.leaves()
        await client.hears_refusal(502, "upstream_closed", closes=False)
        await client.says(get())
        other = await talk.upstream()
        await other.hears(forwarded("GET / HTTP/1.1"))
        await other.says(OK)
        await client.hears(OK_HEARD)


# Interim responses, and bodies that wait for one


async def test_interim_responses_go_through_but_not_to_old_clients(autojump_clock: MockClock) -> None:
    early = message("HTTP/1.1 103 Early Hints", "Link: </a>", "Connection: x-hop", "X-Hop: 1", "Content-Length: 1")
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(message("HTTP/1.1 100 Continue") + early)
        await client.hears(message("HTTP/1.1 103 Early Hints", "Link: </a>"))
        await upstream.says(early + OK)
        await client.hears(message("HTTP/1.1 103 Early Hints", "Link: </a>") + OK_HEARD)
        await client.says(message("GET / HTTP/1.0", "Host: a", "Connection: keep-alive"))
        await upstream.takes()
        await upstream.says(early * 5 + OK)
        keeps = ["connection: keep-alive"]
        await client.hears(relayed("HTTP/1.1 200 OK", "Content-Length: 2", body="ok", more=keeps))


@pytest.mark.parametrize("mode", ["buffer", "stream"])
async def test_a_client_is_asked_for_the_body_that_it_holds_back(mode: str, autojump_clock: MockClock) -> None:
    async with conversation(Settings(body="stream" if mode == "stream" else "buffer")) as talk:
        client = await talk.client()
        await client.says(message("POST /x HTTP/1.1", "Host: a", "Expect: 100-continue", "Content-Length: 3"))
        await client.hears(message("HTTP/1.1 100 Continue"))
        await client.says("abc")
        upstream = await talk.upstream()
        await upstream.hears(forwarded("POST /x HTTP/1.1", length=3, body="abc"))
        await upstream.says(OK)
        await client.hears(OK_HEARD)


async def test_a_client_whose_body_has_begun_is_not_asked_for_it(autojump_clock: MockClock) -> None:
    async with conversation(Settings(body="buffer")) as talk:
        client = await talk.client()
        await client.says(message("POST /x HTTP/1.1", "Host: a", "Expect: 100-continue", "Content-Length: 3", body="a"))
        await client.hears_nothing()
        await client.says("bc")
        await (upstream := await talk.upstream()).hears(forwarded("POST /x HTTP/1.1", length=3, body="abc"))
        await upstream.says(OK)
        await client.hears(OK_HEARD)


async def test_a_body_that_is_too_long_is_refused_instead_of_asked_for(autojump_clock: MockClock) -> None:
    async with conversation(Settings(limits=Limits(body_size=2))) as talk:
        client = await talk.client()
        await client.says(message("POST /x HTTP/1.1", "Host: a", "Expect: 100-continue", "Content-Length: 3"))
        await client.hears_refusal(413, "body_too_large")
        await client.hears_end()


@pytest.mark.parametrize("fields", [["Content-Length: 300000"], [CHUNKED]])
async def test_an_early_response_ends_the_upload_and_both_connections(
    fields: list[str], autojump_clock: MockClock
) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(message("POST /x HTTP/1.1", "Host: a", *fields))
        await client.says("8\r\nabcdefgh\r\n" if fields == [CHUNKED] else "x" * 1000)
        upstream = await talk.upstream()
        await upstream.takes()
        await upstream.says(message("HTTP/1.1 413 No", "Content-Length: 2", body="no"))
        await client.hears(relayed("HTTP/1.1 413 No", "Content-Length: 2", body="no", more=["connection: close"]))
        await upstream.hears_end()
        await client.says("x" * 100_000)
        await upstream.hears("")
        await client.hears_end()
        assert talk.count("completed") == 1


# What is counted


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_is_counted(stream: bool, autojump_clock: MockClock) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    text = json.dumps({"choices": [], "usage": usage})
    if stream:
        text = f"data: {text}\n\ndata: [DONE]\n\n"
    kind = "text/event-stream" if stream else "application/json"
    async with conversation(Settings(deadlines=Deadlines(idle=1))) as talk:
        client, upstream = await asked(talk, post('{"model": "m"}', "/v1/chat/completions"))
        await upstream.says(message("HTTP/1.1 200 OK", f"Content-Type: {kind}", f"Content-Length: {len(text)}"))
        for byte in text:
            await upstream.says(byte)
        assert (await client.takes()).endswith(text)
        assert talk.proxy.statistics().tokens == {"prompt": 7, "completion": 3, "cached": 2}
