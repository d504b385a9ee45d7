"""httpx on trioproxy's pool, without a proxy: requests are cancelled, dropped and read, and no connection is lost.

Run it with ``python examples/httpx_pool.py``. It starts a mock model server and asks it through two connections.
"""

from __future__ import annotations

import httpx
import trio

import trioproxy
from trioproxy.bench.mock import MockServer, MockSettings

ASK = {"model": "mock-model", "messages": [{"role": "user", "content": "Hello!"}], "stream": True}


async def main() -> None:
    """Ask, give up, ask again, and look at the pool."""
    transport = trioproxy.PoolTransport(limits=httpx.Limits(max_connections=2))
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(MockServer(MockSettings(prefill=0.05, tokens=8)).serve)
        url = f"http://{host}:{port}/v1/chat/completions"
        async with httpx.AsyncClient(transport=transport) as client:
            async with trio.open_nursery() as requests:
                for _ in range(20):
                    requests.start_soon(give_up, client, url)
            print(f"20 requests were given up: {transport.counts}")

            async with client.stream("POST", url, json=ASK) as response:
                events = [line async for line in response.aiter_lines() if line.startswith("data: ")]
            print(f"the next one got {len(events)} events: {transport.counts}")
        nursery.cancel_scope.cancel()


async def give_up(client: httpx.AsyncClient, url: str) -> None:
    """Ask, and lose patience before the model has read the prompt."""
    with trio.move_on_after(0.02):
        await client.post(url, json=ASK)


if __name__ == "__main__":
    trio.run(main)
