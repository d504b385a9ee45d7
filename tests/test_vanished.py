"""What the proxy does about upstreams that the system says have vanished, and when it has the system look.

On connections in memory; what the system itself does is tested in scenarios/test_vanished.py.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, final

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from network import End, Network, Peer, Script
from opened import opened
from script import get, message, post
from trioproxy import Deadlines, Proxy, Settings

OK: Final = message("HTTP/1.1 200 OK", "Content-Length: 2", body="ok").encode()
BEGUN: Final = message("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body="2\r\nok\r\n").encode()


@final
class Scene:
    """A proxy in memory, and a client of it."""

    def __init__(self, nursery: trio.Nursery, settings: Settings, connections: Sequence[Script]) -> None:
        self._nursery = nursery
        self._network = Network(nursery, {80: connections})
        self.proxy: Final = Proxy(opened("http://10.0.0.1"), settings=settings, connector=self._network.connect)
        self.client = self.connect()

    @property
    def upstreams(self) -> list[End]:
        """The proxy's ends of the connections to its upstream, in order."""
        return self._network.dialled

    def connect(self) -> trio.abc.Stream:
        """A client."""
        near, far = memory_stream_pair()
        self._nursery.start_soon(self.proxy.serve_stream, far)
        return near

    async def exchange(self, text: str) -> str:
        """Send this, and hear what comes at once."""
        await self.client.send_all(text.encode())
        return await self.hears()

    async def hears(self) -> str:
        """What comes at once; a dot if it is the end."""
        heard = b""
        with trio.move_on_after(0.001):
            while data := await self.client.receive_some(65536):
                heard += data
            heard += b"."
        return heard.decode()

    def outcome(self) -> dict[str, int]:
        """How many requests have ended how."""
        return {outcome: count for outcome, count in self.proxy.statistics().outcomes.items() if count}


@asynccontextmanager
async def scene(settings: Settings, *connections: Script) -> AsyncGenerator[Scene]:
    """A scene for the length of the block; each connection to the upstream has its script."""
    async with trio.open_nursery() as nursery:
        yield Scene(nursery, settings, connections)
        nursery.cancel_scope.cancel()


async def answers(peer: Peer) -> None:
    """Answer every request that has no body."""
    while True:
        await peer.until(b"\r\n\r\n")
        await peer.send(OK)


async def is_silent(peer: Peer) -> None:
    """Take requests and say nothing."""
    await peer.to_end()


async def answers_once(peer: Peer) -> None:
    """Answer the first request, and no other."""
    await peer.until(b"\r\n\r\n")
    await peer.send(OK)
    await peer.to_end()


async def begins(peer: Peer) -> None:
    """Answer in part."""
    await peer.until(b"\r\n\r\n")
    await peer.send(BEGUN)
    await peer.to_end()


def watching(**deadlines: float) -> Settings:
    return Settings(deadlines=Deadlines(upstream_keep_alive=60, **deadlines))


async def test_before_the_head_the_client_is_told(autojump_clock: MockClock) -> None:
    async with scene(watching(), is_silent) as on:
        assert await on.exchange(post("abc")) == ""
        on.upstreams[0].vanish()
        heard = await on.hears()
        assert heard.startswith("HTTP/1.1 504 ")
        assert '"code":"upstream_vanished"' in heard
        assert on.outcome() == {"upstream_timeout": 1}
        assert on.upstreams[0].closed


async def test_within_a_response_it_sees_a_truncation(autojump_clock: MockClock) -> None:
    async with scene(watching(), begins) as on:
        assert (await on.exchange(get())).endswith("2\r\nok\r\n")
        on.upstreams[0].vanish()
        assert await on.hears() == "."
        assert on.outcome() == {"upstream_timeout": 1}
        assert on.proxy.statistics().errors["upstream_vanished"] == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_on_a_connection_that_was_used_before(method: str, autojump_clock: MockClock) -> None:
    """As when it is closed: what is idempotent is sent once more, the rest never."""
    async with scene(watching(), answers_once, answers) as on:
        await on.exchange(get())
        assert await on.exchange(message(f"{method} / HTTP/1.1", "Host: a")) == ""
        on.upstreams[0].vanish()
        heard = await on.hears()
        assert heard.startswith("HTTP/1.1 200 " if method == "GET" else "HTTP/1.1 504 ")
        assert len(on.upstreams) == (2 if method == "GET" else 1)


async def test_an_idle_connection_is_not_lent(autojump_clock: MockClock) -> None:
    async with scene(watching(), answers) as on:
        await on.exchange(get())
        on.upstreams[0].vanish()
        assert (await on.exchange(get())).startswith("HTTP/1.1 200 ")
        assert len(on.upstreams) == 2


@pytest.mark.parametrize(("patience", "interval"), [(30, 5), (60, 10), (4, 1), (20, 3)])
async def test_connections_are_looked_after_while_held_and_while_idle(
    patience: float, interval: float, autojump_clock: MockClock
) -> None:
    async with scene(watching(vanished=patience), is_silent, answers_once) as on:
        clients = [on.connect() for _ in range(3)]  # each of which has the proxy at work
        await on.exchange(get())
        await clients[0].send_all(get().encode())
        await wait_all_tasks_blocked()
        assert on.proxy.statistics().pool.idle == 1
        await trio.sleep(4.5 * interval)
        for end in on.upstreams:
            assert end.watched == [patience] * 4


async def test_nobody_is_looked_after(autojump_clock: MockClock) -> None:
    async with scene(watching(vanished=math.inf), is_silent) as on:
        await on.exchange(get())
        await trio.sleep(200)
        assert on.upstreams[0].watched == []
