"""Each deadline fires at its time, not before, and says what was waited for."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from script import OK, OK_HEARD, Conversation, Peer, conversation, forwarded, get, message, post
from trioproxy import Deadlines, Limits, Settings

SSE = message("HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
JUST: float = 0.01
"""Seconds before and after a deadline."""


def settings(limits: Limits | None = None, **seconds: float) -> Settings:
    return Settings(deadlines=Deadlines(**seconds), limits=limits or Limits(), body="auto")


async def asked(talk: Conversation, text: str) -> tuple[Peer, Peer]:
    client = await talk.client()
    await client.says(text)
    upstream = await talk.upstream()
    await upstream.takes()
    return client, upstream


async def refused_after(client: Peer, seconds: float, status: int, code: str, *, closes: bool) -> str:
    """Nothing happens for so long, then the client is told this."""
    await trio.sleep(seconds - JUST)
    await client.hears_nothing()
    await trio.sleep(2 * JUST)
    return await client.hears_refusal(status, code, closes=closes)


# The client's


@pytest.mark.parametrize("trickle", [0.0, 1.0])
async def test_a_head_has_an_absolute_deadline(trickle: float, autojump_clock: MockClock) -> None:
    """Bytes that trickle in do not extend it."""
    async with conversation(settings(head=10)) as talk:
        client = await talk.client()
        await trio.sleep(30)
        await client.says("GET /")
        async with trio.open_nursery() as nursery:
            if trickle:
                nursery.start_soon(_trickle, client, trickle)
            heard = await refused_after(client, 10, 408, "request_timeout", closes=True)
            nursery.cancel_scope.cancel()
        assert "within 10 s" in heard
        assert talk.count("client_stalled") == 1
        await client.hears_end()


async def _trickle(client: Peer, interval: float) -> None:
    while True:
        await trio.sleep(interval)
        await client.says("x")


async def test_each_head_has_a_deadline_of_its_own(autojump_clock: MockClock) -> None:
    async with conversation(settings(head=10)) as talk:
        client, upstream = await asked(talk, get("/1"))
        await trio.sleep(20)
        await client.says("GET /2 ")
        await trio.sleep(20)  # read ahead, it is not a head yet
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        await refused_after(client, 10, 408, "request_timeout", closes=True)


@pytest.mark.parametrize("path", ["/x", "/v1/completions"])
@pytest.mark.parametrize("framing", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
async def test_a_body_may_stall_for_so_long(path: str, framing: str, autojump_clock: MockClock) -> None:
    async with conversation(settings(body_stall=30)) as talk:
        client = await talk.client()
        await client.says(message(f"POST {path} HTTP/1.1", "Host: a", framing))
        for _ in range(3):
            await client.says("1\r\nx\r\n")
            await trio.sleep(29)
        await client.says("1\r\nx\r\n")
        await refused_after(client, 30, 408, "request_timeout", closes=True)
        assert talk.count("client_stalled") == 1
        await client.hears_end()
        for host in talk.dialled:
            await talk.answering(host).takes()


@pytest.mark.parametrize("requests", [0, 1])
async def test_an_idle_client_is_closed(requests: int, autojump_clock: MockClock) -> None:
    async with conversation(settings(client_keep_alive=75)) as talk:
        client = await talk.client()
        if requests:
            await client.says(get())
            upstream = await talk.upstream()
            await upstream.takes()
            await trio.sleep(100)
            await upstream.says(OK)
            await client.hears(OK_HEARD)
        await trio.sleep(75 - JUST)
        await client.hears_nothing()
        await trio.sleep(2 * JUST)
        await client.hears_end()
        assert sum(talk.proxy.statistics().outcomes.values()) == requests


async def test_a_client_that_takes_nothing_is_given_up(autojump_clock: MockClock) -> None:
    """Its time is not the upstream's: the deadline ``idle`` is shorter and does not fire."""
    async with conversation(settings(write_stall=60, idle=10, first_event=10)) as talk:
        client = await talk.client(deaf=True)
        await client.says(get())
        upstream = await talk.upstream()
        await upstream.takes()
        await upstream.says(SSE + "2\r\nok\r\n")
        await trio.sleep(60 - JUST)
        await upstream.hears_nothing()
        await trio.sleep(2 * JUST)
        await upstream.hears_end()
        assert talk.count("client_stalled") == 1


