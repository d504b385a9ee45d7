"""httpx on PoolTransport tells what httpx on its own transport tells: trace, and the connection below a response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx
import pytest
import trio

from certificates import server_context, trusting_context
from trioproxy import PoolTransport

from .talking import Conversation, MakeClient, echo, serving

_UP: Final = ("http11.send_request_headers", "http11.send_request_body")
_DOWN: Final = ("http11.receive_response_headers", "http11.receive_response_body", "http11.response_closed")


@pytest.mark.parametrize("method", ["GET", "POST", "streamed"])
async def test_trace_tells_what_happens(method: str, client_of: MakeClient) -> None:
    names: list[str] = []
    results: dict[str, object] = {}

    async def trace(name: str, info: dict[str, object]) -> None:
        await trio.lowlevel.checkpoint()
        names.append(name)
        results[name] = info.get("return_value")

    async def answer(talk: Conversation) -> None:
        while head := await talk.head():
            if head.startswith("POST"):
                await talk.body(b"0\r\n\r\n" if "chunked" in head else b"abc")
            await talk.answers(b".", "X-One: 1")
            # In a piece of its own: a body is one step, however many pieces it has.

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"

    async with serving(answer) as server, client_of() as client:
        for steps in (("connection.connect_tcp", *_UP, *_DOWN), (*_UP, *_DOWN)):
            names.clear()
            content = {"GET": None, "POST": b"abc", "streamed": pieces()}[method]
            await client.request(
                "GET" if method == "GET" else "POST", server.url, content=content, extensions={"trace": trace}
            )
            assert names == [f"{step}.{when}" for step in steps for when in ("started", "complete")]
    fields = [(b"Content-Length", b"1"), (b"X-One", b"1")]
    assert results["http11.receive_response_headers.complete"] == (b"HTTP/1.1", 200, b"OK", fields)


async def test_trace_tells_what_fails(client_of: MakeClient) -> None:
    names: list[str] = []

    async def trace(name: str, info: dict[str, object]) -> None:
        names.append(name)

    async def cut(talk: Conversation) -> None:
        await talk.head()
        await talk.says("HTTP/1.1 200 OK", "Content-Length: 5", body=b"ab")

    async with serving(cut) as server, client_of() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(server.url, extensions={"trace": trace})
        assert names.count("http11.receive_response_body.failed") == 1
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/", extensions={"trace": trace})
        assert names[-1] == "connection.connect_tcp.failed"


@pytest.mark.parametrize("tls", [False, True])
async def test_what_is_known_of_the_connection(tls: bool, client_of: MakeClient) -> None:
    seen: list[object] = []

    async def tell(talk: Conversation) -> None:
        seen.append(talk.peer_address)
        await echo(talk)

    context = server_context() if tls else None
    async with (
        serving(tell, context) as server,
        client_of(verify=trusting_context()) as client,
        client.stream("GET", server.url) as response,
    ):
        ask = response.extensions["network_stream"].get_extra_info
        assert ask("server_addr") == ("127.0.0.1", httpx.URL(server.url).port)
        assert [ask("client_addr")] == seen
        assert ask("nothing of the kind") is None
        if tls:
            assert ask("ssl_object").version() == "TLSv1.3"
            assert ask("ssl_object").selected_alpn_protocol() in (None, "http/1.1")
        else:
            assert ask("ssl_object") is None
        await response.aread()
        assert ask("is_readable") is False


async def test_the_connection_is_another_requests_when_the_response_has_ended() -> None:
    async with serving(echo) as server, httpx.AsyncClient(transport=PoolTransport()) as client:
        response = await client.get(server.url)
        stream = response.extensions["network_stream"]
        with pytest.raises(httpx.ReadError):
            await stream.read(100)
        with pytest.raises(httpx.WriteError):
            await stream.write(b"GET / HTTP/1.1")
        await stream.aclose()
        await client.get(server.url)
        assert server.connections == 1
