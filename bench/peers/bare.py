"""`python -m bench.peers.bare LISTEN_PORT UPSTREAM_PORT`: the least that a proxy on Trio can do, as a measure.

Lives here: a relay with direct sockets, a task and a nursery for each request, and llhttp on both sides. It checks
nothing, changes nothing, keeps no deadline, watches nobody and expects each request in one read: no proxy to use. What
it costs beside HAProxy is what Python and Trio cost before the first feature.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Final

import httptools
import trio

from bench.peers.install import Here
from bench.peers.peer import Address, Peer


class _Seen:
    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_message_complete(self) -> None:
        self.complete = True


async def _receive(sock: socket.socket) -> bytes:
    while True:  # noqa: ASYNC913 - so is the proxy's own: it tries before it waits
        try:
            return sock.recv(65536)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
        except ConnectionError:
            return b""


async def _client(client: socket.socket, upstream: int, idle: list[socket.socket]) -> None:
    with client:
        async with trio.open_nursery() as nursery:
            while data := await _receive(client):
                httptools.HttpRequestParser(_Seen()).feed_data(data)
                nursery.start_soon(_request, client, data, upstream, idle)


async def _request(client: socket.socket, data: bytes, upstream: int, idle: list[socket.socket]) -> None:
    async with trio.open_nursery():
        await _relay(client, data, upstream, idle)


async def _relay(client: socket.socket, data: bytes, upstream: int, idle: list[socket.socket]) -> None:
    sock = idle.pop() if idle else _ready(socket.create_connection(("127.0.0.1", upstream)))
    sock.send(data)
    seen = _Seen()
    parser = httptools.HttpResponseParser(seen)
    while not seen.complete:
        data = await _receive(sock)
        if not data:
            sock.close()
            client.shutdown(socket.SHUT_RDWR)
            return
        parser.feed_data(data)
        client.send(data)
    idle.append(sock)


def _ready(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


async def main(listen: int, upstream: int) -> None:
    """Relay until the process is ended."""
    idle: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", listen), backlog=1024) as listener:
        listener.setblocking(False)
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listener)
                client, _ = listener.accept()
                nursery.start_soon(_client, _ready(client), upstream, idle)


def _arguments(listen: Address, upstream: Address, _: Path) -> list[str]:
    return ["-m", "bench.peers.bare", str(listen.port), str(upstream.port)]


BARE: Final = Peer("bare", Here(), _arguments)

if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]))