async def test_a_connection_lingers_so_that_the_last_response_can_be_read(autojump_clock: MockClock) -> None:
    async with conversation(settings(linger=5)) as talk:
        client, upstream = await asked(talk, get("/", "Connection: close"))
        await upstream.says(OK)
        await client.takes()
        assert client.ended  # the proxy's sending side
        await trio.sleep(5 - JUST)
        await client.says("still taken")
        assert talk.proxy.statistics().connections == 1
        await trio.sleep(2 * JUST)
        assert talk.proxy.statistics().connections == 0
        await client.cannot_say_more()


# The upstream's


async def test_connecting_has_a_deadline_and_the_next_endpoint_its_own(autojump_clock: MockClock) -> None:
    async with conversation(settings(connect=5), upstreams=2) as talk:
        talk.silent = {"10.0.0.1", "10.0.0.2"}
        client = await talk.client()
        await client.says(post("abc"))
        heard = await refused_after(client, 10, 504, "connect_timeout", closes=False)
        assert "no connection to the model server within 5 s" in heard
        assert talk.dialled == ["10.0.0.1", "10.0.0.2"]
        assert talk.count("upstream_timeout") == 1
        talk.silent = {"10.0.0.2"}
        await client.says(post("abc"))
        await trio.sleep(5 + JUST)
        await (upstream := await talk.upstream()).hears(forwarded("POST /x HTTP/1.1", length=3, body="abc"))
        await upstream.says(OK)
        await client.hears(OK_HEARD)


@pytest.mark.parametrize("said", ["", "HTTP/1.1 2", message("HTTP/1.1 100 Continue")])
@pytest.mark.parametrize("text", [get(), post("abc"), post("abc", "/v1/completions")])
async def test_the_first_byte_has_a_deadline(text: str, said: str, autojump_clock: MockClock) -> None:
    async with conversation(settings(first_byte=600)) as talk:
        client, upstream = await asked(talk, text)
        await upstream.says(said)
        await refused_after(client, 600, 504, "first_byte_timeout", closes=False)
        await upstream.hears_end()
        assert talk.count("upstream_timeout") == 1


async def test_the_first_byte_is_waited_for_from_the_last_byte_of_the_request(autojump_clock: MockClock) -> None:
    async with conversation(settings(first_byte=10)) as talk:
        client, upstream = await asked(talk, message("POST /x HTTP/1.1", "Host: a", "Content-Length: 100000", body="x"))
        for _ in range(3):
            await trio.sleep(9)
            await client.says("x" * 33_333)
        await upstream.takes()
        await refused_after(client, 10, 504, "first_byte_timeout", closes=False)
        await upstream.hears_end()


@pytest.mark.parametrize("said", ["", "7\r\n: ping\n\r\n", "9\r\n: ping\n\n\n\r\n"], ids=["nothing", "part", "comment"])
@pytest.mark.parametrize("together", [False, True])
async def test_the_first_event_of_a_stream_has_a_deadline(said: str, together: bool, autojump_clock: MockClock) -> None:
    """Comments are no events."""
    async with conversation(settings(first_event=600, idle=10)) as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(SSE + (said if together else ""))
        await client.takes()
        if not together:
            await upstream.says(said)
            await client.takes()
        await trio.sleep(600 - JUST)
        await client.hears_nothing()
        await trio.sleep(2 * JUST)
        await client.hears_end()
        await upstream.hears_end()
        assert talk.proxy.statistics().errors == {"first_event_timeout": 1}
        assert talk.count("upstream_timeout") == 1


