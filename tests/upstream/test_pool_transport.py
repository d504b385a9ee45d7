"""httpx on PoolTransport behaves as httpx on its own transport: requests and responses, those that wait for a 100 too.

What is told of them is in test_pool_transport_extensions.py; connections, limits and timeouts are in
test_pool_transport_connections.py, errors and TLS in test_pool_transport_errors.py. How it survives cancellation is in
test_pool_transport_cancel.py.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import httpx
import pytest
import trio

from network import End, Peer, connection
from transports import Script
from trioproxy import PoolTransport
from trioproxy.net import Address
from trioproxy.transport import Transport

from .talking import Conversation, MakeClient, echo, serving


async def test_a_request_is_written_as_it_is(client_of: MakeClient) -> None:
    async with serving(echo) as server, client_of() as client:
        response = await client.get(f"{server.url}/a/b?c=%20d&e", headers={"X-One": "1", "x-two": "zwei"})
        lines = response.text.split("\r\n")
        assert lines[0] == "GET /a/b?c=%20d&e HTTP/1.1"
        assert "X-One: 1" in lines
        assert "x-two: zwei" in lines
        assert response.status_code == 200
        assert response.reason_phrase == "OK"
        assert response.http_version == "HTTP/1.1"
        assert response.headers["content-length"] == str(len(response.content))


async def test_repeated_fields_stay_repeated(client_of: MakeClient) -> None:
    async def cookies(talk: Conversation) -> None:
        heads.append(await talk.head())
        await talk.answers(b"", "Set-Cookie: a=1", "Set-Cookie: b=2")
        heads.append(await talk.head())
        await talk.answers()

    heads: list[str] = []
    async with serving(cookies) as server, client_of() as client:
        response = await client.get(server.url)
        assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]
        await client.get(server.url)
        assert "Cookie: a=1; b=2" in heads[1]


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000, 1_000_000])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_body_goes_up_whole(size: int, streamed: bool, client_of: MakeClient) -> None:
    async def count(talk: Conversation) -> None:
        while head := await talk.head():
            if "Transfer-Encoding: chunked" in head:
                seen = await talk.body(b"\r\n0\r\n\r\n" if size else b"0\r\n\r\n")
            else:
                seen = await talk.body(b"." * size) if size else b""
            await talk.answers(str(seen.count(b".")).encode())

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, size, 70_001):
            yield b"." * min(70_001, size - start)
            await trio.lowlevel.checkpoint()

    async with serving(count) as server, client_of() as client:
        for _ in range(2):
            response = await client.post(server.url, content=pieces() if streamed else b"." * size)
            assert response.text == str(size)
        assert server.connections == 1


async def test_a_body_comes_down_as_it_comes(client_of: MakeClient) -> None:
    go = trio.Event()

    async def stream(talk: Conversation) -> None:
        await talk.head()
        await talk.says("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body=b"5\r\nfirst\r\n")
        await go.wait()
        await talk.says("6\r\nsecond\r\n0", body=b"")
        await talk.head()
        await talk.answers(b"again")

    async with serving(stream) as server, client_of() as client:
        async with client.stream("GET", server.url) as response:
            pieces = response.aiter_bytes()
            assert await anext(pieces) == b"first"
            go.set()
            assert b"".join([piece async for piece in pieces]) == b"second"
        assert (await client.get(server.url)).text == "again"
        assert server.connections == 1


async def test_a_body_until_the_end_of_the_connection(client_of: MakeClient) -> None:
    async def close(talk: Conversation) -> None:
        await talk.head()
        await talk.says("HTTP/1.1 200 OK", body=b"until the end")

    async with serving(close) as server, client_of() as client:
        for number in (1, 2):
            assert (await client.get(server.url)).text == "until the end"
            assert server.connections == number


@pytest.mark.parametrize(
    ("method", "status", "fields"),
    [
        ("HEAD", "200 OK", ["Content-Length: 5"]),
        ("GET", "204 No Content", []),
        ("GET", "304 No", ["Content-Length: 5"]),
    ],
)
async def test_responses_without_a_body(method: str, status: str, fields: list[str], client_of: MakeClient) -> None:
    async def nothing(talk: Conversation) -> None:
        while await talk.head():
            await talk.says(f"HTTP/1.1 {status}", *fields)

    async with serving(nothing) as server, client_of() as client:
        for _ in range(2):
            response = await client.request(method, server.url)
            assert f"{response.status_code} {response.reason_phrase}" == status
            assert response.content == b""
        assert server.connections == 1


async def test_interim_responses_are_passed_over(client_of: MakeClient) -> None:
    async def hints(talk: Conversation) -> None:
        await talk.head()
        await talk.says("HTTP/1.1 100 Continue")
        await talk.says("HTTP/1.1 103 Early Hints", "Link: x")
        await talk.answers()

    async with serving(hints) as server, client_of() as client:
        response = await client.get(server.url)
        assert response.text == "ok"
        assert "link" not in response.headers


async def test_an_encoded_body_is_the_clients_to_decode(client_of: MakeClient) -> None:
    async def gzip(talk: Conversation) -> None:
        await talk.head()
        packer = zlib.compressobj(wbits=31)
        await talk.answers(packer.compress(b"packed") + packer.flush(), "Content-Encoding: gzip")

    async with serving(gzip) as server, client_of() as client:
        assert (await client.get(server.url)).text == "packed"


async def test_redirects(client_of: MakeClient) -> None:
    async def move(talk: Conversation) -> None:
        while head := await talk.head():
            if head.startswith("GET /there"):
                await talk.answers(b"arrived")
            else:
                await talk.answers(b"x" * 1000, "Location: /there", status="302 Found")

    async with serving(move) as server, client_of(follow_redirects=True) as client:
        response = await client.post(f"{server.url}/here", content=b"")
        assert (response.text, str(response.url)) == ("arrived", f"{server.url}/there")
        assert [step.status_code for step in response.history] == [302]
        assert server.connections == 1


async def test_an_auth_flow_reads_a_response_and_asks_again(client_of: MakeClient) -> None:
    async def digest(talk: Conversation) -> None:
        while head := await talk.head():
            if "Authorization: Digest" in head:
                await talk.answers(b"welcome")
            else:
                challenge = 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth", algorithm=MD5'
                await talk.answers(b"no", challenge, status="401 Unauthorized")

    async with serving(digest) as server, client_of() as client:
        response = await client.get(server.url, auth=httpx.DigestAuth("user", "pass"))
        assert response.text == "welcome"
        assert server.connections == 1


async def test_many_fields_and_long_ones(client_of: MakeClient) -> None:
    async def many(talk: Conversation) -> None:
        await talk.head()
        await talk.answers(b"ok", *[f"X-{number}: {'v' * 300}" for number in range(90)])

    async with serving(many) as server, client_of() as client:
        response = await client.get(server.url, headers={f"x-{number}": "v" * 300 for number in range(90)})
        assert response.headers["x-89"] == "v" * 300


async def test_a_protocol_that_begins_with_a_101(client_of: MakeClient) -> None:
    async def switch(talk: Conversation) -> None:
        await talk.head()
        await talk.says("HTTP/1.1 101 Switching Protocols", "Upgrade: echo", "Connection: upgrade", body=b"hello")
        data = await talk.stream.receive_some()
        await talk.stream.send_all(data.upper())

    async with serving(switch) as server, client_of() as client:
        fields = {"Upgrade": "echo", "Connection": "upgrade"}
        async with client.stream("GET", server.url, headers=fields) as response:
            assert response.status_code == 101
            stream = response.extensions["network_stream"]
            assert await stream.read(max_bytes=5) == b"hello"
            await stream.write(b"shout")
            assert await stream.read(max_bytes=100) == b"SHOUT"


async def test_a_body_that_never_waits_lets_the_response_come_early() -> None:
    """Its server takes it as fast as it comes, so that nothing of the sending waits either."""
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 << 20:
            sent += 1 << 16
            yield bytes(1 << 16)

    async def connect(_: Address) -> Transport:
        await trio.lowlevel.checkpoint()
        return Script(gives=[b"HTTP/1.1 413 Too Large\r\nContent-Length: 6\r\n\r\nenough"])

    async with httpx.AsyncClient(transport=PoolTransport(connector=connect)) as client:
        response = await client.post("http://10.0.0.1", content=pieces())
    assert response.text == "enough"
    assert sent <= 4 << 20


async def test_a_response_that_comes_early_is_read(client_of: MakeClient) -> None:
    """The server refuses a body before it has come whole, and reads no more of it."""

    async def refuse(talk: Conversation) -> None:
        await talk.head()
        await talk.answers(b"too large", status="413 Too Large")
        await trio.sleep_forever()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"." * 65536
            await trio.lowlevel.checkpoint()

    async with serving(refuse) as server, httpx.AsyncClient(transport=PoolTransport(), timeout=5) as client:
        for number in (1, 2):
            response = await client.post(server.url, content=endless())
            assert (response.status_code, response.text) == (413, "too large")
            assert server.connections == number  # a connection with half a request on it is of no further use


def test_http_2_is_refused() -> None:
    with pytest.raises(ValueError, match=r"HTTP/1\.1 only"):
        PoolTransport(http2=True)


def test_it_needs_trio() -> None:
    import asyncio

    async def ask() -> None:
        async with httpx.AsyncClient(transport=PoolTransport()) as client:
            await client.get("http://127.0.0.1:1/")

    with pytest.raises(RuntimeError, match="under Trio only"):
        asyncio.run(ask())


# Expect: 100-continue


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_body_waits_until_it_is_asked_for(streamed: bool) -> None:
    async def ask(talk: Conversation) -> None:
        while await talk.head():
            with trio.move_on_after(0.05):
                assert not await talk.stream.receive_some(), "the body came before it was asked for"
            await talk.says("HTTP/1.1 100 Continue")
            await talk.answers(await talk.body(b"abc" if not streamed else b"3\r\nabc\r\n0\r\n\r\n"))

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"

    async with serving(ask) as server, httpx.AsyncClient(transport=PoolTransport()) as client:
        for _ in range(2):
            content = pieces() if streamed else b"abc"
            response = await client.post(server.url, content=content, headers={"Expect": "100-continue"})
            assert b"abc" in response.content
        assert server.connections == 1


async def test_a_body_that_is_not_wanted_stays_here() -> None:
    taken = False

    async def refuse(talk: Conversation) -> None:
        await talk.head()
        await talk.answers(b"no", status="413 Too Large")
        with pytest.raises(trio.BrokenResourceError):
            await talk.head()
        closed.set()

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal taken
        taken = True
        yield b"abc"

    closed = trio.Event()
    async with serving(refuse) as server, httpx.AsyncClient(transport=PoolTransport()) as client:
        response = await client.post(server.url, content=pieces(), headers={"Expect": "100-Continue"})
        assert response.status_code == 413
        assert not taken
        with trio.fail_after(5):
            await closed.wait()  # the connection, on which a body is still due, is of no further use


async def test_a_body_is_sent_if_nobody_asks_for_long(autojump_clock: trio.testing.MockClock) -> None:
    async def serve(far: End) -> None:
        peer = Peer(far)
        await peer.until(b"\r\n\r\n")
        began = trio.current_time()
        assert await peer.exactly(3) == b"abc"
        waited.append(trio.current_time() - began)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def connect(_: Address) -> Transport:
        await trio.lowlevel.checkpoint()
        near, far = connection("slow")
        nursery.start_soon(serve, far)
        return near

    waited: list[float] = []
    async with trio.open_nursery() as nursery:
        async with httpx.AsyncClient(transport=PoolTransport(connector=connect), timeout=None) as client:
            response = await client.post("http://10.0.0.1", content=b"abc", headers={"Expect": "100-continue"})
        assert response.status_code == 200
        assert waited == [1]
