"""What a proxy of the tests is connected by to its clients and its upstreams, and how it reads heads.

Lives here: each kind of link, as the two ends of a connection that nothing but a script and the proxy know of. Does not
live here: what is said on it. Which link and which codec a test runs with is chosen in conftest.py.

All of them are deterministic: what is sent is there to be read at once, and no task but those of the test moves it.
"""

from __future__ import annotations

import functools
import socket
import ssl
from typing import Final, Literal, Protocol, TypeAlias, final

import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from certificates import server_context, trusting_context
from network import connection, stream_of
from tls_end import TlsEnd
from trioproxy.http1 import ParserName, default_parser
from trioproxy.net import SocketTransport, StreamTransport
from trioproxy.transport import Transport

LinkName: TypeAlias = Literal["memory", "unix", "tls"]
_HELD_FOR_THE_DEAF: Final = 64
"""Bytes: a request or a response is longer."""


class Link(Protocol):
    """How a proxy is connected."""

    @property
    def scheme(self) -> str:
        """What upstreams are told that clients speak."""
        ...

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The certificate for clients, if they speak TLS."""
        ...

    @property
    def upstream_tls(self) -> ssl.SSLContext | None:
        """For connections to upstreams, if those speak TLS."""
        ...

    def url(self, host: str) -> str:
        """Of an upstream with an address such as ``10.0.0.1``."""
        ...

    def client(self, *, deaf: bool = False) -> tuple[trio.abc.HalfCloseableStream, trio.abc.Stream]:
        """A connection of a client: its own end and the proxy's, for ``Proxy.serve_stream``.

        :param deaf: the network holds next to nothing for the client.
        """
        ...

    def upstream(self, host: str, *, deaf: bool = False) -> tuple[trio.abc.HalfCloseableStream, Transport]:
        """A connection to an upstream: its own end and the proxy's.

        :param deaf: the network holds next to nothing for the upstream.
        """
        ...


@final
class MemoryLink:
    """Trio's streams in memory, which hold any number of bytes."""

    scheme = "http"
    tls: ssl.SSLContext | None = None
    upstream_tls: ssl.SSLContext | None = None

    def url(self, host: str) -> str:
        return f"http://{host}:80"

    def client(self, *, deaf: bool = False) -> tuple[trio.abc.HalfCloseableStream, trio.abc.Stream]:
        return lockstep_stream_pair() if deaf else memory_stream_pair()

    def upstream(self, host: str, *, deaf: bool = False) -> tuple[trio.abc.HalfCloseableStream, Transport]:
        theirs, ours = self.client(deaf=deaf)
        return theirs, StreamTransport(ours)


@final
class UnixLink:
    """The kernel's own: pairs of unix sockets. What one end sends, the other can read before the call returns."""

    scheme = "http"
    tls: ssl.SSLContext | None = None
    upstream_tls: ssl.SSLContext | None = None

    def url(self, host: str) -> str:
        return f"unix:/{host}"

    def client(self, *, deaf: bool = False) -> tuple[trio.abc.HalfCloseableStream, trio.abc.Stream]:
        theirs, ours = self._pair(deaf=deaf)
        return _stream(theirs), _stream(ours)

    def upstream(self, host: str, *, deaf: bool = False) -> tuple[trio.abc.HalfCloseableStream, Transport]:
        theirs, ours = self._pair(deaf=deaf)
        return _stream(theirs), SocketTransport(ours, patient=True)

    @staticmethod
    def _pair(*, deaf: bool) -> tuple[socket.socket, socket.socket]:
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        theirs.setblocking(False)
        ours.setblocking(False)
        try:
            while deaf:  # a socket holds thousands of bytes: it is full from the beginning
                ours.send(bytes(1024))
        except BlockingIOError:
            pass
        return theirs, ours


def _stream(sock: socket.socket) -> trio.SocketStream:
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


_serving: Final = functools.cache(server_context)
_trusting: Final = functools.cache(trusting_context)


@final
class TlsLink:
    """TLS on both sides, over a network in memory; the script's ends speak one of their own."""

    scheme = "https"

    @property
    def tls(self) -> ssl.SSLContext | None:
        return _serving()

    @property
    def upstream_tls(self) -> ssl.SSLContext | None:
        return _trusting()

    def url(self, host: str) -> str:
        return f"https://{host}:443"

    def client(self, *, deaf: bool = False) -> tuple[trio.abc.HalfCloseableStream, trio.abc.Stream]:
        theirs, ours = connection("client")
        if deaf:
            theirs.capacity = _HELD_FOR_THE_DEAF
        return stream_of(TlsEnd(theirs, _trusting(), server_hostname="localhost")), stream_of(ours)

    def upstream(self, host: str, *, deaf: bool = False) -> tuple[trio.abc.HalfCloseableStream, Transport]:
        ours, theirs = connection(host)
        if deaf:
            theirs.capacity = _HELD_FOR_THE_DEAF
        return stream_of(TlsEnd(theirs, _serving())), ours


LINKS: Final[dict[LinkName, Link]] = {"memory": MemoryLink(), "unix": UnixLink(), "tls": TlsLink()}


@final
class Choice:
    """What the test that runs is to use."""

    made = False
    link: Link = LINKS["memory"]
    codec: ParserName = default_parser()


CHOSEN: Final = Choice()
