"""A proxy that drains: what ends at once, what goes on, for how long."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from opened import opened
from script import CLIENT, OK, OK_CLOSED, OK_HEARD, conversation, forwarded, get, message, read_all, relayed
from transports import BareStream
from trioproxy import Deadlines, Proxy, Settings


async def test_a_drain_closes_what_is_idle_and_lets_the_rest_finish(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        idle, kept, busy, begun, partial = [await talk.client() for _ in range(5)]
        await kept.says(get())
        upstream = await talk.upstream()
        await upstream.takes()
        await upstream.says(OK)
        await kept.hears(OK_HEARD)
        await busy.says(get("/busy"))
        await upstream.hears(forwarded("GET /busy HTTP/1.1"))
        await begun.says(get("/begun"))
        streaming = await talk.upstream()
        await streaming.takes()
        await streaming.says(message("HTTP/1.1 200 OK", "Content-Length: 4", body="ab"))
        await begun.hears(relayed("HTTP/1.1 200 OK", "Content-Length: 4", body="ab"))
        await partial.says("GET /partial HTTP/1.1\r\n")
        await wait_all_tasks_blocked()

        talk.proxy.drain()
        await idle.hears_end()
        await kept.hears_end()
        await busy.hears_nothing()
        await begun.hears_nothing()
        await upstream.says(OK)
        await busy.hears(OK_CLOSED)
        await busy.hears_end()
        await streaming.says("cd")
        await begun.hears("cd")
        await begun.hears_end()
        await partial.says("Host: a\r\n\r\n")
        for peer in (upstream, streaming):
            if heard := await peer.takes():
                assert "GET /partial" in heard
                await peer.says(OK)
        await partial.hears(OK_CLOSED)
        await partial.hears_end()
        assert talk.count("completed") == 4


async def test_a_drain_does_not_wait_long_for_clients_that_keep_their_connection(autojump_clock: MockClock) -> None:
    """As pools of HTTP clients do: they see that it has ended when they next want it."""
    async with conversation(Settings(deadlines=Deadlines(linger=5))) as talk:
        before, after = await talk.client(), await talk.client()
        await before.says(get("/", "Connection: close"))
        upstream = await talk.upstream()
        await upstream.takes()
        await upstream.says(OK)
        await before.takes()
        await after.says(get())
        await upstream.takes()
        talk.proxy.drain()
        await trio.sleep(0.99)
        assert talk.proxy.statistics().connections == 2
        await trio.sleep(0.02)
        assert talk.proxy.statistics().connections == 1
        await upstream.says(OK)
        await after.takes()
        await trio.sleep(0.99)
        assert talk.proxy.statistics().connections == 1
        await trio.sleep(0.02)
        assert talk.proxy.statistics().connections == 0


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_what_a_drain_cuts_does_not_look_whole(version: str, autojump_clock: MockClock) -> None:
    async with conversation(Settings(deadlines=Deadlines(drain=30))) as talk:
        client = await talk.client()
        await client.says(message(f"GET / HTTP/{version}", "Host: a"))
        upstream = await talk.upstream()
        await upstream.takes()
        await upstream.says(message("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body="2\r\nab\r\n"))
        await client.takes()
        talk.proxy.drain()
        await trio.sleep(29.99)
        await client.hears_nothing()
        await trio.sleep(0.02)
        await client.hears_end()
        await upstream.hears_end()
        assert talk.count("drained") == 1


@pytest.mark.parametrize("graces", [(30, 100, 2), (4, 100, 50)])
async def test_a_second_drain_shortens_the_first_and_never_lengthens_it(
    graces: tuple[int, int, int], autojump_clock: MockClock
) -> None:
    """A second apart, each of these ends after four."""
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get())
        await (upstream := await talk.upstream()).takes()
        for grace in graces:
            talk.proxy.drain(grace)
            await trio.sleep(1)
        await trio.sleep(0.99)
        await client.hears_nothing()
        await trio.sleep(0.02)
        await client.hears_end()
        await upstream.hears_end()


async def test_a_drain_without_a_grace_is_immediate(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get())
        await (upstream := await talk.upstream()).takes()
        talk.proxy.drain(0)
        await client.hears_end()
        await upstream.hears_end()


async def test_a_drained_proxy_stops_listening_and_serve_returns_when_the_last_request_has_ended() -> None:
    release = trio.Event()
    asked = trio.Event()

    async def upstream(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            asked.set()
            await release.wait()
            await stream.send_all(OK.encode())

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, upstream, 0, host="127.0.0.1"))
        proxy = Proxy(opened(f"http://127.0.0.1:{listener.socket.getsockname()[1]}"))
        with trio.fail_after(10):
            async with trio.open_nursery() as serving:
                (address,) = await serving.start(proxy.serve)
                client = await trio.open_tcp_stream(*address)
                await client.send_all(get().encode())
                await asked.wait()
                proxy.drain()
                await trio.testing.wait_all_tasks_blocked(0.01)
                with pytest.raises(OSError):
                    await trio.open_tcp_stream(*address)
                release.set()
                response = await read_all(client)
                assert response.endswith(b"connection: close\r\n\r\nok")
                await client.aclose()
            # serve has returned by itself
        await proxy.serve()  # and returns at once from now on
        nursery.cancel_scope.cancel()


async def test_a_drain_closes_an_idle_client_on_a_stream_that_cannot_be_closed_at_once(
    autojump_clock: MockClock,
) -> None:
    """A stream that has only ``aclose``, as any may."""
    proxy = Proxy(opened("http://10.0.0.1:80"))
    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.serve_stream, BareStream(far), CLIENT)
        await wait_all_tasks_blocked()
        begin = trio.current_time()
        proxy.drain(30)
        assert await near.receive_some() == b""
        assert trio.current_time() - begin < 2
    assert proxy.statistics().connections == 0
