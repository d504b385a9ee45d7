"""A proxy as a whole: it starts, it ends, and one failure is not another's. How it drains: test_server_drain.py."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import sys
from functools import partial

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from opened import opened
from script import OK, OK_HEARD, conversation, get, message, read_all, relayed
from trioproxy import Proxy, Settings, server
from trioproxy.exchange import Exchange
from trioproxy.net import Address, Listener, StreamTransport
from trioproxy.pace import Pace
from trioproxy.transport import Transport

# Making and starting one


def test_what_a_proxy_cannot_be_made_of() -> None:
    with pytest.raises(ValueError, match="at least one upstream"):
        Proxy([])
    with pytest.raises(TypeError, match=r"give \[url\]"):
        Proxy("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="must look like http://HOST:PORT"):
        Proxy(["http://127.0.0.1:1", "nonsense"])


def test_a_proxy_can_be_made_outside_of_trio() -> None:
    assert Proxy(opened("http://model:8000")).statistics().connections == 0


async def test_it_tells_where_it_listens_and_two_cannot_listen_at_one_place() -> None:
    proxy = Proxy(opened("http://127.0.0.1:1"))
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        assert address[0] == "127.0.0.1"
        with pytest.raises(OSError) as caught:
            await Proxy(opened("http://127.0.0.1:1")).serve(*address)
        assert caught.value.errno == errno.EADDRINUSE
        stream = await trio.open_tcp_stream(*address)
        await stream.send_all(get().encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 503")
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_two_proxies_share_nothing(autojump_clock: MockClock) -> None:
    async with conversation() as one, conversation() as other:
        client = await one.client()
        await client.says(get())
        upstream = await one.upstream()
        via = (await upstream.takes()).partition("via: 1.1 ")[2].partition("\r\n")[0]
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        assert other.proxy.statistics() == Proxy(opened("http://10.0.0.1:80")).statistics()
        # The other one has an idle connection of its own to open, and takes the name of the first for no loop.
        client = await other.client()
        await client.says(get("/", f"Via: 1.1 {via}"))
        upstream = await other.upstream()
        assert (await upstream.takes()).count("via: 1.1 ") == 1
        await upstream.says(OK)
        await client.hears(OK_HEARD)
        one.proxy.drain()
        await client.says(get())
        await upstream.takes()
        await upstream.says(OK)
        await client.hears(OK_HEARD)


# Ending


async def test_cancelling_serve_ends_everything() -> None:
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    asked = trio.Event()
    ended = trio.Event()

    async def upstream(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            asked.set()
            with contextlib.suppress(trio.BrokenResourceError):
                assert await stream.receive_some() == b""
            ended.set()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, upstream, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        proxy = Proxy(opened(f"http://127.0.0.1:{port}"))
        async with trio.open_nursery() as serving:
            (address,) = await serving.start(proxy.serve)
            idle, waiting, uploading = [await trio.open_tcp_stream(*address) for _ in range(3)]
            await waiting.send_all(get().encode())
            await uploading.send_all(message("POST /v1/completions HTTP/1.1", "Host: a", "Content-Length: 9").encode())
            with trio.fail_after(5):
                await asked.wait()
            serving.cancel_scope.cancel()
        for client in (idle, waiting, uploading):
            assert await read_all(client) == b""
            await client.aclose()
        with trio.fail_after(5):
            await ended.wait()
        with pytest.raises(OSError):
            await trio.open_tcp_stream(*address)
        now = proxy.statistics()
        assert (now.connections, now.outcomes["drained"], now.pool.held, now.pool.idle) == (0, 2, 0, 0)
        nursery.cancel_scope.cancel()
    assert not before or len(os.listdir("/proc/self/fd")) == before


async def test_a_stream_can_be_served_without_a_listener_and_leaves_nothing_open(autojump_clock: MockClock) -> None:
    """``serve_stream`` returns when the client has left, and closes the upstream's idle connections then."""
    transports: list[StreamTransport] = []

    async def answer(stream: trio.abc.Stream) -> None:
        assert b"x-forwarded-for" not in await stream.receive_some()  # the client has no address
        await stream.send_all(OK.encode())
        assert await stream.receive_some() == b""

    async def connector(address: Address) -> Transport:
        await trio.lowlevel.checkpoint()
        near, far = memory_stream_pair()
        nursery.start_soon(answer, far)
        transports.append(StreamTransport(near))
        return transports[0]

    proxy = Proxy(opened("http://10.0.0.1:80"), connector=connector)
    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.serve_stream, far)
        await near.send_all(get().encode())
        assert (await near.receive_some()).startswith(b"HTTP/1.1 200")
        await wait_all_tasks_blocked()
        assert proxy.statistics().pool.idle == 1
        await near.aclose()
    assert transports[0].closed
    assert proxy.statistics().connections == proxy.statistics().pool.idle == 0


# One failure is not another's


