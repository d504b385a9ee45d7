"""What a request costs a client: httpx on trioproxy's PoolTransport, beside httpx on its own transport, in one run.

``python -m bench.httpx_cost``: requests one after the other on one connection, to the mock model server in a process of
its own; CPU of this process alone, the best of several rounds that take turns.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import Final

import click
import httpx
import trio

from trioproxy import PoolTransport

_KINDS: Final = ("trioproxy, llhttp", "trioproxy, h11", "httpcore")


def _transport(kind: str) -> httpx.AsyncBaseTransport:
    if kind == "httpcore":
        return httpx.AsyncHTTPTransport()
    return PoolTransport(codec="h11" if kind.endswith("h11") else "llhttp")


async def _cost(kind: str, url: str, requests: int) -> float:
    """Microseconds of CPU for a request to a transport, without the client above it."""
    transport = _transport(kind)
    async with transport:
        start = 0.0
        for number in range(-10, requests):
            if number == 0:
                start = time.process_time()
            response = await transport.handle_async_request(httpx.Request("GET", url))
            await response.aread()
            await response.aclose()
        return (time.process_time() - start) / requests * 1e6


@click.command()
@click.option("--requests", default=500, show_default=True, help="Requests in a round.")
@click.option("--rounds", default=5, show_default=True)
def main(requests: int, rounds: int) -> None:
    """Compare what a request costs on both transports."""
    server = subprocess.Popen(
        [sys.executable, "-c", "import trioproxy.cli; trioproxy.cli.main(['mock', '--listen', '127.0.0.1:0'])"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        said = re.search(r"http://\S+", server.stdout.readline())
        assert said is not None, "the mock did not start"
        url = f"{said[0]}/v1/models"
        best = dict.fromkeys(_KINDS, float("inf"))
        for _ in range(rounds):
            for kind in _KINDS:
                best[kind] = min(best[kind], trio.run(_cost, kind, url, requests))
    finally:
        server.terminate()
        server.wait(timeout=10)
    for kind in _KINDS:
        click.echo(f"{kind:18} {best[kind]:6.0f} µs a request, {best[kind] / best['httpcore']:.2f} × httpcore")


if __name__ == "__main__":
    main()
