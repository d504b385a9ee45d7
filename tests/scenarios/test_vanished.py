"""Peers that vanish: their packets are dropped, and nobody is told. And peers that live and do not read.

Hosts are network namespaces around a router that drops a host's packets on demand (bench/namespaces.py); what is tested
is the kernel's clock, so time is real here, and everything that can wait at once does.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, closing
from typing import Final, final

import msgspec
import pytest
import trio

from bench.namespaces import Host, Network, NoNamespacesError, network
from opened import opened
from trioproxy import Deadlines, Listener, Proxy, Settings
from trioproxy.bench.mock import MockServer, RequestRecord
from trioproxy.net import Address, SocketTransport
from trioproxy.transport import Transport

SOON: Final = 5.0
"""Seconds after which something that should be done at once has failed."""
PATIENCE: Final = 4.0
"""The least that ``vanished`` can be."""
LATE: Final = 3.0
"""Seconds that the kernel may be later: a timer that backs off, a machine that has other things to do."""
WINDOW: Final = 4096
"""Of a client that is to have a small receive buffer."""


def request(name: str, *, stream: bool = True, padding: int = 0, **knobs: float | str) -> bytes:
    """A chat request for the mock, with a name for its record."""
    said = {"model": "m", "stream": stream, "metadata": {"id": name, **knobs}, "messages": "x" * padding}
    body = json.dumps(said).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )


@final
class Client:
    """A client on a raw socket of some host."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.sock: Final = sock
        self.received = bytearray()

    async def send(self, data: bytes) -> None:
        """Hand everything to the kernel."""
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                done += await self.sock.send(view[done:])

    async def until(self, mark: bytes) -> bytes:
        """Receive until the mark; returns everything up to now."""
        while mark not in self.received:
            data = await self.sock.recv(65536)
            assert data, f"the connection ended after {bytes(self.received)!r}"
            self.received += data
        return bytes(self.received)

    async def to_end(self) -> bytes:
        """Receive until the connection ends, in whatever way; returns everything up to now."""
        try:
            while data := await self.sock.recv(65536):
                self.received += data
        except ConnectionResetError:
            pass
        return bytes(self.received)


@final
class Ground:
    """The hosts, and the connections that a test makes from them."""

    def __init__(self, hosts: Network) -> None:
        self._hosts: Final = hosts
        self.ours, self.model, self.leaving, self.staying = hosts.hosts
        self._clients: list[Client] = []

    def cut(self, host: Host) -> None:
        """Drop the host's packets from now on."""
        self._hosts.cut(host)

    def mend(self, host: Host) -> None:
        """Let them through again."""
        self._hosts.mend(host)

    async def connect(self, host: Host, address: tuple[str, int], *, window: int | None = None) -> Client:
        """A client on this host, closed when the test is over."""
        sock = trio.socket.from_stdlib_socket(host.open_socket())
        client = Client(sock)
        self._clients.append(client)
        if window is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        with trio.fail_after(SOON):
            await sock.connect(address)
        return client

    async def dial(self, address: Address) -> Transport:
        """A connection from the proxy's host, as the proxy itself makes them."""
        client = await self.connect(self.ours, (str(address.sockaddr[0]), int(address.sockaddr[1])))
        sock = client.sock
        return SocketTransport(socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach()), patient=True)

    def close(self) -> None:
        """Close all of them."""
        for client in self._clients:
            client.sock.close()


