"""A proxy whose clients and upstreams speak TLS, over real sockets: what only shows with all of it together."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from certificates import authority, server_context, trusting_context, write_files
from opened import opened
from script import get, read_all
from transports import tcp_pair
from trioproxy import Deadlines, Proxy, ServerTls, Settings
from trioproxy.net import listen, listen_unix

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Handler = Callable[[trio.abc.Stream], Awaitable[None]]


async def answer(stream: trio.abc.Stream) -> None:
    """Answer each request."""
    while await stream.receive_some():
        await stream.send_all(ANSWER)


@asynccontextmanager
async def upstream(handler: Handler, context: ssl.SSLContext | None) -> AsyncGenerator[str]:
    """A model server on loopback; its URL."""

    async def serve(stream: trio.SocketStream) -> None:
        try:
            if context is None:
                await handler(stream)
            else:
                await handler(trio.SSLStream(stream, context, server_side=True))
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def ask(stream: trio.abc.Stream, request: str) -> str:
    """What comes on a connection that the request asks to be closed."""
    await stream.send_all(request.encode())
    return (await read_all(stream)).decode()


CLOSE = "Connection: close"


async def test_tls_on_both_sides(tmp_path: Path) -> None:
    heard: list[str] = []

    async def note(stream: trio.abc.Stream) -> None:
        heard.append((await stream.receive_some()).decode())
        await stream.send_all(ANSWER)
        heard.append((await stream.receive_some()).decode())
        await stream.send_all(ANSWER)

    _, chain, key = write_files(tmp_path)
    async with upstream(note, server_context()) as url, trio.open_nursery() as nursery:
        proxy = Proxy(opened(url), upstream_tls=trusting_context())
        [(host, port)] = await nursery.start(partial(proxy.serve, tls=ServerTls(chain, key)))
        for _ in range(2):
            plain = await trio.open_tcp_stream(host, port)
            stream = trio.SSLStream(plain, trusting_context(), server_hostname="localhost")
            heard_back = await ask(stream, get("/", CLOSE))
            assert heard_back.startswith("HTTP/1.1 200 OK\r\n")
            assert heard_back.endswith("\r\n\r\nok")
            await stream.aclose()
        assert all("x-forwarded-proto: https\r\n" in request for request in heard)
        assert (proxy.statistics().pool.opened, proxy.statistics().pool.reused) == (1, 1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("cert", "what"),
    [
        ("expired", "certificate has expired"),
        ("other_name", "IP address mismatch"),
        ("good", "issuer is not trusted"),
    ],
)
async def test_an_upstream_that_is_not_who_it_should_be(cert: str, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """No byte of a request reaches it, the client gets 502, and the log says why."""
    asked = False

    async def never(stream: trio.abc.Stream) -> None:
        nonlocal asked
        asked = bool(await stream.receive_some())

    trust = trusting_context() if cert != "good" else None  # the system's authorities do not know ours
    async with upstream(never, server_context(getattr(authority(), cert))) as url, trio.open_nursery() as nursery:
        proxy = Proxy(opened(url), upstream_tls=trust)
        [address] = await nursery.start(proxy.serve)
        stream = await trio.open_tcp_stream(*address)
        heard = await ask(stream, get("/", CLOSE))
        await stream.aclose()
        assert heard.startswith("HTTP/1.1 502 ")
        assert '"code":"tls_failed"' in heard
        assert what not in heard
        assert what in caplog.text
        assert not asked
        nursery.cancel_scope.cancel()


async def test_another_upstream_stands_in_for_one_whose_certificate_is_wrong() -> None:
    async with (
        upstream(answer, server_context(authority().expired)) as bad,
        upstream(answer, server_context()) as good,
        trio.open_nursery() as nursery,
    ):
        [address] = await nursery.start(Proxy(opened(bad, good), upstream_tls=trusting_context()).serve)
        stream = await trio.open_tcp_stream(*address)
        assert (await ask(stream, get("/", CLOSE))).endswith("ok")
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_a_new_certificate_is_for_new_connections(tmp_path: Path) -> None:
    _, chain, key = write_files(tmp_path)
    tls = ServerTls(chain, key)
    async with upstream(answer, None) as url, trio.open_nursery() as nursery:
        [(host, port)] = await nursery.start(partial(Proxy(opened(url)).serve, tls=tls))

        async def connect() -> trio.SSLStream[trio.SocketStream]:
            plain = await trio.open_tcp_stream(host, port)
            stream = trio.SSLStream(plain, trusting_context(), server_hostname="localhost")
            await stream.do_handshake()
            return stream

        before = await connect()
        write_files(tmp_path, authority().ca.issue_cert("localhost", common_name="the new one"))
        tls.reload()
        after = await connect()
        assert "the new one" not in str(before.getpeercert())
        assert "the new one" in str(after.getpeercert())
        for stream in (before, after):
            assert (await ask(stream, get("/", CLOSE))).endswith("ok")
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_a_client_that_never_shakes_hands_is_let_go(tmp_path: Path) -> None:
    _, chain, key = write_files(tmp_path)
    proxy = Proxy(opened("http://127.0.0.1:1"), settings=Settings(deadlines=Deadlines(handshake=0.1)))
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(partial(proxy.serve, tls=ServerTls(chain, key)))
        silent = await trio.open_tcp_stream(*address)
        assert await _ends(silent)
        speaks_no_tls = await trio.open_tcp_stream(*address)
        await speaks_no_tls.send_all(get().encode())
        assert await _ends(speaks_no_tls)
        assert (proxy.statistics().connections, proxy.statistics().handshakes_failed) == (0, 2)
        await silent.aclose()
        await speaks_no_tls.aclose()
        nursery.cancel_scope.cancel()


async def test_a_drain_does_not_wait_for_handshakes() -> None:
    proxy = Proxy(opened("http://127.0.0.1:1"))
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(partial(proxy.serve, tls=server_context()))
        silent = await trio.open_tcp_stream(*address)
        await trio.sleep(0.05)  # accepted by now, or else refused
        with trio.fail_after(2):
            proxy.drain(grace=1000)
            assert await _ends(silent)
        await silent.aclose()


async def _ends(stream: trio.abc.Stream) -> bool:
    with trio.fail_after(5):  # noqa: ASYNC912 - a receive is one
        try:
            return await stream.receive_some() == b""
        except trio.BrokenResourceError:
            return True


async def test_an_idle_client_is_told_goodbye() -> None:
    """When its time is up, and when the proxy drains: a proper end, not a cut."""
    for settings, drains in ((Settings(deadlines=Deadlines(client_keep_alive=0.1)), False), (Settings(), True)):
        proxy = Proxy(opened("http://127.0.0.1:1"), settings=settings)
        async with trio.open_nursery() as nursery:
            [(host, port)] = await nursery.start(partial(proxy.serve, tls=server_context()))
            plain = await trio.open_tcp_stream(host, port)
            stream = trio.SSLStream(plain, trusting_context(), server_hostname="localhost")
            await stream.do_handshake()
            if drains:
                while not proxy.statistics().connections:  # noqa: ASYNC110 - a handshake ends at its client first
                    await trio.sleep(0.005)
                proxy.drain()
            assert await read_all(stream) == b""
            await stream.aclose()
            nursery.cancel_scope.cancel()


async def test_a_stream_of_somebody_elses_tls_can_be_served() -> None:
    """It is watched and reset as a plain socket is: a client that leaves while its requests wait is seen at once."""
    asked, left = trio.Event(), trio.Event()

    async def prefill(stream: trio.abc.Stream) -> None:
        assert await stream.receive_some()
        asked.set()
        try:
            await stream.receive_some()
        finally:
            left.set()

    async with upstream(prefill, None) as url, trio.open_nursery() as nursery:
        proxy = Proxy(opened(url))
        theirs, ours = _socket_streams()
        served = trio.SSLStream(ours, server_context(), server_side=True, https_compatible=True)
        nursery.start_soon(proxy.serve_stream, served)
        client = trio.SSLStream(theirs, trusting_context(), server_hostname="localhost", https_compatible=True)
        # Above what is read ahead, so that the proxy does not read when the client leaves.
        await client.send_all((get() * 4000).encode())
        await asked.wait()
        with trio.fail_after(2):
            await trio.aclose_forcefully(client)
            await left.wait()
        assert proxy.statistics().outcomes["client_closed"] == 1


def _socket_streams() -> tuple[trio.SocketStream, trio.SocketStream]:
    near, far = tcp_pair()
    return trio.SocketStream(trio.socket.from_stdlib_socket(near)), trio.SocketStream(
        trio.socket.from_stdlib_socket(far)
    )


async def test_several_listeners_of_several_kinds(tmp_path: Path) -> None:
    async with upstream(answer, None) as url, trio.open_nursery() as nursery:
        listeners = [*await listen("127.0.0.1", 0), listen_unix(str(tmp_path / "proxy"))]
        names = await nursery.start(Proxy(opened(url)).serve_listeners, listeners)
        assert names == [listener.name for listener in listeners]
        for stream in (
            await trio.open_tcp_stream(*listeners[0].address),
            await trio.open_unix_socket(tmp_path / "proxy"),
        ):
            assert (await ask(stream, get("/", CLOSE))).endswith("ok")
            await stream.aclose()
        nursery.cancel_scope.cancel()
    assert not await trio.to_thread.run_sync(lambda: list(tmp_path.iterdir()))


async def test_an_upstream_at_a_unix_socket(tmp_path: Path) -> None:
    model = listen_unix(str(tmp_path / "model"))
    async with upstream(answer, None) as url, trio.open_nursery() as nursery:
        await nursery.start(Proxy(opened(url)).serve_listeners, [model])  # a proxy is a model server too
        [address] = await nursery.start(Proxy(opened(f"unix:{tmp_path / 'model'}")).serve)
        stream = await trio.open_tcp_stream(*address)
        assert (await ask(stream, get("/", CLOSE))).endswith("ok")
        await stream.aclose()
        nursery.cancel_scope.cancel()
