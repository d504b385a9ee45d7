"""When a request is sent again, when to another endpoint, and when it must not be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from script import OK, OK_HEARD, Conversation, Peer, asked, conversation, forwarded, get, message, post, relayed
from trioproxy.transport import Buffer, Transport

CHUNKED = "Transfer-Encoding: chunked"


async def _stale(talk: Conversation) -> tuple[Peer, Peer]:
    """A client, and an upstream whose idle connection ends at its next use."""
    client, upstream = await asked(talk, get("/first"))
    await upstream.says(OK)
    await client.hears(OK_HEARD)
    return client, upstream


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
async def test_a_request_on_a_stale_connection_is_sent_once_more_on_a_fresh_one(
    method: str, autojump_clock: MockClock
) -> None:
    async with conversation() as talk:
        client, stale = await _stale(talk)
        await client.says(message(f"{method} /x HTTP/1.1", "Host: a"))
        await stale.hears(forwarded(f"{method} /x HTTP/1.1"))
        await stale.leaves()
        fresh = await talk.upstream()
        await fresh.hears(forwarded(f"{method} /x HTTP/1.1"))
        await fresh.says(message("HTTP/1.1 204 None"))
        await client.hears(relayed("HTTP/1.1 204 None"))
        assert talk.count("completed") == 2


async def test_the_second_attempt_is_the_last(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, stale = await _stale(talk)
        await client.says(get())
        await stale.takes()
        await stale.leaves()
        fresh = await talk.upstream()
        await fresh.takes()
        await fresh.leaves()
        await client.hears_refusal(502, "upstream_closed", closes=False)
        assert talk.dialled == ["10.0.0.1"] * 2


@pytest.mark.parametrize("method", ["POST", "PATCH", "UNKNOWN"])
@pytest.mark.parametrize("body", ["", "abc"])
async def test_a_request_that_may_have_been_acted_on_is_not_sent_again(
    method: str, body: str, autojump_clock: MockClock
) -> None:
    async with conversation() as talk:
        client, stale = await _stale(talk)
        await client.says(message(f"{method} /x HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", body=body))
        await stale.takes()
        await stale.leaves()
        await client.hears_refusal(502, "upstream_closed", closes=False)
        assert talk.dialled == ["10.0.0.1"]


async def test_a_response_that_has_begun_is_not_asked_for_again(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, stale = await _stale(talk)
        await client.says(get())
        await stale.takes()
        await stale.says("H")
        await wait_all_tasks_blocked()
        await stale.leaves()
        await client.hears_refusal(502, "upstream_closed", closes=False)


@pytest.mark.links("memory", reason="the others see that an idle connection has ended: the test below")
async def test_a_post_on_a_stream_that_broke_may_have_been_written(autojump_clock: MockClock) -> None:
    """A stream does not tell how much of a failed send it has passed on, so that nobody may send it again."""
    async with conversation() as talk:
        client, stale = await _stale(talk)
        await stale.leaves()
        await client.says(post("abc"))
        await client.hears_refusal(502, "upstream_closed", closes=False)
        assert talk.dialled == ["10.0.0.1"]


@pytest.mark.links("unix", "tls", reason="a stream in memory does not show that it has ended before it is read")
async def test_a_post_is_not_sent_on_a_connection_that_has_ended(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, stale = await _stale(talk)
        await stale.leaves()
        await client.says(post("abc"))
        fresh = await talk.upstream()
        await fresh.hears(forwarded("POST /x HTTP/1.1", length=3, body="abc"))
        await fresh.says(OK)
        await client.hears(OK_HEARD)


@pytest.mark.links("memory", "unix", reason="of what was encrypted, none may be taken for not written")
async def test_a_post_of_which_nothing_was_written_is_sent_on_a_fresh_connection(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses the first byte, as it does on a connection that was reset just after its check-out."""
    broken: list[Transport] = []

    async with conversation() as talk:
        client, _ = await _stale(talk)
        kind = type(talk.transports[0])
        as_it_was = kind.send_nowait

        def send_nowait(self: Transport, buffers: Sequence[Buffer]) -> int:
            if not broken:
                broken.append(self)
                raise trio.BrokenResourceError
            return as_it_was(self, buffers)

        monkeypatch.setattr(kind, "send_nowait", send_nowait)
        await client.says(post("abc"))
        fresh = await talk.upstream()
        await fresh.hears(forwarded("POST /x HTTP/1.1", length=3, body="abc"))
        await fresh.says(OK)
        await client.hears(OK_HEARD)