async def test_comments_do_not_put_off_the_first_event(autojump_clock: MockClock) -> None:
    async with conversation(settings(first_event=60, idle=10)) as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(SSE)
        for _ in range(5):
            await trio.sleep(10)
            await upstream.says("9\r\n: ping\n\n\n\r\n")
        await client.takes()
        await trio.sleep(10 - JUST)
        await client.hears_nothing()
        await trio.sleep(2 * JUST)
        await client.hears_end()
        assert talk.proxy.statistics().errors == {"first_event_timeout": 1}


@pytest.mark.parametrize("events", [0, 1, 5])
@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain"])
async def test_a_response_may_stand_still_for_so_long(events: int, kind: str, autojump_clock: MockClock) -> None:
    """To a 64th of the deadline, and never less than it: a steady stream does not move a scope at each event."""
    if kind == "text/event-stream" and not events:
        return
    async with conversation(settings(idle=64, first_event=1000)) as talk:
        client, upstream = await asked(talk, get())
        head = message("HTTP/1.1 200 OK", f"Content-Type: {kind}", "Transfer-Encoding: chunked")
        await upstream.says(head)
        await client.takes()
        for _ in range(events):
            await trio.sleep(63)
            await upstream.says("a\r\ndata: x\n\nd\r\n")
            await client.takes()
        await trio.sleep(64 - JUST)
        await client.hears_nothing()
        await trio.sleep(1 + 2 * JUST)
        await client.hears_end()
        await upstream.hears_end()
        assert talk.proxy.statistics().errors == {"idle_timeout": 1}


async def test_events_in_quick_succession_keep_a_response_alive(autojump_clock: MockClock) -> None:
    async with conversation(settings(idle=64)) as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(SSE)
        await client.takes()
        for _ in range(300):
            await upstream.says("a\r\ndata: x\n\nd\r\n")
            await trio.sleep(0.33)
        assert "data: x" in await client.takes()
        await client.hears_nothing()
        await upstream.says("0\r\n\r\n")
        await client.hears("0\r\n\r\n")
        assert talk.count("completed") == 1


@pytest.mark.parametrize("stage", ["body", "connect", "first byte", "first event", "streaming"])
async def test_all_of_it_together_has_a_deadline(stage: str, autojump_clock: MockClock) -> None:
    async with conversation(settings(total=20, connect=100, body_stall=100)) as talk:
        client = await talk.client()
        if stage == "connect":
            talk.silent = {"10.0.0.1"}
        if stage == "body":
            await client.says(post("abcdef", "/v1/completions")[:-2])
        else:
            await client.says(post("abc"))
        began = stage in ("first event", "streaming")
        if stage not in ("body", "connect"):
            upstream = await talk.upstream()
            await upstream.takes()
            if began:
                await upstream.says(SSE + ("a\r\ndata: x\n\nd\r\n" if stage == "streaming" else ""))
                await client.takes()
        if began:
            await trio.sleep(20 + JUST)
            await client.hears_end()
        else:
            heard = await refused_after(client, 20, 504, "total_timeout", closes=stage == "body")
            assert "20 s" in heard
        assert talk.proxy.statistics().errors == {"total_timeout": 1}
        assert talk.count("upstream_timeout") == 1


@pytest.mark.parametrize("path", ["/x", "/v1/completions"])
async def test_an_upstream_that_takes_nothing_is_given_up(path: str, autojump_clock: MockClock) -> None:
    async with conversation(settings(write_stall=60)) as talk:
        talk.deaf = {"10.0.0.1"}
        client = await talk.client()
        await client.says(post("x" * 1000, path))
        await talk.upstream()
        heard = await refused_after(client, 60, 504, "send_timeout", closes=False)
        assert "for 60 s" in heard
        assert talk.count("upstream_timeout") == 1