@pytest.fixture
def hosts() -> Generator[Network]:
    """Hosts: the proxy's, the model server's, and two of clients, one of which stays."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(network("proxy", "model", "leaving", "staying"))
        except NoNamespacesError as error:
            pytest.skip(f"cannot drop packets here: {error}")
        yield made


@pytest.fixture
async def ground(hosts: Network) -> AsyncGenerator[Ground]:  # noqa: ASYNC124 - closing Trio's sockets needs Trio
    """The hosts, with what was connected from them closed in the end."""
    with closing(Ground(hosts)) as made:
        yield made


@final
class World:
    """A proxy and a mock model server on hosts of their own, in this process."""

    def __init__(self, ground: Ground, proxy: Proxy, mock: MockServer, address: tuple[str, int]) -> None:
        self.ground: Final = ground
        self.proxy: Final = proxy
        self.mock: Final = mock
        self.address: Final = address

    async def asking(self, host: Host, data: bytes, *, window: int | None = None) -> Client:
        """A client on this host that has sent this."""
        client = await self.ground.connect(host, self.address, window=window)
        await client.send(data)
        return client

    async def record(self, name: str, reached: Callable[[RequestRecord], object]) -> RequestRecord:
        """The record of a request, when it has come so far."""
        with trio.fail_after(SOON):
            return await self.mock.wait_record(lambda record: record.id == name and reached(record))

    @property
    def outcomes(self) -> dict[str, int]:
        """How many requests have ended how."""
        return {outcome: count for outcome, count in self.proxy.statistics().outcomes.items() if count}

    async def until(self, holds: Callable[[], bool], seconds: float = SOON) -> None:
        """Wait until something is so."""
        with trio.fail_after(seconds):  # noqa: ASYNC912 - no wait if it is so
            while not holds():  # noqa: ASYNC110 - statistics change without an event to wait for
                await trio.sleep(0.01)


@asynccontextmanager
async def world(ground: Ground, settings: Settings) -> AsyncGenerator[World]:
    """Proxy and model server, as long as the block runs."""
    mock = MockServer()
    async with trio.open_nursery() as nursery:
        upstream = _listening(ground.model)
        accepts = trio.SocketListener(trio.socket.from_stdlib_socket(upstream))
        await nursery.start(trio.serve_listeners, mock.serve_stream, [accepts])
        async with proxying(ground, upstream, settings) as (proxy, address):
            yield World(ground, proxy, mock, address)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def proxying(
    ground: Ground, upstream: socket.socket, settings: Settings
) -> AsyncGenerator[tuple[Proxy, tuple[str, int]]]:
    """A proxy on its host in front of what listens there, and its address."""
    host, port = upstream.getsockname()
    proxy = Proxy(opened(f"http://{host}:{port}"), settings=settings, connector=ground.dial)
    listener = Listener(_listening(ground.ours))
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve_listeners, [listener])
        yield proxy, listener.address
        nursery.cancel_scope.cancel()


def _listening(host: Host) -> socket.socket:
    sock = host.open_socket()
    sock.bind((host.address, 0))
    sock.listen()
    return sock


def impatient(**deadlines: float) -> Settings:
    """Settings of which no deadline but ``vanished`` can end anything."""
    return Settings(
        deadlines=Deadlines(
            **{"vanished": PATIENCE, "write_stall": math.inf, "body_stall": math.inf, "connect": 1, **deadlines}
        )
    )


# Clients


async def test_clients_that_vanish(ground: Ground) -> None:
    """In every stage at once: the upstream of each is freed within the bound, not before."""
    async with world(ground, impatient()) as scene:
        leaving = ground.leaving
        await scene.asking(leaving, request("in prefill", prefill="inf"))
        await scene.asking(leaving, request("after an early head", prefill="inf", head="early"))
        await scene.asking(leaving, request("between events", stall_after=1))
        await scene.asking(leaving, request("mid-stream", interval=0.01, tokens=10**6))
        # Its window is closed and the proxy waits to send; or cannot know, since there is room in its buffer.
        await scene.asking(leaving, request("stalled", token_bytes=65536, interval=0.01, tokens=10**6), window=WINDOW)
        await scene.asking(leaving, request("window closed", interval=0.05, tokens=10**6), window=WINDOW)
        # The proxy does not read, and waits for the hang-up alone.
        await scene.asking(leaving, request("read ahead", prefill="inf") + b"x" * 160_000)
        idle = await scene.asking(leaving, request("before", tokens=1))
        with trio.fail_after(SOON):
            await idle.until(b"0\r\n\r\n")
        stays = await scene.asking(ground.staying, request("staying", interval=0.5, tokens=14))
        names = [record.id for record in scene.mock.records if record.id not in ("before", "staying")]
        await trio.sleep(1)
        assert len(names) == 7
        assert scene.outcomes == {"completed": 1}

        ground.cut(leaving)
        began = time.monotonic()
        await scene.until(lambda: scene.outcomes.get("client_closed") == 7, PATIENCE + LATE)
        for name in names:
            record = await scene.record(name, lambda record: record.abandoned)
            assert record.abandoned is not None
            print(f"{name}: {record.abandoned - began:.1f} s")
            # The probes of a silent one count from its last packet, a second before it was cut off.
            assert PATIENCE - 1.5 < record.abandoned - began < PATIENCE + LATE
        await scene.until(lambda: scene.proxy.statistics().connections == 1)
        with trio.fail_after(SOON):
            await stays.until(b"[DONE]")
        assert scene.outcomes == {"client_closed": 7, "completed": 2}
        assert scene.proxy.statistics().pool.held == 0


async def test_a_client_that_vanishes_while_its_upload_is_not_taken(ground: Ground) -> None:
    """The model server does not read, so that the proxy does not either."""
    settings = Settings(body="stream", deadlines=impatient().deadlines)
    with closing(_listening(ground.model)) as upstream:
        async with proxying(ground, upstream, settings) as (proxy, address), trio.open_nursery() as nursery:
            scene = World(ground, proxy, MockServer(), address)
            client = await scene.asking(ground.leaving, b"")
            nursery.start_soon(client.send, request("", padding=32 << 20)[:-1])
            await scene.until(lambda: proxy.statistics().body_bytes_held >= 65536)
            await trio.sleep(1)
            assert scene.outcomes == {}
            ground.cut(ground.leaving)
            await scene.until(lambda: scene.outcomes == {"client_closed": 1}, PATIENCE + LATE)
            assert proxy.statistics().pool.held == 0
            nursery.cancel_scope.cancel()


async def test_a_client_that_does_not_read_is_no_vanished_one(ground: Ground) -> None:
    """It answers the kernel's probes: only its own deadline cuts it, and only if it is asked to take something."""
    stall = 1.5 * PATIENCE
    async with world(ground, impatient(write_stall=stall)) as scene:
        began = time.monotonic()
        await scene.asking(
            ground.staying, request("stalled", token_bytes=65536, interval=0, tokens=10_000), window=WINDOW
        )
        # What it does not take has room in the proxy's send buffer: nothing blocks, nobody could tell the kernel.
        slow = await scene.asking(
            ground.staying, request("slow", token_bytes=2000, interval=0.5, tokens=16), window=WINDOW
        )
        # Its last byte is with the kernel long before it is taken.
        late = await scene.asking(ground.staying, request("late", token_bytes=20_000, tokens=1), window=WINDOW)
        stalled = await scene.record("stalled", lambda record: record.tokens)
        with trio.fail_after(stall + LATE):
            await scene.mock.wait_record(lambda record: record.id == "stalled" and record.abandoned)
        assert stalled.abandoned is not None
        print(f"stalled: {stalled.abandoned - began:.1f} s")
        assert stall - 0.1 < stalled.abandoned - began < stall + LATE
        assert scene.outcomes == {"client_stalled": 1, "completed": 1}
        for client in (slow, late):
            with trio.fail_after(2 * SOON):
                await client.until(b"[DONE]")
        assert scene.outcomes == {"client_stalled": 1, "completed": 2}


