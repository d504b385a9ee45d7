"""httpx on PoolTransport behaves as httpx on its own transport: what applies to a transport, on both.

How it survives cancellation is in test_pool_transport_cancel.py.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, final

import httpx
import pytest
import trio

from certificates import authority, server_context, trusting_context, write_files
from trioproxy import PoolTransport


@final
class Conversation:
    """A server's side of one connection."""

    def __init__(self, stream: trio.abc.Stream, number: int) -> None:
        self.stream = stream
        self.number = number
        self._early = b""

    async def head(self) -> str:
        """The next request's head; empty at the end."""
        while b"\r\n\r\n" not in self._early:
            data = await self.stream.receive_some()
            if not data:
                return ""
            self._early += data
        head, _, self._early = self._early.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    async def body(self, mark: bytes) -> bytes:
        """What comes up to the mark, it included."""
        while mark not in self._early:
            self._early += await self.stream.receive_some()
        data, _, self._early = self._early.partition(mark)
        return data + mark

    async def says(self, *lines: str, body: bytes = b"") -> None:
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    async def answers(self, body: bytes = b"ok", *fields: str, status: str = "200 OK") -> None:
        await self.says(f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, body=body)


Handler: TypeAlias = Callable[[Conversation], Awaitable[None]]


@final
class Server:
    """A server on loopback, or at a unix socket, whose handler has each connection to itself."""

    def __init__(self, handler: Handler, context: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._context = context
        self.url = ""
        self.connections = 0
        self.ended = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        if self._context is not None:
            stream = trio.SSLStream(stream, self._context, server_side=True)
        try:
            await self._handler(Conversation(stream, self.connections))
        except trio.BrokenResourceError:
            pass
        finally:
            self.ended += 1
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(stream)


@asynccontextmanager
async def serving(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncGenerator[Server]:
    server = Server(handler, context)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        server.url = f"{'https' if context else 'http'}://127.0.0.1:{listener.socket.getsockname()[1]}"
        yield server
        nursery.cancel_scope.cancel()


class MakeClient(Protocol):
    """Makes a client whose transport has these arguments."""

    def __call__(
        self,
        *,
        limits: httpx.Limits = ...,
        verify: ssl.SSLContext | bool = ...,
        cert: tuple[str, str] | None = ...,
        uds: str | None = ...,
        timeout: httpx.Timeout = ...,
        follow_redirects: bool = ...,
    ) -> httpx.AsyncClient: ...


@pytest.fixture(params=["trioproxy", "httpcore"])
def client_of(request: pytest.FixtureRequest) -> MakeClient:
    def make(
        *,
        limits: httpx.Limits = httpx.Limits(max_connections=100, max_keepalive_connections=20),  # noqa: B008 - immutable
        verify: ssl.SSLContext | bool = True,
        cert: tuple[str, str] | None = None,
        uds: str | None = None,
        timeout: httpx.Timeout = httpx.Timeout(5),  # noqa: B008 - immutable
        follow_redirects: bool = False,
    ) -> httpx.AsyncClient:
        transport: httpx.AsyncBaseTransport
        if request.param == "trioproxy":
            transport = PoolTransport(limits=limits, verify=verify, cert=cert, uds=uds)
        else:
            transport = httpx.AsyncHTTPTransport(limits=limits, verify=verify, cert=cert, uds=uds)
        return httpx.AsyncClient(transport=transport, timeout=timeout, follow_redirects=follow_redirects)

    return make


async def echo(talk: Conversation) -> None:
    """Answer each request with its head, whatever its body of known length is."""
    while head := await talk.head():
        await talk.answers(head.encode("latin-1"))


# Requests and responses


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


# Connections


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


async def test_only_so_many_stay_idle(client_of: MakeClient) -> None:
    limits = httpx.Limits(max_connections=10, max_keepalive_connections=2)
    async with serving(echo) as server, client_of(limits=limits) as client:
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(client.get, server.url)
        assert server.connections > 5


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


# Timeouts


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


# Errors


async def test_nobody_listens(client_of: MakeClient) -> None:
    async with client_of() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/")
        with pytest.raises(httpx.ConnectError):
            await client.get("http://does-not-exist.invalid/")


@pytest.mark.parametrize("url", ["ftp://h/", "/path", "h"])
async def test_other_protocols(url: str, client_of: MakeClient) -> None:
    async with client_of() as client:
        with pytest.raises(httpx.UnsupportedProtocol):
            await client.get(url)


@pytest.mark.parametrize(
    "data",
    [b"", b"HTTP/1.1 200", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad\r\n\r\n"],
)
async def test_a_response_that_is_none(data: bytes, client_of: MakeClient) -> None:
    async def say(talk: Conversation) -> None:
        await talk.head()
        await talk.stream.send_all(data)

    async with serving(say) as server, client_of() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(server.url)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ],
)
async def test_a_response_that_is_cut(data: bytes, client_of: MakeClient) -> None:
    async def say(talk: Conversation) -> None:
        await talk.head()
        await talk.stream.send_all(data)

    async with serving(say) as server, client_of() as client:
        async with client.stream("GET", server.url) as response:
            with pytest.raises(httpx.RemoteProtocolError):
                await response.aread()
        assert (await _answers_after(client)) == "ok"


async def _answers_after(client: httpx.AsyncClient) -> str:
    async def answer(talk: Conversation) -> None:
        await talk.head()
        await talk.answers()

    async with serving(answer) as server:
        return (await client.get(server.url)).text


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"x": "a\r\nb: c"}, b""),
        ({"x\r\ny": "z"}, b""),
    ],
)
async def test_a_request_that_cannot_be_sent(fields: dict[str, str], content: bytes, client_of: MakeClient) -> None:
    async with serving(echo) as server, client_of() as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.post(server.url, headers=fields, content=content)


