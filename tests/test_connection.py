"""One client's connection: the order of its requests, what ends it, and what is refused before an exchange begins."""

from __future__ import annotations

import re

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from script import OK, OK_HEARD, conversation, forwarded, get, message, post, relayed
from trioproxy import Limits, Settings


async def test_a_request_and_its_response_to_the_byte(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(message("POST /x?q=%zz HTTP/1.1", "Host: a", "X-A: 1", "Content-Length: 3", body="abc"))
        upstream = await talk.upstream()
        await upstream.hears(forwarded("POST /x?q=%zz HTTP/1.1", "X-A: 1", length=3, body="abc"))
        await upstream.says(message("HTTP/1.1 201 Made", "X-B: 2", "Content-Length: 2", body="ok"))
        await client.hears(relayed("HTTP/1.1 201 Made", "X-B: 2", "Content-Length: 2", body="ok"))
        assert talk.count("completed") == 1


# Order


async def test_pipelined_requests_are_served_one_by_one_in_order(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get("/1") + post("abc", "/2") + get("/3"))
        upstream = await talk.upstream()
        for line, body in (("GET /1", ""), ("POST /2", "abc"), ("GET /3", "")):
            await upstream.hears(forwarded(f"{line} HTTP/1.1", length=len(body) or None, body=body))
            await client.hears_nothing()
            await upstream.says(OK)
            await client.hears(OK_HEARD)


@pytest.mark.parametrize("cut", range(1, len(get("/1") + post("abc", "/2"))))
async def test_where_the_bytes_of_pipelined_requests_are_cut_changes_nothing(
    cut: int, autojump_clock: MockClock
) -> None:
    both = get("/1") + post("abc", "/2")
    async with conversation() as talk:
        client = await talk.client()
        await client.says(both[:cut])
        await wait_all_tasks_blocked()
        await client.says(both[cut:])
        upstream = await talk.upstream()
        await upstream.hears(forwarded("GET /1 HTTP/1.1"))
        await upstream.says(OK)
        await upstream.hears(forwarded("POST /2 HTTP/1.1", length=3, body="abc"))
        await upstream.says(OK)
        await client.hears(OK_HEARD * 2)


async def test_what_is_read_ahead_is_bounded(autojump_clock: MockClock) -> None:
    """Beyond the bound reading stops until the request that is served has ended; nothing is lost."""
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get("/1"))
        upstream = await talk.upstream()
        await upstream.hears(forwarded("GET /1 HTTP/1.1"))
        await client.says(post("x" * 300_000, "/2"))
        await upstream.hears_nothing()
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        # Nobody knows the path, so that its body is streamed: as long as it is unread, it is not held either.
        await upstream.hears(forwarded("POST /2 HTTP/1.1", length=300_000, body="x" * 300_000))
        await upstream.says(OK)
        await client.hears(OK_HEARD)


# Keep-alive and close


@pytest.mark.parametrize(
    ("version", "connection", "stays"),
    [
        ("1.1", None, True),
        ("1.1", "keep-alive", True),
        ("1.1", "close", False),
        ("1.1", "x, Close", False),
        ("1.0", None, False),
        ("1.0", "keep-alive", True),
        ("1.0", "Keep-Alive", True),
        ("1.0", "close, keep-alive", False),
    ],
)
async def test_who_keeps_a_connection_open(
    version: str, connection: str | None, stays: bool, autojump_clock: MockClock
) -> None:
    async with conversation() as talk:
        client = await talk.client()
        fields = [] if connection is None else [f"Connection: {connection}"]
        await client.says(message(f"GET / HTTP/{version}", "Host: a", *fields))
        upstream = await talk.upstream()
        sent = await upstream.takes()
        assert "\r\nconnection:" not in sent.lower()
        assert f"\r\nvia: {version} trioproxy-" in sent
        await upstream.says(OK)
        ours = [] if stays and version == "1.1" else ["connection: keep-alive" if stays else "connection: close"]
        await client.hears(relayed("HTTP/1.1 200 OK", "Content-Length: 2", body="ok", more=ours))
        if stays:
            await client.says(get("/again"))
            await upstream.hears(forwarded("GET /again HTTP/1.1"))
            await upstream.says(OK)
            await client.hears(OK_HEARD)
        else:
            await client.hears_end()