# Upstreams


async def test_upstreams_that_vanish(ground: Ground) -> None:
    """Before their heads, the client is told; within their responses, it sees a truncation; an idle connection is not
    lent any more."""
    async with world(ground, impatient(upstream_keep_alive=60)) as scene:
        prefill = await scene.asking(ground.staying, request("in prefill", prefill="inf"))
        whole = await scene.asking(ground.staying, request("not streamed", stream=False, prefill="inf"))
        early = await scene.asking(ground.staying, request("after an early head", prefill="inf", head="early"))
        stream = await scene.asking(ground.staying, request("mid-stream", interval=0.01, tokens=1_000_000))
        with trio.fail_after(SOON):
            await stream.until(b"0003 ")
        await scene.record("after an early head", lambda record: record.status)
        idle = await scene.asking(ground.staying, request("idle", tokens=1))
        with trio.fail_after(SOON):
            await idle.until(b"0\r\n\r\n")
        await trio.sleep(0.5)
        ground.cut(ground.model)
        began = time.monotonic()
        for client in (prefill, whole):
            with trio.fail_after(PATIENCE + LATE):
                head = await client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 504 ")
            assert b'"code":"upstream_vanished"' in (await client.until(b"}}")).replace(b" ", b"")
        for client in (early, stream):
            with trio.fail_after(PATIENCE + LATE):
                assert not (await client.to_end()).endswith(b"0\r\n\r\n")
        assert PATIENCE - 1.5 < time.monotonic() - began < PATIENCE + LATE
        assert scene.outcomes == {"completed": 1, "upstream_timeout": 4}
        assert scene.proxy.statistics().errors["upstream_vanished"] == 4
        before = scene.proxy.statistics().pool
        assert (before.held, before.idle) == (0, 1)
        ground.mend(ground.model)
        idle.received.clear()
        await idle.send(request("after", tokens=1))
        with trio.fail_after(SOON):
            await idle.until(b"0\r\n\r\n")
        after = scene.proxy.statistics().pool
        assert (after.opened, after.reused) == (before.opened + 1, before.reused)


