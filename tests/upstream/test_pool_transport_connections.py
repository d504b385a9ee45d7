"""httpx on PoolTransport behaves as httpx on its own transport: connections, how many, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from trioproxy import PoolTransport

from .talking import Conversation, MakeClient, Server, echo, serving


async def test_a_connection_is_used_again(client_of: MakeClient) -> None:
    async with serving(echo) as server, client_of() as client:
        for _ in range(3):
            await client.get(server.url)
        assert server.connections == 1


@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_connection_that_is_to_be_closed_is_not(who: str, client_of: MakeClient) -> None:
    async def close(talk: Conversation) -> None:
        await talk.head()
        await talk.answers(b"ok", *(["Connection: close"] if who == "server" else []))
        await talk.head()

    async with serving(close) as server, client_of() as client:
        for number in (1, 2):
            await client.get(server.url, headers={"Connection": "close"} if who == "client" else {})
            assert server.connections == number


async def test_a_request_that_says_close_is_the_last_on_its_connection(client_of: MakeClient) -> None:
    """Whatever its server thinks of it (RFC 9112 section 9.6)."""
    async with serving(echo) as server, client_of() as client:
        for number, value in enumerate(("close", "x-Other, Close"), 1):
            await client.get(server.url, headers={"Connection": value})
            await client.get(server.url)
            assert server.connections == number + 1
            assert value in (await client.get(server.url, headers={"X": value})).text


async def test_a_connection_that_died_while_idle_is_replaced(client_of: MakeClient) -> None:
    async def once(talk: Conversation) -> None:
        await talk.head()
        await talk.answers()

    async with serving(once) as server, client_of() as client:
        for number in (1, 2):
            assert (await client.post(server.url, content=b"")).text == "ok"
            with trio.fail_after(2):  # noqa: ASYNC912 - none if it has ended
                while server.ended < number:  # noqa: ASYNC110 - the server's side of it
                    await trio.sleep(0.001)


async def test_an_idle_connection_expires(client_of: MakeClient) -> None:
    async with serving(echo) as server, client_of(limits=httpx.Limits(keepalive_expiry=0.05)) as client:
        await client.get(server.url)
        await trio.sleep(0.1)
        await client.get(server.url)
        assert server.connections == 2


async def test_idle_connections_that_never_expire(client_of: MakeClient) -> None:
    """One too many is found, also if another origin has only connections in use."""
    limits = httpx.Limits(max_connections=5, max_keepalive_connections=1, keepalive_expiry=None)
    async with serving(echo) as busy, serving(echo) as idle, client_of(limits=limits) as client:
        async with client.stream("GET", busy.url):
            with trio.fail_after(5):
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(client.get, idle.url)
            await client.get(idle.url)
        assert idle.connections <= 4


async def test_only_so_many_stay_idle(client_of: MakeClient) -> None:
    asking = 0
    all_ask = trio.Event()

    async def together(talk: Conversation) -> None:
        """Answer when all five ask, so that each needs a connection of its own."""
        nonlocal asking
        while await talk.head():
            asking += 1
            if asking == 5:
                all_ask.set()
            await all_ask.wait()
            await talk.answers()

    limits = httpx.Limits(max_connections=10, max_keepalive_connections=2)
    async with serving(together) as server, client_of(limits=limits) as client:
        for connections in (5, 8):
            asking, all_ask = 0, trio.Event()
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(client.get, server.url)
            assert server.connections == connections


async def test_no_more_connections_than_allowed(client_of: MakeClient) -> None:
    at_once = most = 0

    async def slow(talk: Conversation) -> None:
        nonlocal at_once, most
        while await talk.head():
            at_once += 1
            most = max(most, at_once)
            await trio.sleep(0.005)
            at_once -= 1
            await talk.answers()

    limits = httpx.Limits(max_connections=3, max_keepalive_connections=3)
    async with serving(slow) as server, client_of(limits=limits) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(client.get, server.url)
        assert most == 3
        assert server.connections == 3


async def test_an_idle_connection_makes_room_for_another_origin(client_of: MakeClient) -> None:
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    async with serving(echo) as one, serving(echo) as other, client_of(limits=limits) as client:
        for server in (one, other, one):
            await client.get(server.url)
        assert (one.connections, other.connections) == (2, 1)


async def test_a_unix_socket(tmp_path: Path, client_of: MakeClient) -> None:
    server = Server(echo)
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(str(tmp_path / "socket"))
    sock.listen()
    listener = trio.SocketListener(sock)
    async with trio.open_nursery() as nursery, client_of(uds=str(tmp_path / "socket")) as client:
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        response = await client.get("http://model.test/x")
        assert "Host: model.test" in response.text
        nursery.cancel_scope.cancel()


@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")  # httpcore leaves the body's open
async def test_timeouts(client_of: MakeClient) -> None:
    async def silent(talk: Conversation) -> None:
        await trio.sleep_forever()

    async def stuck(talk: Conversation) -> None:
        await talk.head()
        await talk.says("HTTP/1.1 200 OK", "Content-Length: 5", body=b"ab")
        await trio.sleep_forever()

    quick = httpx.Timeout(5, read=0.05, write=0.05, pool=0.05)
    limits = httpx.Limits(max_connections=1)
    async with serving(silent) as server, client_of(timeout=quick, limits=limits) as client:
        with pytest.raises(httpx.ReadTimeout) as read:
            await client.get(server.url)
        assert str(read.value.request.url) == server.url
        with pytest.raises(httpx.WriteTimeout):
            await client.post(server.url, content=b"." * 20_000_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.get, server.url, timeout=None))
            await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(httpx.PoolTimeout):
                await client.get(server.url)
            nursery.cancel_scope.cancel()
    async with (
        serving(stuck) as server,
        client_of(timeout=quick) as client,
        client.stream("GET", server.url) as response,
    ):
        with pytest.raises(httpx.ReadTimeout):
            await response.aread()


async def test_a_connection_that_does_not_come_about_in_time() -> None:
    async def never(_: object) -> object:
        await trio.sleep_forever()

    transport = PoolTransport(connector=never)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(5, connect=0.01)) as client:
        with pytest.raises(httpx.ConnectTimeout):
            await client.get("http://10.0.0.1/")
        assert transport.counts == (0, 0, 0, 0)


async def test_no_patience_for_a_place_is_no_hindrance_if_there_is_one(client_of: MakeClient) -> None:
    limits = httpx.Limits(max_connections=1)
    timeout = httpx.Timeout(5, pool=0)
    async with serving(echo) as server, client_of(limits=limits, timeout=timeout) as client:
        for _ in range(2):
            assert (await client.get(server.url)).status_code == 200
        async with client.stream("GET", server.url):
            with pytest.raises(httpx.PoolTimeout):
                await client.get(server.url)


# Of ours alone


@pytest.mark.parametrize(
    ("method", "content", "answers"),
    [("GET", "none", True), ("PUT", "whole", True), ("POST", "whole", False), ("PUT", "once", False)],
)
async def test_a_connection_that_dies_under_a_request(method: str, content: str, answers: bool) -> None:
    """The request is sent again if it may be, and if it can be: once, on a connection of its own."""
    taken = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal taken
        taken += 1
        yield b"abc"

    async def die(talk: Conversation) -> None:
        await talk.head()
        await talk.answers()
        if await talk.head() and talk.number > 1:
            await talk.answers(b"again")

    body = {"none": None, "whole": b"abc", "once": pieces()}[content]
    async with serving(die) as server, httpx.AsyncClient(transport=PoolTransport()) as client:
        await client.get(server.url)
        if answers:
            assert (await client.request(method, server.url, content=body)).text == "ok"
        else:
            with pytest.raises((httpx.RemoteProtocolError, httpx.NetworkError)):
                await client.request(method, server.url, content=body)
        assert server.connections == 1 + answers
        assert taken == (content == "once")


async def test_a_new_connection_that_dies_under_a_request_is_not_replaced() -> None:
    async def die(talk: Conversation) -> None:
        await talk.head()

    async with serving(die) as server, httpx.AsyncClient(transport=PoolTransport()) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(server.url)
        assert server.connections == 1


async def test_a_request_that_is_cancelled_before_it_begins_sends_nothing() -> None:
    async with serving(echo) as server, httpx.AsyncClient(transport=PoolTransport()) as client:
        await client.get(server.url)
        for _ in range(3):
            with trio.CancelScope() as scope:
                scope.cancel()
                await client.post(server.url, content=b"x")
            assert scope.cancelled_caught
        assert server.connections == 1


def test_one_transport_in_two_runs_of_trio() -> None:
    transport = PoolTransport()
    client = httpx.AsyncClient(transport=transport)

    async def run() -> None:
        async with serving(echo) as server:
            assert (await client.get(server.url)).status_code == 200
            assert transport.counts.idle == 1

    trio.run(run)
    trio.run(run)
    trio.run(client.aclose)
    assert transport.counts == (0, 0, 0, 0)


async def test_two_runs_of_trio_at_a_time_are_refused() -> None:
    """The second would close the first one's connections, behind its back."""
    transport = PoolTransport()

    async def use(url: str) -> None:
        with pytest.raises(RuntimeError, match="another Trio run"):
            await transport.handle_async_request(httpx.Request("GET", url))
        with pytest.raises(RuntimeError, match="another Trio run"):
            await transport.aclose()

    async with serving(echo) as server, httpx.AsyncClient(transport=transport) as client:
        await client.get(server.url)
        await trio.to_thread.run_sync(trio.run, use, server.url)
        assert transport.counts.idle == 1
        await client.get(server.url)
        assert server.connections == 1
