"""Small proxies, each with one fault of memory that real ones have, and one without: what the referee must tell apart.

Lives here: a proxy on asyncio that serves one request per connection, as a command:
``python tests/faulty_memory.py NAME LISTEN UPSTREAM`` (addresses are HOST:PORT). It shares no code with trioproxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

LOST = 32768
"""Bytes that a leaking one loses with each request: far above the few KiB by which a heap moves in some hundreds."""
DIES_AT = 25
"""The request at which one of them ends its process."""


class Answer:
    """What is known of one answer."""

    def __init__(self) -> None:
        self.whole = False
        """Its last chunk was relayed: a client that leaves then has had all of it, though the upstream may not have
        closed yet."""


class Correct:
    """Buffers a request, forwards it, relays the answer as fast as the client reads; a client that leaves ends it."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.lost: list[bytearray] = []
        self.served = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, with one request."""
        try:
            request = await read_request(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        self.served += 1
        answer = Answer()
        exchange = asyncio.create_task(self.exchange(request, writer, answer))
        left = asyncio.create_task(has_left(reader))
        del request
        await asyncio.wait((exchange, left), return_when=asyncio.FIRST_COMPLETED)
        if exchange.done() or answer.whole:
            self.completed()
        else:
            exchange.cancel()
            self.cancelled()
        left.cancel()
        await asyncio.gather(exchange, left, return_exceptions=True)
        writer.transport.abort() if not exchange.cancelled() and exchange.exception() else writer.close()

    async def exchange(self, request: list[bytes], writer: asyncio.StreamWriter, answer: Answer) -> None:
        """Forward the request and relay the answer, until the upstream closes."""
        upstream_reader, upstream = await asyncio.open_connection(*self.upstream)
        try:
            kept = self.forwarding(request)
            while request:
                upstream.write(request.pop(0))
                await upstream.drain()
            await self.relay(upstream_reader, writer, answer)
            del kept
        finally:
            upstream.transport.abort()

    def forwarding(self, request: list[bytes]) -> object:
        """The request is about to be sent; what is returned stays until the answer has ended."""
        return None

    async def relay(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        """Relay the answer."""
        while data := await upstream.read(65536):
            answer.whole = data.endswith(b"0\r\n\r\n")
            writer.write(data)
            await writer.drain()

    def completed(self) -> None:
        """A request has had its whole answer."""

    def cancelled(self) -> None:
        """Its client has left before that."""


class RetainsBody(Correct):
    """Keeps the request until the answer has ended."""

    def forwarding(self, request: list[bytes]) -> object:
        return list(request)


class CopiesBody(Correct):
    """Has four copies of the request for a moment."""

    def forwarding(self, request: list[bytes]) -> object:
        joined = b"".join(request)
        copies = [bytearray(joined), bytearray(joined)]
        copies.clear()
        return None


class LeaksCompleted(Correct):
    """Loses something with each request that has had its answer."""

    def completed(self) -> None:
        self.lost.append(bytearray(b"x" * LOST))


class LeaksCancelled(Correct):
    """Loses something with each request whose client has left."""

    def cancelled(self) -> None:
        self.lost.append(bytearray(b"x" * LOST))


class BuffersUnread(Correct):
    """Takes all that the upstream sends, whether or not the client reads."""

    async def relay(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        while data := await upstream.read(65536):
            writer.write(data)
        await writer.drain()


class Dies(Correct):
    """Ends its process."""

    def forwarding(self, request: list[bytes]) -> object:
        if self.served >= DIES_AT:
            print("out of luck", flush=True)
            os._exit(9)
        return None


PROXIES: dict[str, type[Correct]] = {
    "correct": Correct,
    "retains": RetainsBody,
    "copies": CopiesBody,
    "leaks-completed": LeaksCompleted,
    "leaks-cancelled": LeaksCancelled,
    "buffers": BuffersUnread,
    "dies": Dies,
}


async def read_request(reader: asyncio.StreamReader) -> list[bytes]:
    """A whole request in two pieces, with ``Connection: close`` added."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head[:-4].split(b"\r\n")[1:])
    body = await reader.readexactly(int(fields[b"content-length"]))
    return [head[:-2] + b"Connection: close\r\n\r\n", body]


async def has_left(reader: asyncio.StreamReader) -> None:
    """Wait until the client is gone."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(65536):
            pass


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def main(name: str, listen: tuple[str, int], upstream: tuple[str, int]) -> None:
    """Serve for ever."""
    proxy = PROXIES[name](upstream)
    server = await asyncio.start_server(proxy.connection, *listen, backlog=1000)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], _address(sys.argv[2]), _address(sys.argv[3])))
