"""A TCP relay with faults on order, for the tests of the benches: `python relay.py LISTEN UPSTREAM FAULT`.

Lives here: what the benches have to find. It relays bytes, one upstream connection per client, and knows no HTTP.
"""

from __future__ import annotations

import itertools
import math
import sys

import trio


async def relay(listen: int, upstream: int, fault: str) -> None:
    """Serve until cancelled."""

    async def serve(client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream("127.0.0.1", upstream) as server, trio.open_nursery() as nursery:
            nursery.start_soon(to_upstream, client, server)
            await to_client(server, client)
            nursery.cancel_scope.cancel()

    async def to_upstream(client: trio.SocketStream, server: trio.SocketStream) -> None:
        kept: list[bytes] = []
        async for data in client:
            await server.send_all(data)
            if fault == "keeps-bodies":
                kept.append(bytes(data))
        await server.send_eof()

    async def to_client(server: trio.SocketStream, client: trio.SocketStream) -> None:
        ahead, queue = trio.open_memory_channel[bytes](math.inf if fault == "reads-ahead" else 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on, queue, client)
            async with ahead:
                for number in itertools.count(1):
                    data = bytes(await server.receive_some(65536))
                    if not data:
                        break
                    if fault == "gathers":
                        await trio.sleep(0.25)  # what arrives meanwhile is read as one
                    if fault != "loses" or number % 10:
                        await ahead.send(data)

    async def pass_on(queue: trio.MemoryReceiveChannel[bytes], client: trio.SocketStream) -> None:
        async for data in queue:
            await client.send_all(data)

    await trio.serve_tcp(serve, listen, host="127.0.0.1")


if __name__ == "__main__":
    trio.run(relay, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
