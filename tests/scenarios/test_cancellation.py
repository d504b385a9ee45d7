"""Clients that leave, over real sockets: in every stage and in every way, the model server is told at once.

The mock model server is the referee: its record says when it saw the request abandoned and how many tokens it made
after that. Where it would read too much to be useful, a raw socket stands in for it. Where a stage is over in no
time on a virtual clock, see test_cancel_sweep.py; here it is the kernel's behaviour that is tested.
"""

from __future__ import annotations

import enum
import json
import os
import resource
import select
import socket
import struct
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

import httpx  # noqa: ASYNC127 - what the openai SDK uses
import pytest
import trio
import trio.testing

from certificates import server_context, trusting_context
from opened import opened
from trioproxy import Proxy, Settings
from trioproxy.bench.mock import MockServer, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Generator

Scheme: TypeAlias = Literal["http", "https", "unix"]
SOON: Final = 5.0
"""Seconds after which something that should be done at once has failed."""
STREAMED: Final = Settings(body="stream")
ALLOW: Final = Settings(client_half_close="allow")
_RESET: Final = struct.pack("ii", 1, 0)


@final
class Way(enum.Enum):
    """How a client leaves."""

    FIN = "fin"
    RST = "rst"
    DEADLINE = "deadline"
    """Its own deadline passes: the task that has the connection is cancelled, and closes it."""


@final
class Client:
    """A client on a raw socket.

    :param stream: what is on it, if that is TLS.
    """

    def __init__(self, sock: trio.socket.SocketType, name: str, stream: trio.abc.Stream | None = None) -> None:
        self.sock = sock
        self.stream = stream or trio.SocketStream(sock)
        self.name = name
        """Unique among the clients of a bench, for the mock's records."""
        self.received = bytearray()

    async def send(self, data: bytes) -> None:
        """Hand everything to the kernel."""
        await self.stream.send_all(data)

    async def until(self, mark: bytes) -> bytes:
        """Receive until the mark; returns everything up to now."""
        with trio.fail_after(SOON):  # noqa: ASYNC912 - no wait if it is there
            while mark not in self.received:
                data = await self.stream.receive_some(65536)
                assert data, f"the connection ended after {bytes(self.received)!r}"
                self.received += data
        return bytes(self.received)

    async def to_end(self) -> bytes:
        """Receive until the connection ends; returns everything up to now."""
        with trio.fail_after(SOON):
            while data := await self.stream.receive_some(65536):
                self.received += data
        return bytes(self.received)

    def send_nowait(self, data: bytes) -> None:
        """Hand a little to the kernel, and let nobody else run."""
        assert os.write(self.sock.fileno(), data) == len(data)

    def half_close(self) -> None:
        """Say that nothing more comes, and go on receiving."""
        self.sock.shutdown(socket.SHUT_WR)

    async def leave(self, way: Way) -> float:
        """Leave; returns when, on the monotonic clock."""
        if way is Way.DEADLINE:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hold)
                await trio.lowlevel.checkpoint()
                left = time.monotonic()
                nursery.cancel_scope.cancel()
            return left
        if way is Way.RST:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        left = time.monotonic()
        self.sock.close()
        return left

    async def _hold(self) -> None:
        async with self.stream:
            await trio.sleep_forever()


def request(knobs: Mapping[str, float | str] | None = None, *, stream: bool = True, padding: int = 0) -> bytes:
    """A chat request for the mock, with knobs such as ``{"prefill": "inf"}``, which never answers."""
    body = json.dumps({"model": "m", "stream": stream, "metadata": knobs or {}, "messages": "x" * padding}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )


