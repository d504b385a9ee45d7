"""Small proxies, each with one fault that real ones have, and one without: what the referee must tell apart.

Lives here: proxies on Trio that serve one request per connection, as a function for ``measure`` and as a command:
``python tests/faulty.py NAME LISTEN UPSTREAM`` (addresses are HOST:PORT). They share no code with trioproxy.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import trio

SLOTS = 40
"""Requests that a proxy has with its upstream at a time; others wait."""
LATE = 0.4
"""Seconds by which the late one is late."""


class Request(bytearray):
    """A request's bytes, and whether its answer has begun."""

    answered = False


class Correct:
    """Reads a request, forwards it in a slot, relays the answer; a client that leaves cancels all of it."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.slots = trio.Semaphore(SLOTS)
        self.background: trio.Nursery | None = None

    async def serve(
        self, listen: tuple[str, int] = ("127.0.0.1", 0), *, task_status: trio.TaskStatus[tuple[str, int]]
    ) -> None:
        """Listen until cancelled."""
        async with trio.open_nursery() as nursery:
            self.background = nursery
            [listener] = await trio.open_tcp_listeners(listen[1], host=listen[0], backlog=1000)
            host, port = listener.socket.getsockname()[:2]
            task_status.started((host, port))
            await trio.serve_listeners(self.connection, [listener])

    async def connection(self, client: trio.SocketStream) -> None:
        """One client, with one request."""
        try:
            async with client:
                request = await read_request(client)
                if request is not None:
                    await self.exchange(client, request)
        except* (trio.BrokenResourceError, OSError):
            pass

    async def exchange(self, client: trio.SocketStream, request: Request) -> None:
        """One request. Its slot is free afterwards, whatever happens."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.watch, client, nursery.cancel_scope)
            async with self.slot(request):
                await self.forward(client, request)
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def slot(self, request: Request) -> AsyncGenerator[None]:
        """A slot, for as long as a request is with the upstream."""
        async with self.slots:
            yield

    async def watch(self, client: trio.SocketStream, scope: trio.CancelScope) -> None:
        """Cancel the request when its client leaves."""
        with contextlib.suppress(trio.BrokenResourceError):
            while await client.receive_some():
                pass
        await self.left()
        scope.cancel()

    async def left(self) -> None:
        """The client has left."""
        await trio.lowlevel.checkpoint()

    async def forward(self, client: trio.SocketStream, request: Request) -> None:
        """Send the request on and relay the answer, until the upstream closes."""
        upstream = await trio.open_tcp_stream(*self.upstream)
        try:
            await upstream.send_all(request)
            self.forwarded(request)
            while data := await upstream.receive_some(65536):
                request.answered = True
                await self.relay(client, data)
        finally:
            # Not a graceful close: the upstream is to know at once.
            await trio.aclose_forcefully(upstream)

    async def relay(self, client: trio.SocketStream, data: bytes | bytearray) -> None:
        """A piece of the answer for the client."""
        await client.send_all(data)

    def forwarded(self, request: Request) -> None:
        """The request has been sent, and its bytes are needed no more."""
        request.clear()


class PropagatesLate(Correct):
    """Takes its time when a client has left, and does not mind that nothing can be sent to it."""

    async def left(self) -> None:
        await trio.sleep(LATE)

    async def relay(self, client: trio.SocketStream, data: bytes | bytearray) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await client.send_all(data)


class NeverPropagates(PropagatesLate):
    """Reads the answer to its end, whoever is there to take it."""

    async def left(self) -> None:
        await trio.sleep_forever()


class LeaksTask(Correct):
    """Starts, for each request, a task that belongs to the proxy and outlives the request."""

    async def forward(self, client: trio.SocketStream, request: Request) -> None:
        assert self.background is not None
        self.background.start_soon(trio.sleep_forever, name="forgotten")
        await super().forward(client, request)


class RetainsBody(Correct):
    """Keeps the request until the answer has ended."""

    def forwarded(self, request: Request) -> None:
        pass


class LosesSlot(Correct):
    """Does not give back the slot of a request that is cancelled before its answer has begun."""

    @asynccontextmanager
    async def slot(self, request: Request) -> AsyncGenerator[None]:
        await self.slots.acquire()
        try:
            yield
        finally:
            if request.answered:
                self.slots.release()


class AsksAgain(Correct):
    """Takes a request that was cancelled before its answer for one that has failed, and sends it once more."""

    def forwarded(self, request: Request) -> None:
        pass

    async def forward(self, client: trio.SocketStream, request: Request) -> None:
        try:
            await super().forward(client, request)
        except trio.Cancelled:
            if not request.answered:
                assert self.background is not None
                self.background.start_soon(self.again, bytes(request))
            raise

    async def again(self, request: bytes) -> None:
        """The same request, for nobody."""
        await trio.sleep(0.05)
        async with await trio.open_tcp_stream(*self.upstream) as upstream:
            await upstream.send_all(request)
            while await upstream.receive_some(65536):
                pass


class Dies(Correct):
    """Ends its whole process at its fourth request: after the first, one that is served and one that is left."""

    served = 0

    async def forward(self, client: trio.SocketStream, request: Request) -> None:
        self.served += 1
        if self.served == 4:
            print("\x1b[31mout of\x1b[0m \x07luck", flush=True)
            os._exit(9)
        await super().forward(client, request)


PROXIES: dict[str, type[Correct]] = {
    "correct": Correct,
    "never": NeverPropagates,
    "late": PropagatesLate,
    "task": LeaksTask,
    "body": RetainsBody,
    "slot": LosesSlot,
    "again": AsksAgain,
    "dies": Dies,
}


async def read_request(client: trio.SocketStream) -> Request | None:
    """A whole request, with ``Connection: close`` added; None if the client leaves before its end."""
    data = Request()
    while (end := data.find(b"\r\n\r\n")) < 0:
        received = await client.receive_some(65536)
        if not received:
            return None
        data += received
    fields = dict(line.lower().split(b": ", 1) for line in bytes(data[:end]).split(b"\r\n")[1:])
    whole = end + 4 + int(fields.get(b"content-length", b"0"))
    while len(data) < whole:
        received = await client.receive_some(65536)
        if not received:
            return None
        data += received
    data[end:end] = b"\r\nConnection: close"
    return data


async def serve(  # noqa: ASYNC128 - what it calls does that
    name: str, upstream: tuple[str, int], *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run one of the proxies in front of ``upstream``, as ``measure`` wants it."""
    await PROXIES[name](upstream).serve(task_status=task_status)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    _proxy = PROXIES[sys.argv[1]](_address(sys.argv[3]))
    trio.run(partial(_proxy.serve, _address(sys.argv[2]), task_status=trio.TASK_STATUS_IGNORED))