async def test_a_bug_in_one_exchange_is_a_500_for_it_alone(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    serve = Exchange._serve  # pyright: ignore[reportPrivateUsage] - where the bug is planted

    async def with_a_bug(self: Exchange) -> None:
        request = self._request  # pyright: ignore[reportPrivateUsage]
        if request is not None and request.target == b"/bug":
            raise ZeroDivisionError("secret")
        await serve(self)

    monkeypatch.setattr(Exchange, "_serve", with_a_bug)
    async with conversation(failures=1) as talk:
        unlucky, lucky = await talk.client(), await talk.client()
        await lucky.says(get("/1"))
        await (upstream := await talk.upstream()).takes()
        await unlucky.says(get("/bug"))
        heard = await unlucky.hears_refusal(500, "internal_error", closes=False)
        assert "secret" not in heard
        assert "ZeroDivision" not in heard
        await upstream.says(OK)
        await lucky.hears(OK_HEARD)
        await unlucky.says(get("/2"))
        await upstream.takes()
        await upstream.says(OK)
        await unlucky.hears(OK_HEARD)
        assert talk.count("internal_error") == 1
        assert talk.count("completed") == 2
    assert "ZeroDivisionError: secret" in caplog.text


async def test_a_bug_in_one_response_cuts_it_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    progress, seen = Pace.progress, list[Pace]()

    def with_a_bug(self: Pace) -> None:
        seen.append(self)
        if self is seen[0]:
            raise ZeroDivisionError
        progress(self)

    monkeypatch.setattr(Pace, "progress", with_a_bug)
    async with conversation(failures=1) as talk:
        unlucky, lucky = await talk.client(), await talk.client()
        await unlucky.says(get("/1"))
        await (one := await talk.upstream()).takes()
        await lucky.says(get("/2"))
        await (other := await talk.upstream()).takes()
        for upstream in (one, other):
            await upstream.says(message("HTTP/1.1 200 OK", "Content-Length: 4", body="ab"))
        await unlucky.hears(relayed("HTTP/1.1 200 OK", "Content-Length: 4", body="ab"))
        await unlucky.hears_end()
        await one.hears_end()
        await other.says("cd")
        await lucky.hears(relayed("HTTP/1.1 200 OK", "Content-Length: 4", body="abcd"))


async def test_a_bug_in_one_connection_ends_it_alone(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    def with_a_bug(*args: object) -> None:
        raise ZeroDivisionError

    async with conversation(failures=1) as talk:
        unlucky, lucky = await talk.client(), await talk.client()
        await lucky.says(get())
        await (upstream := await talk.upstream()).takes()
        with monkeypatch.context() as patch:
            patch.setattr("trioproxy.connection.read_request_head", with_a_bug)
            await unlucky.says(get())
            await unlucky.hears_end()
        await upstream.says(OK)
        await lucky.hears(OK_HEARD)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOBUFS, errno.EPROTO, errno.EPERM, errno.ENETDOWN])
async def test_accepting_goes_on_after_an_error(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Linux hands errors of the network to accept, too (accept(2)): nothing from outside ends the proxy."""
    errors = [code, code]

    accept_nowait = Listener.accept_nowait

    def failing(listener: Listener) -> tuple[Transport, str] | None:
        if errors:
            raise OSError(errors.pop(), "planted")
        return accept_nowait(listener)

    monkeypatch.setattr(Listener, "accept_nowait", failing)
    proxy = Proxy(opened("http://127.0.0.1:1"))
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        with trio.fail_after(2):
            async with await trio.open_tcp_stream(*address) as stream:
                await stream.send_all(get().encode())
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 503")
        nursery.cancel_scope.cancel()
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum(message.startswith("cannot accept a connection") for message in messages) == 2


# Names of upstreams


async def test_a_name_is_looked_up_while_clients_are_served_and_a_failure_is_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tried again until it is known, refreshed from then on; a request in between is told."""
    looked_up = 0

    def look_up(host: str, port: int) -> list[Address]:
        nonlocal looked_up
        looked_up += 1
        if looked_up <= 2:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return [Address(socket.AF_INET, (f"10.0.0.{looked_up}", port))]

    dialled: list[object] = []

    async def connector(address: Address) -> Transport:
        await trio.lowlevel.checkpoint()
        dialled.append(address.sockaddr)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr("trioproxy.upstream.endpoint.look_up", look_up)
    monkeypatch.setattr(server, "_RESOLVE_RETRY", 0.05)
    proxy = Proxy(opened("http://model:80"), settings=Settings(resolve_interval=0.1), connector=connector)
    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.serve_stream, far)
        with trio.fail_after(5):
            await near.send_all(get().encode())
            assert b"name of the model server cannot be resolved" in await near.receive_some()
            assert dialled == []
            for refreshed in ("10.0.0.3", "10.0.0.4"):
                while (refreshed, 80) not in dialled:
                    await trio.sleep(0.01)
                    await near.send_all(get().encode())
                    assert (await near.receive_some()).startswith(b"HTTP/1.1 503")
        await near.aclose()