def open_files() -> int:
    """How many files, hence sockets, this process has open."""
    return len(os.listdir("/dev/fd"))


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something is so."""
    with trio.fail_after(SOON):  # noqa: ASYNC912 - no wait if it is so
        while not holds():  # noqa: ASYNC110 - statistics change without an event to wait for
            await trio.sleep(0.001)


@final
class Bench:
    """A proxy in front of a mock model server, or of any other upstream, and their clients."""

    def __init__(self, proxy: Proxy, mock: MockServer, address: tuple[str, int], *, tls: bool) -> None:
        self.proxy = proxy
        self.mock = mock
        self.address = address
        self._tls = tls
        self._clients: list[Client] = []
        self._before = self._account()

    async def connect(self) -> Client:
        """A new client."""
        sock = trio.socket.socket()
        await sock.connect(self.address)
        stream: trio.abc.Stream | None = None
        if self._tls:
            stream = trio.SSLStream(trio.SocketStream(sock), trusting_context(), server_hostname="localhost")
        self._clients.append(Client(sock, f"client {len(self._clients)}", stream))
        return self._clients[-1]

    def close(self) -> None:
        """Close what a test that failed has left open."""
        for client in self._clients:
            client.sock.close()

    def _account(self) -> tuple[object, ...]:
        statistics = self.proxy.statistics()
        return (
            open_files(),
            trio.lowlevel.current_statistics().tasks_living,
            statistics.connections,
            statistics.in_flight,
            statistics.body_bytes_held,
            statistics.body_violations,
            statistics.pool.idle,
            statistics.pool.held,
            statistics.pool.connecting,
        )

    @property
    def outcomes(self) -> dict[str, int]:
        """How many requests have ended how."""
        return {outcome: count for outcome, count in self.proxy.statistics().outcomes.items() if count}

    def remember(self) -> None:
        """Take everything as it is now for the baseline."""
        self._before = self._account()

    async def settle(self) -> None:
        """Wait until tasks, sockets, pool and statistics are as they were."""
        try:
            await until(lambda: self._account() == self._before)
        except trio.TooSlowError:
            assert self._account() == self._before

    async def abandoned(self) -> RequestRecord:
        """Wait until the mock has seen a request abandoned, and see that it wastes nothing from then on."""
        with trio.fail_after(SOON):
            record = await self.mock.wait_record(lambda record: record.abandoned is not None)
        tokens = record.tokens
        await trio.sleep(0.03)
        assert record.tokens == tokens
        assert record.tokens_after_abandon == 0
        assert record.finished is None
        return record

    async def check_next_request(self) -> None:
        """A request on a new connection is served as if nothing had been."""
        before = self.outcomes.get("completed", 0)
        client = await self.connect()
        await client.send(request({"tokens": 1}))
        assert b"[DONE]" in await client.until(b"0\r\n\r\n")
        await client.leave(Way.FIN)
        await until(lambda: self.proxy.statistics().connections == 0)
        assert self.outcomes["completed"] == before + 1


@asynccontextmanager
async def bench(
    settings: Settings | None = None, *, upstream: str | None = None, scheme: Scheme = "http", tls: bool = False
) -> AsyncGenerator[Bench]:
    """A proxy and its upstream, the mock unless another is given, in this process; ends with the block.

    :param scheme: how the mock is reached.
    :param tls: whether clients speak TLS.
    """
    mock = MockServer()
    with tempfile.TemporaryDirectory() as directory:
        async with trio.open_nursery() as nursery:
            if upstream is None:
                upstream = await _serve_mock(mock, scheme, f"{directory}/mock", nursery)
            proxy = Proxy(
                opened(upstream), settings=settings, upstream_tls=trusting_context() if scheme == "https" else None
            )
            addresses: list[tuple[str, int]] = await nursery.start(
                partial(proxy.serve, tls=server_context() if tls else None)
            )
            await trio.testing.wait_all_tasks_blocked()
            with closing(Bench(proxy, mock, addresses[0], tls=tls)) as scene:
                yield scene
            nursery.cancel_scope.cancel()


async def _serve_mock(mock: MockServer, scheme: Scheme, path: str, nursery: trio.Nursery) -> str:
    """Have the mock listen in one of the ways there are; its URL."""
    match scheme:
        case "http":
            host, port = await nursery.start(mock.serve)
            return f"http://{host}:{port}"
        case "https":
            serve = partial(trio.serve_ssl_over_tcp, mock.serve_stream, 0, server_context(), host="127.0.0.1")
            (secure,) = await nursery.start(serve)
            return f"https://127.0.0.1:{secure.transport_listener.socket.getsockname()[1]}"
        case "unix":
            sock = trio.socket.socket(socket.AF_UNIX)
            await sock.bind(path)
            sock.listen(100)
            await nursery.start(trio.serve_listeners, mock.serve_stream, [trio.SocketListener(sock)])
            return f"unix:{path}"


# Stages: each function brings a client into one and returns it.


async def uploading_buffered(bench: Bench) -> Client:
    """Half of a body has come, which the proxy holds until it has all of it."""
    return await _half_a_body(bench)


async def uploading_streamed(bench: Bench) -> Client:
    """Half of a body has come and has been passed on."""
    client = await _half_a_body(bench)
    await until(lambda: any(record.body_bytes for record in bench.mock.records))
    return client


async def _half_a_body(bench: Bench) -> Client:
    client = await bench.connect()
    await client.send(request(padding=20_000)[:-10_000])
    await until(lambda: sum(bench.proxy.statistics().in_flight.values()) == 1)
    await trio.testing.wait_all_tasks_blocked(0.005)
    return client


async def prefill(bench: Bench) -> Client:
    """The upstream has the request and has sent nothing."""
    return await _asking(bench, lambda record: record.body_read, prefill="inf")


async def early_head(bench: Bench) -> Client:
    """The head of the response has come, and no event."""
    client = await _asking(bench, lambda record: record.status, prefill="inf", head="early")
    await client.until(b"\r\n\r\n")
    return client


async def stall(bench: Bench) -> Client:
    """The first event has come, and nothing since."""
    client = await _asking(bench, lambda record: record.tokens, stall_after=1)
    await client.until(b"0000 ")
    await trio.testing.wait_all_tasks_blocked(0.005)
    return client


async def mid_stream(bench: Bench) -> Client:
    """Events come all the time."""
    client = await _asking(bench, lambda record: record.tokens, interval=0.002, tokens=1_000_000)
    await client.until(b"0003 ")
    return client


async def unstreamed(bench: Bench) -> Client:
    """The upstream generates, and will answer when it has everything."""
    return await _asking(bench, lambda record: record.tokens > 2, stream=False, interval=0.002, tokens=1_000_000)


async def read_ahead_full(bench: Bench) -> Client:
    """The client has sent so much behind its request that the proxy has stopped reading."""
    client = await _asking(bench, lambda record: record.body_read, prefill="inf")
    await client.send(b"x" * 160_000)
    await trio.testing.wait_all_tasks_blocked(0.01)
    return client


async def _asking(
    bench: Bench, reached: Callable[[RequestRecord], object], *, stream: bool = True, **knobs: float | str
) -> Client:
    client = await bench.connect()
    await client.send(request({"id": client.name, **knobs}, stream=stream))
    with trio.fail_after(SOON):
        await bench.mock.wait_record(lambda record: record.id == client.name and reached(record))
    return client


STAGES: Final[dict[str, tuple[Callable[[Bench], Awaitable[Client]], Settings]]] = {
    "uploading, streamed": (uploading_streamed, STREAMED),
    "before the head": (prefill, Settings()),
    "before the head, streamed upload": (prefill, STREAMED),
    "after an early head": (early_head, Settings()),
    "in a stall after the first event": (stall, Settings()),
    "mid-stream": (mid_stream, Settings()),
    "waiting for an unstreamed response": (unstreamed, Settings()),
    "full read-ahead": (read_ahead_full, Settings()),
}


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("stage", STAGES)
async def test_upstream_is_freed(stage: str, way: Way) -> None:
    reach, settings = STAGES[stage]
    async with bench(settings) as scene:
        client = await reach(scene)
        assert scene.outcomes == {}
        left = await client.leave(way)
        record = await scene.abandoned()
        assert record.abandoned is not None
        assert 0 <= record.abandoned - left < 1
        await scene.settle()
        assert scene.outcomes == {"client_closed": 1}
        await scene.check_next_request()


@pytest.mark.parametrize("way", Way)
async def test_half_a_buffered_upload_never_reaches_the_upstream(way: Way) -> None:
    async with bench() as scene:
        client = await uploading_buffered(scene)
        await client.leave(way)
        await scene.settle()
        assert scene.outcomes == {"client_closed": 1}
        assert not scene.mock.records
        assert scene.proxy.statistics().pool.opened == 0
        await scene.check_next_request()


# An upstream that reads nothing.


@final
class Stalled:
    """An upstream that accepts a connection and then does nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    async def accept(self) -> socket.socket:
        """The next connection, which is the caller's to close."""
        with trio.fail_after(SOON):
            await trio.lowlevel.wait_readable(self._listener)
        return self._listener.accept()[0]


