"""What an operator does in the first week, with processes: a model server dies and comes back, the configuration
changes, the proxy is told to stop.

Lives here: ``trioproxy serve --config`` in front of two mocks, and httpx's clients. Does not live here: the commands
one by one (test_cli.py, test_reload.py).
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest
import trio

from processes import Running, posix

pytestmark = posix
STREAMS: Final = 100
BODY: Final = {"model": "m", "stream": True, "prompt": "x", "metadata": {"prefill": 0, "tokens": 60, "interval": 0.1}}
FAILED: Final = (httpx.RemoteProtocolError, httpx.ReadError)


def config(mocks: list[int], *more: str) -> str:
    """The file, for mocks at these ports."""
    endpoints = ", ".join(f'"http://127.0.0.1:{port}"' for port in mocks)
    lines = ['listen = ["127.0.0.1:0"]', f"upstreams = [{endpoints}]", *more]
    return "\n".join([*lines, "[health]", 'path = "/health"', 'interval = "200ms"', 'timeout = "1s"', "fall = 2", ""])


@pytest.fixture
def mock(start: Callable[..., Running]) -> Callable[..., Running]:
    """Starts a mock, at a port that is known from before or any."""

    def run(port: int = 0) -> Running:
        return start("mock", "--listen", f"127.0.0.1:{port}")

    return run


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that other processes bring about."""
    with trio.fail_after(30):  # noqa: ASYNC912 - if it holds already, there is nothing to wait for
        while not holds():  # noqa: ASYNC110 - see above
            await trio.sleep(0.01)


class Streams:
    """Streamed completions, and how each ended."""

    def __init__(self, url: str, nursery: trio.Nursery) -> None:
        self.begun = 0
        self.whole = 0
        self.cut = 0
        self._url = url
        self._nursery = nursery
        self._client = httpx.AsyncClient(
            timeout=30, trust_env=False, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )

    async def begin(self, count: int) -> None:
        """Start as many, and wait until each has its first event."""
        wanted = self.begun + count
        for _ in range(count):
            self._nursery.start_soon(self._one)
        await until(lambda: self.begun >= wanted)

    async def _one(self) -> None:
        try:
            async with self._client.stream("POST", f"{self._url}/v1/completions", json=BODY) as response:
                assert response.status_code == 200
                text = ""
                async for piece in response.aiter_text():
                    self.begun += not text
                    text += piece
        except FAILED:
            self.cut += 1
        else:
            assert text.endswith("data: [DONE]\n\n")
            self.whole += 1

    async def ended(self) -> None:
        """Wait until none is in flight."""
        await until(lambda: self.whole + self.cut == self.begun)


async def get(url: str) -> int:
    """The status."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(url)).status_code


async def becomes(url: str, status: int, within: float) -> None:
    """Ask until it has this status."""
    with trio.fail_after(within):
        while await get(url) != status:  # noqa: ASYNC110 - another process
            await trio.sleep(0.05)


async def test_a_model_server_dies_and_comes_back(
    tmp_path: Path, start: Callable[..., Running], mock: Callable[..., Running]
) -> None:
    one, two = mock(), mock()
    file = tmp_path / "trioproxy.toml"
    file.write_text(config([one.port, two.port]))
    proxy = start("serve", "--config", str(file))
    url = f"http://127.0.0.1:{proxy.port}"
    async with trio.open_nursery() as nursery:
        streams = Streams(url, nursery)
        await streams.begin(40)
        assert await get(f"{url}/readyz") == 200
        two.kill()
        statuses = [await get(f"{url}/v1/models") for _ in range(40)]
        assert set(statuses) == {200}
        assert await get(f"{url}/readyz") == 200
        await streams.begin(20)
        await streams.ended()
        assert (streams.cut, streams.whole) == (20, 40), "those in flight on it, and no others"
        one.kill()
        await becomes(f"{url}/readyz", 503, 3)
        assert await get(f"{url}/healthz") == 200
        assert await get(f"{url}/v1/models") == 503
        again = mock(one.port)
        await becomes(f"{url}/readyz", 200, 3)
        assert await get(f"{url}/v1/models") == 200
        again.kill()
        nursery.cancel_scope.cancel()


async def test_a_reload_cuts_nothing(
    tmp_path: Path, start: Callable[..., Running], mock: Callable[..., Running]
) -> None:
    """Into pools and routes, with other deadlines, and one model server taken out."""
    one, two = mock(), mock()
    file = tmp_path / "trioproxy.toml"
    file.write_text(config([one.port, two.port]))
    proxy = start("serve", "--config", str(file))
    url = f"http://127.0.0.1:{proxy.port}"
    async with trio.open_nursery() as nursery:
        streams = Streams(url, nursery)
        await streams.begin(STREAMS)
        file.write_text(
            f'listen = ["127.0.0.1:0"]\n[deadlines]\nidle = "50ms"\n[pools.only]\n'
            f'endpoints = ["http://127.0.0.1:{one.port}"]\n[routes.m]\nmodels = ["m"]\npool = "only"\n'
        )
        proxy.signal(signal.SIGHUP)
        said = await trio.to_thread.run_sync(lambda: [proxy.line() for _ in range(3)][-1])
        assert said.startswith("read the configuration again: upstreams, pools, routes, deadlines.idle, health.path")
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.post(f"{url}/v1/completions", json={"model": "other"})).status_code == 404
        await streams.ended()
        assert (streams.cut, streams.whole) == (0, STREAMS)


@pytest.mark.parametrize("stalled", [False, True], ids=["", "stalled"])
async def test_sigterm(
    tmp_path: Path, start: Callable[..., Running], mock: Callable[..., Running], stalled: bool
) -> None:
    """New connections are refused at once, short streams end well, and the process is gone when the grace is."""
    grace = 2.0 if stalled else 20.0
    file = tmp_path / "trioproxy.toml"
    file.write_text(config([mock().port], "[deadlines]", f'drain = "{grace}s"'))
    proxy = start("serve", "--config", str(file))
    url = f"http://127.0.0.1:{proxy.port}"
    async with trio.open_nursery() as nursery:
        streams = Streams(url, nursery)
        await streams.begin(STREAMS)
        hanging = [proxy.connect() for _ in range(5 if stalled else 0)]
        for client in hanging:
            client.sendall(
                b'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 28\r\n\r\n{"metadata": {"prefill": 99}}'
            )
        await trio.sleep(0.1)
        told = time.monotonic()
        proxy.signal(signal.SIGTERM)
        await trio.sleep(0.05)
        with pytest.raises(OSError), socket.create_connection((proxy.host, proxy.port), timeout=1):
            pass
        status, _, _ = await trio.to_thread.run_sync(proxy.ends)
        took = time.monotonic() - told
        await streams.ended()
        assert status == 0
        assert took < grace + 1
        if not stalled:
            assert (streams.cut, streams.whole) == (0, STREAMS)
        for client in hanging:
            client.close()