async def test_an_upstream_that_vanishes_with_a_prompt_in_flight(ground: Ground) -> None:
    async with world(ground, impatient(upstream_keep_alive=60)) as scene:
        client = await scene.asking(ground.staying, request("first", tokens=1))
        with trio.fail_after(SOON):
            await client.until(b"0\r\n\r\n")
        client.received.clear()
        ground.cut(ground.model)
        await client.send(request("second", tokens=1))
        with trio.fail_after(PATIENCE + LATE):
            assert b"upstream_vanished" in await client.until(b"}}")
        assert scene.proxy.statistics().pool.opened == 1  # it may have been acted on: a POST is not sent twice


# As it is by default, in processes of their own


async def test_the_command_by_default(ground: Ground) -> None:
    """30 s for a peer that vanishes, whether data are in flight or not; more for one that only does not read."""
    ours, model, leaving, staying = ground.ours, ground.model, ground.leaving, ground.staying
    stall = 33
    async with (
        _running(model, "mock", "--listen", f"{model.address}:8000"),
        _running(
            ours,
            *("serve", "--listen", f"{ours.address}:8080", "--upstream", f"http://{model.address}:8000"),
            *("--deadline", f"write_stall={stall}"),
        ),
    ):
        address = (ours.address, 8080)
        began = time.monotonic()
        for host, window, data in (
            (leaving, None, request("prefill", prefill="inf")),
            (leaving, None, request("mid-stream", interval=0.05, tokens=10**6)),
            (staying, WINDOW, request("stalled", token_bytes=65536, interval=0, tokens=10_000)),
            (staying, WINDOW, request("slow", token_bytes=2000, interval=1, tokens=1000)),
        ):
            client = await ground.connect(host, address, window=window)
            await client.send(data)
        await trio.sleep(1)
        ground.cut(leaving)
        cut = time.monotonic()
        await trio.sleep_until(trio.current_time() + stall + 2)
        seen = await _records(await ground.connect(staying, (model.address, 8000)))
        abandoned = {record.id: record.abandoned for record in seen}
        assert abandoned.pop("slow") is None
        after = {name: math.inf if when is None else when - cut for name, when in abandoned.items()}
        print(after)
        assert 28 < after["prefill"] < 35
        assert 28 < after["mid-stream"] < 35
        assert stall - 0.1 < after["stalled"] + cut - began < stall + LATE


@asynccontextmanager
async def _running(host: Host, *arguments: str) -> AsyncGenerator[None]:
    """A command of trioproxy on this host, from when it listens."""
    command = host.command(sys.executable, "-m", "trioproxy", *arguments)
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with process.stdout:
            with trio.fail_after(2 * SOON):
                assert b"listens on" in await process.stdout.receive_some(1024)
            yield
    finally:
        process.kill()
        with trio.move_on_after(SOON, shield=True):
            await process.wait()


async def _records(client: Client) -> list[RequestRecord]:
    await client.send(b"GET /mock/requests HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    with trio.fail_after(SOON):
        _, _, body = (await client.to_end()).partition(b"\r\n\r\n")
    return msgspec.json.decode(body, type=list[RequestRecord])
