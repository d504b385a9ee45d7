"""httpx on PoolTransport tells what httpx on its own transport tells: trace, and the connection below a response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, final

import httpx
import pytest
import trio

from certificates import server_context, trusting_context
from trioproxy import PoolTransport

from .talking import Conversation, MakeClient, echo, serving

_UP: Final = ("http11.send_request_headers", "http11.send_request_body")
_DOWN: Final = ("http11.receive_response_headers", "http11.receive_response_body", "http11.response_closed")
_KEYS: Final = {
    "connection.connect_tcp.started": {"host", "port", "local_address", "timeout", "socket_options"},
    "http11.response_closed.started": set[str](),
}


@final
class Heard:
    """What a trace was told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.info: dict[str, dict[str, object]] = {}

    async def __call__(self, name: str, info: dict[str, object]) -> None:
        await trio.lowlevel.checkpoint()
        self.names.append(name)
        self.info[name] = info


def _steps(*steps: str) -> list[str]:
    return [f"{step}.{when}" for step in steps for when in ("started", "complete")]


@pytest.mark.parametrize(
    "content", [None, b"abc", b"." * 300_000, "streamed"], ids=["none", "small", "large", "stream"]
)
async def test_trace_tells_what_happens(content: bytes | str | None, client_of: MakeClient) -> None:
    async def answer(talk: Conversation) -> None:
        while head := await talk.head():
            if content is not None:
                await talk.body(b"0\r\n\r\n" if "chunked" in head else content if isinstance(content, bytes) else b"")
            await talk.answers(b".", "X-One: 1")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):  # a body is one step, however many pieces it has
            yield b"abc"

    async with serving(answer) as server, client_of() as client:
        for steps in (("connection.connect_tcp", *_UP, *_DOWN), (*_UP, *_DOWN)):
            heard = Heard()
            await client.request(
                "GET" if content is None else "POST",
                server.url,
                content=pieces() if isinstance(content, str) else content,
                extensions={"trace": heard},
            )
            assert heard.names == _steps(*steps)
            assert {name: set(info) for name, info in heard.info.items()} == {
                name: _KEYS.get(name, {"request"} if name.endswith("started") else {"return_value"})
                for name in heard.names
            }
            fields = [(b"Content-Length", b"1"), (b"X-One", b"1")]
            head = heard.info["http11.receive_response_headers.complete"]["return_value"]
            assert head == (b"HTTP/1.1", 200, b"OK", fields)
            for step in (*_UP, *_DOWN[1:]):
                assert heard.info[f"{step}.complete"]["return_value"] is None


async def test_trace_tells_where_it_connects_to(client_of: MakeClient) -> None:
    heard = Heard()
    async with serving(echo) as server, client_of(timeout=httpx.Timeout(7)) as client:
        await client.get(server.url, extensions={"trace": heard})
        told = heard.info["connection.connect_tcp.started"]
        assert (told["host"], told["port"], told["timeout"]) == ("127.0.0.1", httpx.URL(server.url).port, 7)
        assert heard.info["connection.connect_tcp.complete"]["return_value"] is not None


async def test_trace_tells_what_fails(client_of: MakeClient) -> None:
    async def cut(talk: Conversation) -> None:
        if talk.number == 1:
            await talk.head()
            await talk.says("HTTP/1.1 200 OK", "Content-Length: 5", body=b"ab")
        else:
            await talk.head()

    async with serving(cut) as server, client_of() as client:
        for step in ("receive_response_body", "receive_response_headers"):
            heard = Heard()
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(server.url, extensions={"trace": heard})
            assert heard.names[-3:] == [f"http11.{step}.failed", *_steps("http11.response_closed")]
            assert set(heard.info[f"http11.{step}.failed"]) == {"exception"}
        heard = Heard()
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/", extensions={"trace": heard})
        assert heard.names == ["connection.connect_tcp.started", "connection.connect_tcp.failed"]


@pytest.mark.parametrize("tls", [False, True])
async def test_what_is_known_of_the_connection(tls: bool, client_of: MakeClient) -> None:
    seen: list[object] = []

    async def tell(talk: Conversation) -> None:
        seen.append(talk.below.socket.getpeername())
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
        assert ask("socket").getsockname() == ask("client_addr")
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
