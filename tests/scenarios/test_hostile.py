"""What was found by attacking the proxy: one test for the kind of each finding."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from certificates import server_context, trusting_context
from opened import opened
from script import conversation, forwarded, message, post
from trioproxy import Deadlines, Limits, Proxy, Settings
from trioproxy.bench.mock import MockServer, MockSettings

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc, which only Linux has")


class Steps(trio.abc.Instrument):
    """The longest that a task has run without letting another one, in seconds of CPU; the test's own does not count,
    which encrypts all that it sends in one go."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._own = trio.lowlevel.current_task()
        self._began = time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._own:
            self.longest = max(self.longest, time.thread_time() - self._began)


@asynccontextmanager
async def proxied(
    settings: Settings | None = None, *, tls: bool = False
) -> AsyncGenerator[tuple[Proxy, tuple[str, int]]]:
    """A proxy on a real socket in front of a mock."""
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(MockServer(MockSettings(tokens=2, interval=0.001)).serve)
        proxy = Proxy(opened(f"http://{host}:{port}"), settings=settings)
        [address] = await nursery.start(partial(proxy.serve, tls=server_context() if tls else None))
        yield proxy, address
        nursery.cancel_scope.cancel()


async def connect(address: tuple[str, int], *, tls: bool) -> trio.abc.Stream:
    """A client of it."""
    stream = await trio.open_tcp_stream(*address)
    return trio.SSLStream(stream, trusting_context(), server_hostname="localhost") if tls else stream


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("path", [b"/v1/completions", b"/x"], ids=["buffered", "streamed"])
async def test_tiny_chunks_do_not_hold_the_loop(path: bytes, tls: bool) -> None:
    """60,000 chunks of one byte: other tasks run in between, where a read-by-read bound let one run for 90 ms."""
    chunks = b"1\r\n{\r\n" + b'1\r\n"\r\n' * 60_000 + b"1\r\n}\r\n0\r\n\r\n"
    steps = Steps()
    async with proxied(tls=tls) as (_, address), await connect(address, tls=tls) as stream:
        trio.lowlevel.add_instrument(steps)
        try:
            await stream.send_all(
                b"POST " + path + b" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
            )
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 4")  # of the mock: no JSON, or no such path
        finally:
            trio.lowlevel.remove_instrument(steps)
    assert 0 < steps.longest < 0.03


async def test_a_response_without_a_length_that_a_drain_cuts_is_reset() -> None:
    """To a client of HTTP/1.0 a clean end would say that it is whole; whichever task is unwound first."""

    async def endless(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nsome data")
        await trio.sleep_forever()

    for _ in range(20):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, endless, 0)
            port = listeners[0].socket.getsockname()[1]
            proxy = Proxy(opened(f"http://127.0.0.1:{port}"))
            [address] = await nursery.start(proxy.serve)
            async with await trio.open_tcp_stream(*address) as client:
                await client.send_all(b"GET / HTTP/1.0\r\n\r\n")
                heard = b""
                while not heard.endswith(b"some data"):
                    heard += await client.receive_some()
                proxy.drain(0)
                with pytest.raises(trio.BrokenResourceError):
                    await client.receive_some()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("total", [0.0, 0.000_001, 0.005, 0.02])
@pytest.mark.parametrize("tls", [False, True])
async def test_total_in_the_middle_of_an_upload_is_told(total: float, tls: bool) -> None:
    """However much has come when it passes: the reader must not take its own full buffer for the client's end."""
    async with proxied(Settings(deadlines=Deadlines(total=total)), tls=tls) as (proxy, address):
        for sent, size in enumerate((1, 65_535, 65_536, 65_537, 131_072, 300_000, 3_000_000), 1):
            async with await connect(address, tls=tls) as client, trio.open_nursery() as nursery:
                head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n"
                nursery.start_soon(client.send_all, head + bytes(size))
                heard = bytes(await client.receive_some(65536))
                assert heard.startswith(b"HTTP/1.1 504 "), (size, heard)
                assert b"total_timeout" in heard
                nursery.cancel_scope.cancel()
            assert proxy.statistics().outcomes["upstream_timeout"] == sent


@LINUX
async def test_a_stalled_client_leaves_nothing_in_the_kernel() -> None:
    """Its connection is reset: closed, it would keep the megabytes that it did not take."""

    async def flood(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        try:
            while True:
                await stream.send_all(bytes(65536))
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, flood, 0)
        port = listeners[0].socket.getsockname()[1]
        proxy = Proxy(opened(f"http://127.0.0.1:{port}"), settings=Settings(deadlines=Deadlines(write_stall=0.2)))
        [address] = await nursery.start(proxy.serve)
        with socket.create_connection(address) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            with trio.fail_after(10):  # noqa: ASYNC912 - the loop sleeps
                while not proxy.statistics().outcomes["client_stalled"]:  # noqa: ASYNC110 - statistics have no event
                    await trio.sleep(0.05)
            await wait_all_tasks_blocked()
            mine = f"{address[1]:04X}"
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]  # noqa: ASYNC240
            assert not [row for row in rows if row[1].endswith(":" + mine) and row[3] in ("04", "05", "0B")]
        nursery.cancel_scope.cancel()


async def test_piped_bytes_take_no_room_from_bodies_that_are_held(autojump_clock: MockClock) -> None:
    """Streamed uploads that stand still, beside one small buffered request."""
    limits = Limits(body_size=100_000, bodies_size=100_000)
    async with conversation(Settings(limits=limits)) as talk:
        talk.deaf = {"10.0.0.1"}
        for _ in range(10):
            client = await talk.client()
            await client.says(message("POST /x HTTP/1.1", "Host: a", "Transfer-Encoding: chunked"))
            await client.says("10000\r\n" + "x" * 65536)
            await talk.upstream()
        talk.deaf.clear()
        client = await talk.client()
        await client.says(post("{}", "/v1/completions"))
        upstream = await talk.upstream()
        await upstream.hears(forwarded("POST /v1/completions HTTP/1.1", length=2, body="{}"))


def start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trioproxy", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


SERVE = ("serve", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1")


def test_a_reader_of_its_output_that_goes_away_does_not_end_it() -> None:
    reading, writing = os.pipe()
    process = start(*SERVE, stdout=writing)
    os.close(writing)
    assert b"listens" in os.read(reading, 1000)
    os.close(reading)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_it_ends_change_nothing(number: signal.Signals) -> None:
    process = start(*SERVE, "--deadline", "drain=inf", stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert b"listens" in process.stdout.readline()
    for _ in range(20):
        if process.poll() is None:
            process.send_signal(number)
        time.sleep(0.005)
    _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, b"")
