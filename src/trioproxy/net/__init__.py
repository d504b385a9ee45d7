"""Bytes in and out: the only package that opens and closes sockets.

Lives here: the :class:`~trioproxy.transport.Transport` that the rest of the proxy reads and writes, over a plain socket
(sockets.py), TLS (tls.py) or any Trio stream (streams.py), connecting (dial.py) and accepting (listening.py). Does not
live here: anything that knows what the bytes mean.
"""

from .dial import Address, Connector, connect, dial
from .listening import Listener, inherited, listen, listen_unix
from .liveness import interval_for
from .sockets import RECEIVE_SIZE, SocketTransport
from .streams import StreamTransport, transport_for
from .tls import ServerTls, TlsError, client_context, extra_info, load_chain, start_tls, trusting

__all__ = [
    "RECEIVE_SIZE",
    "Address",
    "Connector",
    "Listener",
    "ServerTls",
    "SocketTransport",
    "StreamTransport",
    "TlsError",
    "client_context",
    "connect",
    "dial",
    "extra_info",
    "inherited",
    "interval_for",
    "listen",
    "listen_unix",
    "load_chain",
    "start_tls",
    "transport_for",
    "trusting",
]