async def wait_gone(sock: socket.socket) -> None:
    """Wait until the peer of a socket has closed or reset it, without reading."""
    with trio.fail_after(SOON), closing(select.epoll()) as poll:
        poll.register(sock, select.EPOLLRDHUP)
        await trio.lowlevel.wait_readable(poll.fileno())


@pytest.mark.parametrize("way", Way)
async def test_upload_to_a_stalled_upstream(way: Way) -> None:
    """The proxy has stopped reading the client: only the hang-up itself can tell it."""
    with closing(Stalled()) as stalled:
        async with bench(STREAMED, upstream=stalled.url) as scene:
            client = await scene.connect()
            await client.send(request(padding=16 << 20)[:1000])
            with closing(await stalled.accept()) as upstream:
                # In pieces that the proxy takes one by one, so that none stays in the client's own socket: what is
                # unsent there stands before its FIN, and a FIN that was not sent can be seen by nobody.
                while scene.proxy.statistics().body_bytes_held < 65536:
                    await client.send(b"x" * 16384)
                    await trio.testing.wait_all_tasks_blocked(0.0005)
                await client.send(b"x" * 1000)
                await client.leave(way)
                await wait_gone(upstream)
                await until(lambda: scene.proxy.statistics().connections == 0)
            await scene.settle()
            assert scene.outcomes == {"client_closed": 1}


