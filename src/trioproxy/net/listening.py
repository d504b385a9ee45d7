"""Listening sockets, and taking connections from them."""

from __future__ import annotations

import errno
import socket

import trio

from ..transport import Transport
from .sockets import adopt


async def listen(host: str, port: int, *, backlog: int = 4096) -> list[socket.socket]:
    """Listening sockets for a host name or address, and a port (0 for any free one).

    :raises OSError: the address is in use, not ours, or unknown.
    """
    sockets: list[socket.socket] = []
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=backlog)
    except UnicodeError:
        raise OSError(errno.EINVAL, f"{host!r} is not a host name") from None
    for listener in listeners:
        bound = listener.socket
        sockets.append(socket.socket(bound.family, bound.type, bound.proto, fileno=bound.detach()))
        sockets[-1].setblocking(False)
    return sockets


def accept_nowait(listener: socket.socket) -> tuple[Transport, str] | None:
    """The next connection that waits to be accepted and the peer's address, or None.

    :raises OSError: the process or the system has no file or memory left for it.
    """
    while True:
        try:
            sock, peer = listener.accept()
        except BlockingIOError:
            return None
        except ConnectionError:
            continue  # it was gone before it was accepted
        try:
            return adopt(sock), str(peer[0]) if sock.family in (socket.AF_INET, socket.AF_INET6) else ""
        except BaseException:
            sock.close()
            raise