async def test_after_a_last_response_what_the_client_still_sends_is_not_a_request(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get("/1", "Connection: close") + get("/2"))
        upstream = await talk.upstream()
        await upstream.hears(forwarded("GET /1 HTTP/1.1"))
        await upstream.says(OK)
        await client.hears(relayed("HTTP/1.1 200 OK", "Content-Length: 2", body="ok", more=["connection: close"]))
        await client.says(get("/3"))
        await client.hears_end()
        assert talk.dialled == ["10.0.0.1"]


async def test_a_client_that_only_shuts_its_sending_side_has_left_by_default(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get())
        upstream = await talk.upstream()
        await upstream.hears(forwarded("GET / HTTP/1.1"))
        await client.ends()
        await upstream.hears_end()
        await client.hears_end()
        assert talk.count("client_closed") == 1


async def test_a_client_that_only_shuts_its_sending_side_is_served_if_that_is_allowed(
    autojump_clock: MockClock,
) -> None:
    async with conversation(Settings(client_half_close="allow")) as talk:
        client = await talk.client()
        await client.says(get("/1") + get("/2"))
        await client.ends()
        upstream = await talk.upstream()
        for path in ("/1", "/2"):
            await upstream.hears(forwarded(f"GET {path} HTTP/1.1"))
            await upstream.says(OK)
            await client.hears(OK_HEARD)
        await client.hears_end()
        assert talk.count("completed") == 2


@pytest.mark.parametrize("cut", [10, len(get("/2")) + 5], ids=["head", "body"])
async def test_a_request_that_is_cut_ends_the_connection_even_if_half_close_is_allowed(
    cut: int, autojump_clock: MockClock
) -> None:
    async with conversation(Settings(client_half_close="allow")) as talk:
        client = await talk.client()
        await client.says(get("/1") + post("abcdefgh" * 8, "/v1/completions")[: -cut + 8 * 8])
        await client.ends()
        upstream = await talk.upstream()
        await upstream.hears(forwarded("GET /1 HTTP/1.1"))
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        await client.hears_end()


@pytest.mark.parametrize("half_close", ["cancel", "allow"])
async def test_a_refusal_reaches_a_client_that_has_shut_its_sending_side(
    half_close: str, autojump_clock: MockClock
) -> None:
    """There is nothing to cancel, so that there is no reason to leave it without an answer."""
    settings = Settings(client_half_close="allow" if half_close == "allow" else "cancel")
    async with conversation(settings) as talk:
        client = await talk.client()
        await client.says("nonsense\r\n\r\n")
        await client.ends()
        await client.hears_refusal(400, "bad_request")
        await client.hears_end()


# Refusals of a head, and of a body

REFUSED = [
    pytest.param("nonsense\r\n\r\n", 400, "bad_request", id="no request line"),
    pytest.param("GET / HTTP/1.1\nHost: a\n\n", 400, "bad_request", id="bare LF"),
    pytest.param(message("GET / HTTP/1.1"), 400, "bad_request", id="no Host"),
    pytest.param(message("GET / HTTP/1.1", "Host: a", "Host: a"), 400, "bad_request", id="two Hosts"),
    pytest.param(get("/", "Content-Length: 1, 1"), 400, "bad_request", id="list of lengths"),
    pytest.param(get("/", "Content-Length: 5", "Transfer-Encoding: chunked"), 400, "bad_request", id="two framings"),
    pytest.param(get("/%00"), 400, "bad_request", id="NUL in the path"),
    pytest.param(message("CONNECT a:443 HTTP/1.1", "Host: a"), 405, "method_not_allowed", id="CONNECT"),
    pytest.param(get("/", "Expect: miracles"), 417, "expectation_failed", id="unknown expectation"),
    pytest.param(get("/" + "x" * 8192), 414, "target_too_long", id="long target"),
    pytest.param(get("/", "X: " + "y" * 65536), 431, "head_too_large", id="large head"),
    pytest.param(get("/", *["X: y"] * 100), 431, "head_too_large", id="many fields"),
    pytest.param(get("/", "Transfer-Encoding: gzip, chunked"), 501, "transfer_coding_unsupported", id="other coding"),
    pytest.param(message("GET / HTTP/1.2", "Host: a"), 505, "http_version_unsupported", id="other version"),
    pytest.param(message("GET / HTTP/2.0", "Host: a"), 505, "http_version_unsupported", id="HTTP/2"),
    pytest.param(get("/", "Content-Length: 67108865"), 413, "body_too_large", id="long body"),
]