# Half-close.


@pytest.mark.parametrize("stage", [name for name in STAGES if name != "full read-ahead"])
async def test_half_close_is_leaving(stage: str) -> None:
    reach, settings = STAGES[stage]
    async with bench(settings) as scene:
        client = await reach(scene)
        client.half_close()
        await scene.abandoned()
        await until(lambda: scene.proxy.statistics().connections == 0)
        assert b"[DONE]" not in client.received
        assert scene.outcomes == {"client_closed": 1}
        client.sock.close()
        await scene.settle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("together", [False, True])
async def test_half_close_allowed(stream: bool, together: bool) -> None:
    async with bench(ALLOW) as scene:
        client = await scene.connect()
        await client.send(request({"prefill": 0.01, "interval": 0.001, "tokens": 5}, stream=stream))
        if not together:
            with trio.fail_after(SOON):
                await scene.mock.wait_record(lambda record: record.tokens if stream else record.body_read)
        client.half_close()
        answer = await client.to_end()
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")
        client.sock.close()
        await until(lambda: scene.proxy.statistics().connections == 0)
        assert scene.outcomes == {"completed": 1}


@pytest.mark.parametrize("stage", ["before the head", "in a stall after the first event"])
async def test_half_close_allowed_and_then_a_reset(stage: str) -> None:
    async with bench(ALLOW) as scene:
        client = await STAGES[stage][0](scene)
        client.half_close()
        await trio.testing.wait_all_tasks_blocked(0.005)
        assert scene.outcomes == {}
        await client.leave(Way.RST)
        await scene.abandoned()
        await scene.settle()
        assert scene.outcomes == {"client_closed": 1}


async def test_half_close_allowed_in_the_middle_of_a_body() -> None:
    """The rest of the request can never come."""
    async with bench(ALLOW) as scene:
        client = await uploading_buffered(scene)
        client.half_close()
        assert await client.to_end() == b""
        client.sock.close()
        await scene.settle()
        assert scene.outcomes == {"client_closed": 1}


# The edges: leaving with the request's last byte, and after the response's.


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_after_the_last_byte_is_no_abort(stream: bool, way: Way) -> None:
    async with bench() as scene:
        for _ in range(20):
            client = await scene.connect()
            await client.send(request({"tokens": 2, "interval": 0}, stream=stream))
            await client.until(b"0\r\n\r\n" if stream else b'"total_tokens"')
            await client.leave(way)
        await until(lambda: scene.proxy.statistics().connections == 0)
        assert scene.outcomes == {"completed": 20}
        assert all(record.abandoned is None and record.finished for record in scene.mock.records)
        assert scene.proxy.statistics().pool.idle == 1


