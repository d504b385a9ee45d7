"""An exchange where the sockets are the point: resets, full buffers, connections that die unseen."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from opened import opened
from script import OK, get, message, post
from trioproxy import Deadlines, Proxy, Settings


@final
class Wire:
    """One end of a TCP connection, by hand."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.sock: Final = sock

    async def says(self, text: str) -> None:
        data = text.encode("latin-1")
        while data:
            data = data[await self.sock.send(data) :]

    async def hears(self, end: str) -> str:
        """What comes up to this."""
        heard = b""
        while not heard.endswith(end.encode()):
            data = await self.sock.recv(65536)
            assert data, heard
            heard += data
        return heard.decode("latin-1")

    async def hears_to_the_end(self) -> tuple[bytes, bool]:
        """What comes until the connection ends, and whether a reset ended it."""
        heard = b""
        try:
            while data := await self.sock.recv(65536):
                heard += data
        except ConnectionResetError:
            return heard, True
        return heard, False

    def resets(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@final
class Sockets:
    """A proxy on loopback between raw sockets."""

    def __init__(self, proxy: Proxy, address: tuple[str, int], upstream: trio.socket.SocketType) -> None:
        self.proxy: Final = proxy
        self._address: Final = address
        self._upstream: Final = upstream
        self._wires: list[Wire] = []

    async def client(self, receive_buffer: int | None = None) -> Wire:
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect(self._address)
        return self._wire(sock)

    async def upstream(self) -> Wire:
        sock, _ = await self._upstream.accept()
        return self._wire(sock)

    def _wire(self, sock: trio.socket.SocketType) -> Wire:
        self._wires.append(Wire(sock))
        return self._wires[-1]

    def close(self) -> None:
        for wire in self._wires:
            wire.sock.close()


@asynccontextmanager
async def sockets(**seconds: float) -> AsyncGenerator[Sockets, None]:
    """All of it within ten seconds."""
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen()
        proxy = Proxy(
            opened(f"http://127.0.0.1:{listener.getsockname()[1]}"), settings=Settings(deadlines=Deadlines(**seconds))
        )
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                (address,) = await nursery.start(proxy.serve)
                net = Sockets(proxy, address, listener)
                try:
                    yield net
                finally:
                    net.close()
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["close", "reset"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("framing", ["Content-Length: 5", "Transfer-Encoding: chunked"])
async def test_a_cut_response_ends_by_a_reset_where_only_that_shows_it(framing: str, version: str, way: str) -> None:
    """To HTTP/1.0 a chunked response is one that ends with its connection: an end would make it whole."""
    async with sockets() as net:
        client = await net.client()
        await client.says(message(f"GET / HTTP/{version}", "Host: a"))
        upstream = await net.upstream()
        await upstream.hears("\r\n\r\n")
        body = "he" if framing.startswith("C") else "2\r\nhe\r\n"
        await upstream.says(message("HTTP/1.1 200 OK", framing, body=body))
        open_ended = version == "1.0" and framing.startswith("T")
        head = await client.hears("he" if version == "1.0" or framing.startswith("C") else "2\r\nhe\r\n")
        assert head.startswith("HTTP/1.1 200 OK")
        if way == "close":
            upstream.sock.close()
        else:
            upstream.resets()
        rest, was_reset = await client.hears_to_the_end()
        assert (rest, was_reset) == (b"", open_ended)


async def test_a_response_that_ends_with_its_connection_and_is_reset_is_cut() -> None:
    async with sockets() as net:
        client = await net.client()
        await client.says(get())
        upstream = await net.upstream()
        await upstream.hears("\r\n\r\n")
        await upstream.says(message("HTTP/1.1 200 OK", body="he"))
        await client.hears("2\r\nhe\r\n")
        upstream.resets()
        assert await client.hears_to_the_end() == (b"", False)  # no last chunk
        assert net.proxy.statistics().errors == {"upstream_closed": 1}


async def test_a_client_that_reads_nothing_is_given_up() -> None:
    async with sockets(write_stall=0.2) as net:
        client = await net.client(receive_buffer=4096)
        await client.says(get())
        upstream = await net.upstream()
        await upstream.hears("\r\n\r\n")
        await upstream.says(message("HTTP/1.1 200 OK", "Content-Length: 100000000"))
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await upstream.says("x" * 100_000_000)
        heard, _ = await client.hears_to_the_end()
        assert len(heard) < 50_000_000
        assert net.proxy.statistics().outcomes["client_stalled"] == 1


async def test_an_early_refusal_of_a_long_upload_is_read_by_the_client() -> None:
    """Sent, then only our sending side is closed, and what still comes is read: a reset would destroy the response."""
    async with sockets() as net:
        client = await net.client()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.says, post("x" * 8_000_000))
            upstream = await net.upstream()
            await upstream.sock.recv(65536)
            await upstream.says(message("HTTP/1.1 413 No", "Content-Length: 2", body="no"))
            head = await client.hears("no")
            assert head.startswith("HTTP/1.1 413 No\r\n")
            assert "connection: close" in head


@pytest.mark.parametrize("way", ["close", "reset", "says"])
async def test_an_idle_connection_that_died_or_was_spoiled_is_not_used_again(way: str) -> None:
    """For a POST too: it is seen before anything is written."""
    async with sockets() as net:
        client = await net.client()
        await client.says(get())
        upstream = await net.upstream()
        await upstream.hears("\r\n\r\n")
        await upstream.says(OK)
        await client.hears("ok")
        await wait_all_tasks_blocked()
        assert net.proxy.statistics().pool.idle == 1
        match way:
            case "close":
                upstream.sock.close()
            case "reset":
                upstream.resets()
            case _:
                await upstream.says(OK)  # a poisoned one
        await client.says(post("abc"))
        fresh = await net.upstream()
        await fresh.hears("abc")
        await fresh.says(message("HTTP/1.1 201 Made", "Content-Length: 3", body="new"))
        assert (await client.hears("new")).startswith("HTTP/1.1 201 Made")
        assert net.proxy.statistics().pool.opened == 2


async def test_each_event_reaches_the_client_by_itself() -> None:
    async with sockets() as net:
        client = await net.client()
        await client.says(get())
        upstream = await net.upstream()
        await upstream.hears("\r\n\r\n")
        await upstream.says(message("HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"))
        await client.hears("\r\n\r\n")
        for number in range(50):
            event = f"data: {number:04}\n\n"
            await upstream.says(f"{len(event):x}\r\n{event}\r\n")
            assert await client.hears("\n\n\r\n") == f"c\r\n{event}\r\n"


async def test_a_body_that_fits_no_buffer_arrives_whole() -> None:
    body = "".join(f"{number:08}" for number in range(500_000))
    for path in ("/x", "/v1/completions"):
        async with sockets() as net:
            client = await net.client()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.says, post(body, path))
                upstream = await net.upstream()
                heard = await upstream.hears("00499999")
            assert heard.partition("\r\n\r\n")[2] == body
            await upstream.says(OK)
            await client.hears("ok")
            assert net.proxy.statistics().body_bytes_held == 0