@pytest.mark.parametrize(("text", "status", "code"), REFUSED)
async def test_a_head_that_cannot_be_served_is_refused_and_the_connection_ends(
    text: str, status: int, code: str, autojump_clock: MockClock
) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(text)
        await client.hears_refusal(status, code)
        await client.says(get("/after"))
        await client.hears_end()
        assert talk.dialled == []
        assert talk.count("refused") == 1
        assert talk.proxy.statistics().errors == {code: 1}


async def test_a_refusal_waits_for_its_turn(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get("/1") + "nonsense\r\n\r\n")
        upstream = await talk.upstream()
        await upstream.hears(forwarded("GET /1 HTTP/1.1"))
        await client.hears_nothing()
        await upstream.says(OK)
        heard = await client.takes()
        first, _, second = heard.partition("ok")
        assert first.startswith("HTTP/1.1 200")
        assert second.startswith("HTTP/1.1 400")
        await client.hears_end()


async def test_405_names_the_methods_that_are_allowed(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(message("CONNECT a:443 HTTP/1.1", "Host: a"))
        heard = await client.hears_refusal(405, "method_not_allowed")
        assert re.search(r"\r\nallow: [A-Z, ]+\r\n", heard)


LIMITED = Limits(body_size=1000)


@pytest.mark.parametrize("path", ["/x", "/v1/completions"])
@pytest.mark.parametrize("mode", ["auto", "buffer", "stream"])
async def test_a_body_at_the_limit_passes_and_one_byte_more_is_refused_by_its_length(
    mode: str, path: str, autojump_clock: MockClock
) -> None:
    async with conversation(_with_mode(mode)) as talk:
        client = await talk.client()
        await client.says(post("x" * 1000, path))
        upstream = await talk.upstream()
        await upstream.hears(forwarded(f"POST {path} HTTP/1.1", length=1000, body="x" * 1000))
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        await client.says(message(f"POST {path} HTTP/1.1", "Host: a", "Content-Length: 1001"))
        heard = await client.hears_refusal(413, "body_too_large")
        assert "1000 bytes" in heard
        await client.hears_end()


@pytest.mark.parametrize("mode", ["buffer", "stream"])
@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
async def test_a_chunked_body_is_counted_to_the_byte(mode: str, piece: int, autojump_clock: MockClock) -> None:
    def chunks(count: int) -> str:
        sizes = [piece] * (count // piece) + [count % piece] * (count % piece > 0)
        return "".join(f"{size:x}\r\n{'x' * size}\r\n" for size in sizes)

    request = message("POST /x HTTP/1.1", "Host: a", "Transfer-Encoding: chunked")
    async with conversation(_with_mode(mode)) as talk:
        client = await talk.client()
        await client.says(request + chunks(1000) + "0\r\n\r\n")
        upstream = await talk.upstream()
        sent = await upstream.takes()
        assert sent.count("x" * min(piece, 10)) >= 1000 // max(piece, 10)
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        await client.says(request + chunks(1001))
        await client.hears_refusal(413, "body_too_large")
        await client.hears_end()
        if mode == "stream":
            assert "0\r\n\r\n" not in await upstream.takes()
            assert upstream.ended


def _with_mode(mode: str) -> Settings:
    match mode:
        case "buffer" | "stream":
            return Settings(body=mode, limits=LIMITED)
        case _:
            return Settings(limits=LIMITED)