@pytest.mark.parametrize("pooled", [False, True])
async def test_leaving_with_the_whole_request(pooled: bool) -> None:
    """Request and FIN are there before the proxy has read anything: nobody is asked for an answer.

    Nor is a connection to the upstream that is at hand wasted.
    """
    async with bench() as scene:
        if pooled:
            await scene.check_next_request()
            scene.remember()
        opened = scene.proxy.statistics().pool.opened
        for _ in range(20):
            client = await scene.connect()
            client.send_nowait(request({"prefill": "inf"}))
            await client.leave(Way.FIN)
        await until(lambda: scene.outcomes.get("client_closed") == 20)
        await scene.settle()
        assert len(scene.mock.records) == pooled
        assert scene.proxy.statistics().pool.opened == opened
        await scene.check_next_request()


# A client of its own accord.


async def test_httpx_read_timeout_before_the_head() -> None:
    async with bench() as scene, _httpx(scene, read=0.05) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json={"metadata": {"prefill": "inf"}})
        await scene.abandoned()
        assert scene.outcomes == {"client_closed": 1}


async def test_httpx_read_timeout_in_a_stall() -> None:
    async with bench() as scene, _httpx(scene, read=0.05) as client:
        body = {"stream": True, "metadata": {"stall_after": 1}}
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            with pytest.raises(httpx.ReadTimeout):
                _ = [line async for line in response.aiter_lines()]
        await scene.abandoned()
        assert scene.outcomes == {"client_closed": 1}


async def test_httpx_cancelled_while_it_uploads() -> None:
    async def content() -> AsyncIterator[bytes]:  # noqa: ASYNC900 - httpx takes an upload as one
        yield b'{"stream": true'  # noqa: ASYNC911 - as above
        await trio.sleep_forever()

    async with bench(STREAMED) as scene, _httpx(scene, read=SOON) as client:
        with trio.move_on_after(0.05) as scope:
            await client.post("/v1/chat/completions", content=content())
        assert scope.cancelled_caught
        await scene.abandoned()
        assert scene.outcomes == {"client_closed": 1}


def _httpx(scene: Bench, *, read: float) -> httpx.AsyncClient:
    host, port = scene.address
    return httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=httpx.Timeout(SOON, read=read), trust_env=False)


# How soon.


async def test_latency_of_aborts_one_after_another() -> None:
    """p99 under 5 ms; the best of some attempts of 0.1 s, since the machine has other things to do."""
    best = float("inf")
    async with bench() as scene:
        for _ in range(10):
            latencies: list[float] = []
            for _ in range(200):
                client = await prefill(scene)
                left = await client.leave(Way.RST)
                with trio.fail_after(SOON):
                    record = await scene.mock.wait_record(_abandoned_by(client))
                assert record.abandoned is not None
                latencies.append(record.abandoned - left)
            best = min(best, report("one after another", latencies))
            if best < 0.005:
                break
        await scene.settle()
    assert best < 0.005


async def test_a_thousand_aborts_at_once() -> None:
    with many_files(4 * 1000 + 200):
        async with bench() as scene:
            clients: list[Client] = []
            for _ in range(1000):
                client = await scene.connect()
                await client.send(request({"prefill": "inf"}))
                clients.append(client)
            await until(lambda: sum(record.body_read is not None for record in scene.mock.records) == 1000)
            left = [await client.leave(Way.RST) for client in clients]
            await until(lambda: all(record.abandoned is not None for record in scene.mock.records))
            first = min(left)
            p99 = report(
                "a thousand at once",
                [record.abandoned - first for record in scene.mock.records if record.abandoned is not None],
            )
            await scene.settle()
            assert scene.outcomes == {"client_closed": 1000}
            assert sum(record.tokens for record in scene.mock.records) == 0
            assert p99 < 1.0


def _abandoned_by(client: Client) -> Callable[[RequestRecord], bool]:
    return lambda record: record.id == client.name and record.abandoned is not None


def report(what: str, latencies: list[float]) -> float:
    """Print latencies and return their 99th percentile, in seconds."""
    ranked = sorted(latencies)
    p99 = ranked[int(0.99 * len(ranked)) - 1]
    print(f"{what}: {len(ranked)} aborts, p50 {ranked[len(ranked) // 2] * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")
    return p99


@contextmanager
def many_files(count: int) -> Generator[None]:
    """Let this process open that many files, or skip the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} open files, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