async def test_an_upstream_that_is_gone_when_its_stale_connection_fails_is_stood_in_for(
    autojump_clock: MockClock,
) -> None:
    async with conversation(upstreams=2) as talk:
        client, stale = await _stale(talk)
        await client.says(get("/2"))
        await (other := await talk.upstream()).says(OK)
        await client.takes()
        await other.takes()
        talk.refusing.add("10.0.0.1")
        await client.says(get("/3"))
        await stale.hears(forwarded("GET /3 HTTP/1.1"))
        await stale.leaves()
        await other.hears(forwarded("GET /3 HTTP/1.1"))
        await other.says(OK)
        await client.hears(OK_HEARD)


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
async def test_an_endpoint_that_cannot_be_reached_is_stood_in_for(method: str, autojump_clock: MockClock) -> None:
    async with conversation(upstreams=3) as talk:
        talk.refusing = {"10.0.0.1", "10.0.0.2"}
        client = await talk.client()
        await client.says(message(f"{method} / HTTP/1.1", "Host: a", "Content-Length: 3", body="abc"))
        upstream = await talk.upstream()
        await upstream.hears(forwarded(f"{method} / HTTP/1.1", length=3, body="abc"))
        assert upstream.name == "10.0.0.3"
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        assert talk.dialled == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


async def test_when_no_endpoint_can_be_reached_it_is_a_503(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Which one and why is for the log: no client needs the address of a model server."""
    async with conversation(upstreams=2) as talk:
        talk.refusing = {"10.0.0.1", "10.0.0.2"}
        client = await talk.client()
        await client.says(post("abc"))
        heard = await client.hears_refusal(503, "connect_failed", closes=False)
        assert "10.0.0.2" not in heard
        assert f"{talk.link.url('10.0.0.2')}: Connection refused" in caplog.text
        assert talk.dialled == ["10.0.0.1", "10.0.0.2"]
        talk.refusing.clear()
        await client.says(post("abc"))
        await (await talk.upstream()).takes()


async def test_the_log_tells_once_that_an_endpoint_is_passed_over_and_once_that_it_is_back(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The requests succeed elsewhere, so that nothing else would tell."""
    async with conversation(upstreams=2) as talk:
        client = await talk.client()

        async def ask(number: int) -> None:
            await client.says(get())
            await wait_all_tasks_blocked()
            upstream = talk.answering(f"10.0.0.{number}")
            await upstream.takes()
            await upstream.says(OK)
            await client.hears(OK_HEARD)

        url = talk.link.url("10.0.0.1")
        talk.refusing.add("10.0.0.1")
        for _ in range(4):
            await ask(2)
        (message,) = [record.getMessage() for record in caplog.records]
        assert message == f"an upstream is passed over: {url}: Connection refused"
        talk.refusing.clear()
        for number in (1, 2, 1, 2):
            await ask(number)
        assert [record.getMessage() for record in caplog.records[1:]] == [f"upstream {url} can be reached again"]


async def test_the_log_tells_which_upstream_closed(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with conversation(upstreams=2) as talk:
        client = await talk.client()
        await client.says(post("abc"))
        upstream = await talk.upstream()
        await upstream.takes()
        await upstream.leaves()
        heard = await client.hears_refusal(502, "upstream_closed", closes=False)
        assert "10.0.0.1" not in heard
        url = talk.link.url("10.0.0.1")
        assert f"upstream_closed: the upstream closed the connection before it had answered ({url}" in caplog.text


async def test_endpoints_take_turns(autojump_clock: MockClock) -> None:
    async with conversation(upstreams=3) as talk:
        client = await talk.client()
        for _ in range(2):
            for number in (1, 2, 3):
                await client.says(get())
                await wait_all_tasks_blocked()
                upstream = talk.answering(f"10.0.0.{number}")
                await upstream.takes()
                await upstream.says(OK)
                await client.hears(OK_HEARD)