@pytest.mark.parametrize("seconds", [4.0, 0.0])
async def test_an_idle_upstream_connection_is_closed_by_itself(seconds: float, autojump_clock: MockClock) -> None:
    async with conversation(settings(upstream_keep_alive=seconds)) as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        if seconds:
            await trio.sleep(seconds - JUST)
            await upstream.hears_nothing()
            assert talk.proxy.statistics().pool.idle == 1
        await trio.sleep(2 * JUST)
        await upstream.hears_end()
        assert talk.proxy.statistics().pool.idle == 0


async def test_idle_upstream_connections_are_closed_whoever_else_is_or_was_served(autojump_clock: MockClock) -> None:
    """Each client on a stream of its own brings a task that closes them; any of these may end."""
    async with conversation(settings(upstream_keep_alive=4)) as talk:
        client = await talk.client()
        passing = await talk.client()
        await passing.leaves()
        await wait_all_tasks_blocked()
        await client.says(get())
        upstream = await talk.upstream()
        await upstream.takes()
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        await trio.sleep(4 + JUST)
        await upstream.hears_end()


# Room for bodies

FULL = Limits(body_size=100_000, bodies_size=100_000)


async def _holding(talk: Conversation, count: int) -> Peer:
    """A client whose body takes room and lacks its last byte."""
    client = await talk.client()
    await client.says(post("x" * count, "/v1/completions")[:-1])
    await wait_all_tasks_blocked()
    return client


async def test_an_upload_waits_for_room_and_is_refused_in_the_end(autojump_clock: MockClock) -> None:
    async with conversation(settings(FULL, overload=5, body_stall=30)) as talk:
        await _holding(talk, 60_000)
        client = await talk.client()
        await client.says(message("POST /v1/completions HTTP/1.1", "Host: a", "Content-Length: 60000"))
        await client.says("x" * 60_000)
        heard = await refused_after(client, 5, 503, "overloaded", closes=True)
        assert "\r\nretry-after: 1\r\n" in heard
        await client.hears_end()
        assert talk.count("refused") == 1


async def test_an_upload_goes_on_when_there_is_room(autojump_clock: MockClock) -> None:
    async with conversation(settings(FULL, overload=5, body_stall=30)) as talk:
        holder = await _holding(talk, 60_000)
        client = await talk.client()
        await client.says(message("POST /v1/completions HTTP/1.1", "Host: a", "Content-Length: 60000"))
        await trio.sleep(4)
        await holder.says("x")
        await (first := await talk.upstream()).takes()
        await trio.sleep(4)
        await client.says("y" * 60_000)
        await (second := await talk.upstream()).hears(
            forwarded("POST /v1/completions HTTP/1.1", length=60_000, body="y" * 60_000)
        )
        for upstream, peer in ((first, holder), (second, client)):
            await upstream.says(OK)
            await peer.hears(OK_HEARD)


async def test_a_client_that_stalls_once_there_is_room_is_not_told_that_there_is_none(
    autojump_clock: MockClock,
) -> None:
    async with conversation(settings(FULL, overload=5, body_stall=30)) as talk:
        holder = await _holding(talk, 60_000)
        client = await talk.client()
        await client.says(message("POST /v1/completions HTTP/1.1", "Host: a", "Content-Length: 60000"))
        await trio.sleep(4)
        await holder.says("x")
        await (upstream := await talk.upstream()).takes()
        await upstream.says(OK)
        await holder.hears(OK_HEARD)
        await refused_after(client, 30, 408, "request_timeout", closes=True)


async def test_a_body_that_comes_with_its_head_and_finds_no_room(autojump_clock: MockClock) -> None:
    """Its bytes are there already, so that waiting would hold them: it is refused at once."""
    async with conversation(settings(FULL)) as talk:
        await _holding(talk, 99_990)
        client = await talk.client()
        await client.says(post("x" * 1000, "/v1/completions"))
        heard = await client.hears_refusal(503, "overloaded")
        assert "\r\nretry-after: 1\r\n" in heard
