"""Opening connections."""

from __future__ import annotations

import errno
import os
import socket
from typing import final

import trio

from ..transport import Transport
from .sockets import adopt


@final
class Address:
    """Where to connect to: a resolved socket address."""

    __slots__ = ("family", "sockaddr")

    def __init__(self, family: socket.AddressFamily, sockaddr: tuple[str | int | bytes, ...]) -> None:
        self.family = family
        self.sockaddr = sockaddr

    def __repr__(self) -> str:
        return f"<Address {self.sockaddr}>"


async def connect(address: Address) -> Transport:
    """Open a TCP connection.

    :raises OSError: it was refused or cannot be reached. Cancelled or failed, nothing is left open.
    """
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        error = sock.connect_ex(address.sockaddr)
        if error == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        return adopt(sock, patient=True)
    except BaseException:
        sock.close()
        raise
