"""A small server for tests of HTTP clients, over plain TCP, TLS or a unix socket, and how such a client is made.

Does not live here: assertions, and anything that decides what is right.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeAlias, final

import httpx
import trio


@final
class Conversation:
    """A server's side of one connection."""

    def __init__(self, stream: trio.abc.Stream, number: int, below: trio.SocketStream) -> None:
        self.stream = stream
        self.number = number
        self.below = below
        self._early = b""

    async def head(self) -> str:
        """The next request's head; empty at the end."""
        while b"\r\n\r\n" not in self._early:
            data = await self.stream.receive_some()
            if not data:
                return ""
            self._early += data
        head, _, self._early = self._early.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    async def body(self, mark: bytes) -> bytes:
        """What comes up to the mark, it included."""
        while mark not in self._early:
            self._early += await self.stream.receive_some()
        data, _, self._early = self._early.partition(mark)
        return data + mark

    async def says(self, *lines: str, body: bytes = b"") -> None:
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    async def answers(self, body: bytes = b"ok", *fields: str, status: str = "200 OK") -> None:
        await self.says(f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, body=body)


Handler: TypeAlias = Callable[[Conversation], Awaitable[None]]


@final
class Server:
    """A server on loopback, or at a unix socket, whose handler has each connection to itself."""

    def __init__(self, handler: Handler, context: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._context = context
        self.url = ""
        self.connections = 0
        self.ended = 0

    async def serve(self, below: trio.SocketStream) -> None:
        self.connections += 1
        stream: trio.abc.Stream = below
        if self._context is not None:
            stream = trio.SSLStream(below, self._context, server_side=True)
        try:
            await self._handler(Conversation(stream, self.connections, below))
        except trio.BrokenResourceError:
            pass
        finally:
            self.ended += 1
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(stream)


@asynccontextmanager
async def serving(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncGenerator[Server]:
    server = Server(handler, context)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        server.url = f"{'https' if context else 'http'}://127.0.0.1:{listener.socket.getsockname()[1]}"
        yield server
        nursery.cancel_scope.cancel()


class MakeClient(Protocol):
    """Makes a client whose transport has these arguments."""

    def __call__(
        self,
        *,
        limits: httpx.Limits = ...,
        verify: ssl.SSLContext | bool = ...,
        cert: tuple[str, str] | None = ...,
        uds: str | None = ...,
        timeout: httpx.Timeout = ...,
        follow_redirects: bool = ...,
    ) -> httpx.AsyncClient: ...


async def echo(talk: Conversation) -> None:
    """Answer each request with its head, whatever its body of known length is."""
    while head := await talk.head():
        await talk.answers(head.encode("latin-1"))