@pytest.mark.parametrize("length", ["2", "4", "x", "-1", "4, 4"])
async def test_a_body_that_is_not_as_long_as_its_head_says(length: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"

    async with serving(echo) as server, httpx.AsyncClient(transport=PoolTransport()) as client:
        for content in (b"abc", pieces()):
            with pytest.raises(httpx.LocalProtocolError):
                await client.post(server.url, headers={"content-length": length}, content=content)


async def test_the_error_of_a_body_is_the_callers(client_of: MakeClient) -> None:
    class OwnError(Exception):
        pass

    async def failing() -> AsyncIterator[bytes]:
        yield b"a"
        await trio.lowlevel.checkpoint()
        raise OwnError

    async with serving(echo) as server, client_of() as client:
        with pytest.raises(OwnError):
            await client.post(server.url, content=failing())
        assert (await _answers_after(client)) == "ok"


# TLS


async def test_tls(client_of: MakeClient) -> None:
    async with serving(echo, server_context()) as server, client_of(verify=trusting_context()) as client:
        for _ in range(2):
            assert (await client.get(server.url)).status_code == 200
        assert server.connections == 1


@pytest.mark.parametrize("cert", ["good", "expired", "other_name"])
async def test_a_certificate_that_is_not_to_be_trusted(cert: str, client_of: MakeClient) -> None:
    verify = True if cert == "good" else trusting_context()
    async with serving(echo, server_context(getattr(authority(), cert))) as server, client_of(verify=verify) as client:
        with pytest.raises(httpx.ConnectError) as caught:
            await client.get(server.url)
        assert str(caught.value) == "" or "certificate is not valid" in str(caught.value)  # httpcore says nothing


async def test_a_name_to_be_checked_in_place_of_the_hosts() -> None:
    transport = PoolTransport(verify=trusting_context())
    async with (
        serving(echo, server_context(authority().other_name)) as server,
        httpx.AsyncClient(transport=transport) as client,
    ):
        extensions = {"sni_hostname": "other.test"}
        assert (await client.get(server.url, extensions=extensions)).status_code == 200
        with pytest.raises(httpx.ConnectError):  # and the connection is not lent to a request that wants another name
            await client.get(server.url)


async def test_verify_can_be_turned_off(client_of: MakeClient) -> None:
    async with serving(echo, server_context(authority().expired)) as server, client_of(verify=False) as client:
        assert (await client.get(server.url)).status_code == 200


async def test_a_clients_certificate(tmp_path: Path, client_of: MakeClient) -> None:
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority().ca.cert_pem.bytes().decode())
    _, chain, key = write_files(tmp_path, authority().client)
    verify = trusting_context()
    verify.load_cert_chain(chain, key)
    async with serving(echo, context) as server, client_of(verify=verify) as client:
        assert (await client.get(server.url)).status_code == 200


async def test_a_response_that_is_cut_below_tls() -> None:
    """It has no length, so that only the missing goodbye tells that it was cut."""

    async def cut(talk: Conversation) -> None:
        await talk.head()
        await talk.says("HTTP/1.1 200 OK", body=b"half")

    transport = PoolTransport(verify=trusting_context())
    async with serving(cut, server_context()) as server, httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(httpx.ReadError, match="cut without a TLS goodbye"):
            await client.get(server.url)


# Of ours alone


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


async def test_trace_tells_what_happens(client_of: MakeClient) -> None:
    names: list[str] = []

    async def trace(name: str, info: dict[str, object]) -> None:
        names.append(name)

    async with serving(echo) as server, client_of() as client:
        await client.get(server.url, extensions={"trace": trace})
    steps = [name for name in names if name.endswith(".complete")]
    for step in ("connection.connect_tcp", "http11.send_request_headers", "http11.receive_response_headers"):
        assert f"{step}.started" in names
        assert f"{step}.complete" in steps
    assert "http11.receive_response_body.complete" in steps


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
