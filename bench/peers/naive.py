"""`python -m bench.peers.naive --backend asyncio|trio --listen HOST:PORT --upstream URL`: what an afternoon gives.

A router of anyio, h11 and httpx with the habits that trioproxy exists to do without, as a measure and as a
counterexample. No proxy to use. Its faults, each seen in routers that people run:

- a data producer is started for each request in a task group of the whole server, and forgotten: nothing waits for it
  or cancels it when the request ends, and it has the request, body and all;
- the body and the whole response are kept as long as the stream lives, "for the log";
- "enrichment must never fail a request" and "try once more, whatever it was" catch everything, cancellation included.

A client that leaves is noticed, and its request is cancelled as the backend does it. asyncio delivers a cancellation
**once** (edge): the code above swallows it and forwards all the same, for nobody. Trio delivers it at **every**
further wait of the cancelled scope (level): the same code cannot go on. Nothing else differs between the two.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import h11
import httpx
import trio
from anyio.abc import SocketStream, TaskGroup

from bench.peers.install import Here
from bench.peers.peer import Address, Peer

PRODUCER_SECONDS: Final = 2.0
"""How long a producer takes: a slow tokenizer or prefix lookup."""
PRODUCER_WAIT: Final = 0.05
"""Seconds that a request waits for its producer's result."""
TRIES: Final = 2

_HOP_BY_HOP: Final = frozenset((b"connection", b"content-length", b"host", b"keep-alive", b"transfer-encoding"))
_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, h11.RemoteProtocolError)

Handle = Callable[[], Awaitable[None]]
Race = Callable[[Handle, Handle], Awaitable[None]]
"""Run the first until it has finished or the second has, which means that the client has left."""


@dataclass(slots=True)
class Request:
    """All of a request, for as long as somebody has it."""

    head: h11.Request
    body: bytes
    produced: anyio.Event = field(default_factory=anyio.Event)
    response: list[bytes] = field(default_factory=list[bytes])


class Router:
    """One upstream, and everything that runs."""

    def __init__(self, upstream: Address, client: httpx.AsyncClient, tasks: TaskGroup, race: Race) -> None:
        self._upstream = upstream
        self._client = client
        self._tasks = tasks
        self._race = race

    async def serve(self, stream: SocketStream) -> None:
        """Answer a client's requests until it leaves."""
        connection = h11.Connection(h11.SERVER)
        async with stream:
            try:
                while await self._one(stream, connection):
                    connection.start_next_cycle()
            except _GONE:
                pass

    async def _one(self, stream: SocketStream, connection: h11.Connection) -> bool:
        """One request; returns whether another can follow."""
        head = await _next(stream, connection)
        if not isinstance(head, h11.Request):
            return False
        body = bytearray()
        while isinstance(event := await _next(stream, connection), h11.Data):
            body += event.data
        request = Request(head, bytes(body))
        self._tasks.start_soon(_produce, request)
        await self._race(partial(self._forward, request, stream, connection), partial(_left, stream, connection))
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _forward(self, request: Request, stream: SocketStream, connection: h11.Connection) -> None:
        try:
            with anyio.move_on_after(PRODUCER_WAIT):
                await request.produced.wait()
        except BaseException:  # noqa: ASYNC103 - the fault: enrichment must never fail a request
            pass
        for attempt in range(TRIES):
            try:
                await self._exchange(request, stream, connection)
            except BaseException:  # noqa: ASYNC103 - the fault: try once more, whatever it was
                if connection.our_state is not h11.SEND_RESPONSE or attempt == TRIES - 1:
                    raise
            else:
                return

    async def _exchange(self, request: Request, stream: SocketStream, connection: h11.Connection) -> None:
        url = self._upstream.url + request.head.target.decode()
        headers = [(name, value) for name, value in request.head.headers if name not in _HOP_BY_HOP]
        method = request.head.method.decode()
        async with self._client.stream(method, url, headers=headers, content=request.body) as response:
            fields = [(name, value) for name, value in response.headers.raw if name.lower() not in _HOP_BY_HOP]
            await _send(stream, connection, h11.Response(status_code=response.status_code, headers=fields))
            async for chunk in response.aiter_raw():
                request.response.append(chunk)
                await _send(stream, connection, h11.Data(data=chunk))
        await _send(stream, connection, h11.EndOfMessage())


async def _produce(request: Request) -> None:
    await anyio.sleep(PRODUCER_SECONDS)
    assert request.body is not None
    request.produced.set()


async def _next(stream: SocketStream, connection: h11.Connection) -> h11.Event:
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Event):
            return event
        if connection.they_are_waiting_for_100_continue:
            await _send(stream, connection, h11.InformationalResponse(status_code=100, headers=[]))
        await _receive(stream, connection)


async def _receive(stream: SocketStream, connection: h11.Connection) -> bool:
    """Returns whether there was something."""
    try:
        data = await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        data = b""
    connection.receive_data(data)
    return bool(data)


async def _left(stream: SocketStream, connection: h11.Connection) -> None:
    """Return when the client has left."""
    while await _receive(stream, connection):
        pass


async def _send(stream: SocketStream, connection: h11.Connection, event: h11.Event) -> None:
    if data := connection.send(event):
        await stream.send(data)


async def race_asyncio(handle: Handle, left: Handle) -> None:
    """With a task, and with one `cancel()` of it."""
    task = asyncio.ensure_future(handle())
    watcher = asyncio.ensure_future(left())
    await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
    watcher.cancel()
    task.cancel()
    await asyncio.gather(task, watcher, return_exceptions=True)


async def race_trio(handle: Handle, left: Handle) -> None:
    """With a nursery, and its cancel scope."""

    async def watch() -> None:
        await left()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            await handle()
        except (httpx.HTTPError, *_GONE):
            pass
        nursery.cancel_scope.cancel()


async def serve(listen: Address, upstream: Address, race: Race) -> None:
    """Serve until cancelled."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client,
        await anyio.create_tcp_listener(local_host=listen.host, local_port=listen.port, backlog=4096) as listener,
        anyio.create_task_group() as tasks,
    ):
        await listener.serve(Router(upstream, client, tasks, race).serve)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.naive", description="A router with the usual faults.")
    parser.add_argument("--backend", choices=["asyncio", "trio"], required=True)
    parser.add_argument("--listen", type=Address.parse, required=True, metavar="HOST:PORT")
    parser.add_argument("--upstream", type=Address.parse, required=True, metavar="URL")
    options = parser.parse_args(arguments)
    race = race_asyncio if options.backend == "asyncio" else race_trio
    anyio.run(serve, options.listen, options.upstream, race, backend=options.backend)
    return 0


def _peer(backend: str) -> Peer:
    def arguments(listen: Address, upstream: Address, _: Path) -> list[str]:
        return ["-m", "bench.peers.naive", "--backend", backend, "--listen", str(listen), "--upstream", str(upstream)]

    return Peer(f"naive-{backend}", Here(), arguments)


NAIVE_ASYNCIO: Final = _peer("asyncio")
NAIVE_TRIO: Final = _peer("trio")

if __name__ == "__main__":
    sys.exit(main())
