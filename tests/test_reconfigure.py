"""A proxy that is given other upstreams and settings while it serves: what changes, and for whom."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from certificates import trusting_context
from links import CHOSEN
from opened import opened
from script import OK, OK_HEARD, Conversation, asked, conversation, forwarded, get, message, post, read_all, relayed
from trioproxy import Deadlines, Limits, Proxy, Settings
from trioproxy.ledger import BodyLedger

STREAM = message("HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Content-Length: 12", body="data")
STREAM_HEARD = relayed("HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Content-Length: 12", body="data")


def reconfigure(talk: Conversation, *hosts: str, settings: Settings | None = None) -> None:
    """Give it these upstreams."""
    talk.proxy.reconfigure(
        opened(*(talk.link.url(host) for host in hosts)),
        settings=dataclasses.replace(settings or Settings(), codec=CHOSEN.codec),
        upstream_tls=talk.link.upstream_tls,
    )


async def test_streams_in_flight_are_not_cut_and_new_requests_go_elsewhere(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        streams = [await asked(talk, get(f"/{number}")) for number in range(100)]
        for client, upstream in streams:
            await upstream.says(STREAM)
            await client.hears(STREAM_HEARD)
        reconfigure(talk, "10.0.0.2", settings=Settings(deadlines=Deadlines(idle=1, first_event=1, first_byte=1)))
        assert talk.proxy.statistics().pool.held == 100
        new, there = await asked(talk, get("/new"))
        assert talk.dialled == ["10.0.0.1"] * 100 + ["10.0.0.2"]
        await there.says(OK)
        await new.hears(OK_HEARD)
        await trio.sleep(250)
        for client, upstream in streams:
            await client.hears_nothing()
            await upstream.says("data")
            await client.hears("data")
        await trio.sleep(250)
        for client, upstream in streams:
            await upstream.says("last")
            await client.hears("last")
            await upstream.hears_end()
        assert talk.count("completed") == 101
        pool = talk.proxy.statistics().pool
        assert (pool.held, pool.opened, pool.reused) == (0, 101, 0)


async def test_an_upstream_that_stays_keeps_its_connections(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        reconfigure(talk, "10.0.0.1", "10.0.0.2")
        await client.says(get("/again"))
        await upstream.hears(forwarded("GET /again HTTP/1.1"))
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        await client.says(get("/next"))
        await (await talk.upstream()).hears(forwarded("GET /next HTTP/1.1"))
        assert talk.dialled == ["10.0.0.1", "10.0.0.2"]


async def test_idle_connections_to_an_upstream_that_goes_are_closed_at_once(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        reconfigure(talk, "10.0.0.2")
        await upstream.hears_end()
        reconfigure(talk, "10.0.0.1")
        await client.says(get("/back"))
        await (await talk.upstream()).hears(forwarded("GET /back HTTP/1.1"))
        pool = talk.proxy.statistics().pool
        assert (pool.opened, pool.held, pool.idle) == (2, 1, 0)


async def test_a_new_pool_is_tended_too(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        reconfigure(talk, "10.0.0.2", settings=Settings(deadlines=Deadlines(upstream_keep_alive=7)))
        client, upstream = await asked(talk, get())
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        await trio.sleep(6.9)
        assert talk.proxy.statistics().pool.idle == 1
        await trio.sleep(0.2)
        await upstream.hears_end()


@pytest.mark.links("tls", reason="contexts of TLS")
async def test_with_another_context_no_connection_of_the_old_one_is_used(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        talk.proxy.reconfigure(opened(talk.link.url("10.0.0.1")), upstream_tls=trusting_context())
        await upstream.hears_end()
        await client.says(get("/again"))
        await (await talk.upstream()).hears(forwarded("GET /again HTTP/1.1"))


async def test_a_request_keeps_the_deadlines_that_it_began_with(autojump_clock: MockClock) -> None:
    short = Settings(deadlines=Deadlines(body_stall=1, first_byte=2), limits=Limits(head_size=100))
    async with conversation() as talk:
        client = await talk.client()
        await client.says("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n12")
        await wait_all_tasks_blocked()
        reconfigure(talk, "10.0.0.1", settings=short)
        for piece in "34":
            await trio.sleep(29)
            await client.hears_nothing()
            await client.says(piece)
        upstream = await talk.upstream()
        await upstream.takes()
        await trio.sleep(500)
        await client.hears_nothing()
        await upstream.says(message("HTTP/1.1 200 OK", "X: " + 200 * "x", "Content-Length: 0"))
        await client.hears(relayed("HTTP/1.1 200 OK", "X: " + 200 * "x", "Content-Length: 0"))
        await client.says(get())
        await upstream.takes()
        await trio.sleep(2.1)
        await client.hears_refusal(504, "first_byte_timeout", closes=False)
        await upstream.hears_end()


async def test_a_head_that_has_begun_is_read_on(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says("GET / HTTP/1.1\r\nHo")
        await wait_all_tasks_blocked()
        reconfigure(talk, "10.0.0.1", settings=Settings(limits=Limits(head_size=20)))
        await client.says("st: a\r\n\r\n")
        upstream = await talk.upstream()
        await upstream.hears(forwarded("GET / HTTP/1.1"))
        await upstream.says(OK)
        await client.hears(OK_HEARD)


async def test_limits_change_for_the_next_request_of_a_connection(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client, upstream = await asked(talk, get("/", "X: " + 200 * "x"))
        reconfigure(talk, "10.0.0.1", settings=Settings(limits=Limits(head_size=100, body_size=5)))
        # The answer's head is of the request that began before.
        await upstream.says(message("HTTP/1.1 200 OK", "X: " + 200 * "x", "Content-Length: 0"))
        await client.hears(relayed("HTTP/1.1 200 OK", "X: " + 200 * "x", "Content-Length: 0"))
        other = await talk.client()
        await other.says(post("123456"))
        await other.hears_refusal(413, "body_too_large")
        await client.says(get("/", "X: " + 200 * "x"))
        await client.hears_refusal(431, "head_too_large")


async def test_what_half_a_close_means_changes_for_the_next_request(autojump_clock: MockClock) -> None:
    allow = Settings(client_half_close="allow")
    async with conversation() as talk:
        client, upstream = await asked(talk, get())
        reconfigure(talk, "10.0.0.1", settings=allow)
        new, other = await asked(talk, get())
        await new.ends()
        await other.says(OK)
        assert (await new.takes()).endswith("ok")
        await client.ends()
        await client.hears_end()
        await upstream.hears_end()
        assert (talk.count("completed"), talk.count("client_closed")) == (1, 1)


@pytest.mark.parametrize("upstreams", [["http://a", "nonsense"], []])
async def test_what_is_wrong_changes_nothing(upstreams: list[str], autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        with pytest.raises(ValueError):
            talk.proxy.reconfigure(upstreams, settings=Settings(deadlines=Deadlines(first_byte=1)))
        client, upstream = await asked(talk, get())
        await trio.sleep(2)
        await upstream.says(OK)
        await client.hears(OK_HEARD)


def test_one_url_is_not_several() -> None:
    with pytest.raises(TypeError):
        Proxy(["http://a"]).reconfigure("http://b")


async def test_the_name_of_a_new_upstream_is_looked_up() -> None:
    async def upstream(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, upstream, 0, host="127.0.0.1"))
        proxy = Proxy(["http://127.0.0.1:1"])
        [(host, port)] = await nursery.start(proxy.serve)
        proxy.reconfigure([f"http://localhost:{listener.socket.getsockname()[1]}"])
        client = await trio.open_tcp_stream(host, port)
        await client.send_all(get("/v1/models", "Connection: close").encode())
        assert (await read_all(client)).endswith(b"ok")
        await client.aclose()
        nursery.cancel_scope.cancel()


def test_who_waits_for_room_is_told_of_another_limit() -> None:
    ledger = BodyLedger(10)
    assert ledger.try_reserve(8)
    woken: list[bool] = []
    ledger.call_when_freed(lambda: woken.append(ledger.try_reserve(8)))
    ledger.resize(16)
    assert (woken, ledger.held) == ([True], 16)
    ledger.resize(1)
    assert ledger.held == 16
    assert not ledger.try_reserve(1)
