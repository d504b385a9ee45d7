"""Bytes in and out: the only package that opens and closes sockets.

Lives here: the :class:`~trioproxy.transport.Transport` that the rest of the proxy reads and writes, over a plain socket
(sockets.py) or any Trio stream (streams.py), connecting (dial.py) and accepting (listening.py). Does not live here:
anything that knows what the bytes mean.
"""

from .dial import Address, connect
from .listening import accept_nowait, listen
from .sockets import RECEIVE_SIZE, SocketTransport
from .streams import StreamTransport, transport_for

__all__ = [
    "RECEIVE_SIZE",
    "Address",
    "SocketTransport",
    "StreamTransport",
    "accept_nowait",
    "connect",
    "listen",
    "transport_for",
]