# What leaves a socket without waiting takes a way of its own through the exchange.


@pytest.mark.parametrize(
    ("deadline", "said", "status"),
    [
        ("first_byte", "", 504),
        ("first_event", message("HTTP/1.1 200 OK", "Content-Type: text/event-stream"), None),
        ("idle", message("HTTP/1.1 200 OK", "Content-Length: 5"), None),
        ("total", "", 504),
    ],
)
async def test_the_deadlines_of_a_response(deadline: str, said: str, status: int | None) -> None:
    async with sockets(**{deadline: 0.1}) as net:
        client = await net.client()
        begin = trio.current_time()
        await client.says(post("abc"))
        upstream = await net.upstream()
        await upstream.hears("abc")
        await upstream.says(said)
        if status is None:
            heard, _ = await client.hears_to_the_end()
            assert heard.startswith(b"HTTP/1.1 200 OK\r\n")
            assert not heard.endswith(b"0\r\n\r\n")
        else:
            assert f'"code":"{deadline}_timeout"' in await client.hears("}}")
        assert trio.current_time() - begin >= 0.1
        assert await upstream.hears_to_the_end() == (b"", True)
        assert net.proxy.statistics().errors == {f"{deadline}_timeout": 1}


@pytest.mark.parametrize(
    ("method", "body", "again"),
    [("GET", "", True), ("DELETE", "", True), ("POST", "", False), ("POST", "abc", False), ("PUT", "abc", False)],
)
async def test_a_connection_that_dies_under_a_request(method: str, body: str, again: bool) -> None:
    """A body is gone when its last byte has been sent, so that a request with one is not sent again."""
    async with sockets() as net:
        client = await net.client()
        await client.says(get())
        stale = await net.upstream()
        await stale.hears("\r\n\r\n")
        await stale.says(OK)
        await client.hears("ok")
        request = message(f"{method} /x HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", body=body)
        await client.says(request)
        await stale.hears(body or "\r\n\r\n")
        stale.resets()
        if again:
            fresh = await net.upstream()
            assert (await fresh.hears("\r\n\r\n")).startswith(f"{method} /x HTTP/1.1\r\n")
            await fresh.says(OK)
            await client.hears("ok")
        else:
            assert '"code":"upstream_closed"' in await client.hears("}}")
        assert net.proxy.statistics().pool.opened == 1 + again


async def test_what_is_read_ahead_of_a_request_is_bounded() -> None:
    """Then reading stops, and the client's sending with it, until the request has been answered."""
    async with sockets() as net:
        client = await net.client()
        await client.says(get("/first"))
        upstream = await net.upstream()
        await upstream.hears("\r\n\r\n")
        sent = 0
        body = "x" * 1_000_000
        with trio.move_on_after(0.3):
            await client.says(post(body))
            while sent < 60:
                await client.says(body)
                sent += 1
        assert sent < 30  # what the buffers of the kernel take
        await upstream.says(OK)
        await client.hears("ok")
