"""trioproxy inside a Trio application: a proxy among the application's own tasks, ended by a cancel.

Run it with ``python examples/embed.py``. It starts a mock model server, a proxy in front of it and two clients, one of
which gives up, and prints what the proxy and the model server saw.
"""

from __future__ import annotations

import httpx
import trio

import trioproxy
from trioproxy.bench.mock import MockServer, MockSettings


async def main() -> None:
    """Serve, ask, give up, and look at the account."""
    mock = MockServer(MockSettings(prefill=0.05, tokens=8))
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(mock.serve)
        proxy = trioproxy.Proxy(
            upstreams=[f"http://{host}:{port}"],
            settings=trioproxy.Settings(deadlines=trioproxy.Deadlines(first_byte=30, drain=5)),
        )
        [(proxy_host, proxy_port)] = await nursery.start(proxy.serve)
        url = f"http://{proxy_host}:{proxy_port}/v1/chat/completions"
        ask = {"model": "mock-model", "messages": [{"role": "user", "content": "Hello!"}], "stream": True}

        async with httpx.AsyncClient() as client:
            async with client.stream("POST", url, json=ask) as response:
                events = [line async for line in response.aiter_lines() if line.startswith("data: ")]
            print(f"a client that stays: {response.status_code}, {len(events)} events, the last is {events[-1]!r}")

            with trio.move_on_after(0.02):  # less than the prefill takes
                await client.post(url, json=ask)

        record = await mock.wait_record(lambda record: record.abandoned is not None)
        print(f"a client that leaves: the model server made {record.tokens_after_abandon} tokens for nobody")
        statistics = proxy.statistics()
        print(f"outcomes: { ({name: count for name, count in statistics.outcomes.items() if count}) }")
        print(f"bytes of bodies held: {statistics.body_bytes_held}, connections to the model server: {statistics.pool}")

        nursery.cancel_scope.cancel()  # ends both servers and everything that they started


if __name__ == "__main__":
    # An interrupt only where a task may be interrupted anyway, not inside a synchronous update of the proxy.
    trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True)
