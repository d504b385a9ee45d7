"""An endpoint: one model server, its name, and the addresses that the name stands for.

Lives here: the identity of an upstream and the resolution of its name, which happens outside exchanges, so that a
cancelled request leaves no resolver thread behind. Does not live here: connections.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import final
from urllib.parse import urlsplit

import trio

from ..errors import Code, ProxyError
from ..net import Address


@final
class Endpoint:
    """One upstream.

    :param url: ``http://HOST[:PORT]``; a path, a user or a query is refused.
    :raises ValueError: the URL is not one of those, with what is wrong.
    """

    __slots__ = ("_addresses", "_changed", "_resolving", "authority", "failure", "host", "port", "url")

    def __init__(self, url: str) -> None:
        # urlsplit drops some characters and takes others for a part of the name, instead of refusing them.
        if not url.isprintable() or " " in url or "\\" in url:
            raise ValueError(f"upstream {url!r} must look like http://HOST:PORT")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ValueError(f"upstream {url!r} must look like http://HOST:PORT") from None
        if parts.scheme == "https":
            raise ValueError(f"upstream {url!r}: TLS to upstreams is not available in this version; use http://")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"upstream {url!r} must look like http://HOST:PORT")
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"upstream {parts.hostname!r}: a URL with a user or a password is refused")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError(
                f"upstream {url!r} must end after the port: paths are forwarded as the client sent them "
                f"(give http://{parts.netloc})"
            )
        try:
            port = parts.port
        except ValueError:
            raise ValueError(f"upstream {url!r}: the port must be a number from 1 to 65535") from None
        self.host = parts.hostname
        self.port = 80 if port is None else port
        if self.port == 0:
            raise ValueError(f"upstream {url!r}: the port must be a number from 1 to 65535")
        self.authority = parts.netloc
        self.url = f"http://{parts.netloc}"
        self._addresses: list[Address] = []
        self.failure: str | None = None
        """Why the last look-up failed, if it did."""
        self._changed = trio.Event()
        self._resolving = False
        try:
            ip = ipaddress.ip_address(self.host)
        except ValueError:
            pass
        else:
            if ip.version == 6:
                self._addresses = [Address(socket.AF_INET6, (self.host, self.port, 0, 0))]
            else:
                self._addresses = [Address(socket.AF_INET, (self.host, self.port))]

    def __repr__(self) -> str:
        return f"<Endpoint {self.url}>"

    @property
    def literal(self) -> bool:
        """Whether the host is an address, which needs no resolving."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    async def addresses(self) -> list[Address]:
        """The addresses of the endpoint, of the last look-up that succeeded; waits for the first one.

        Cancelling it ends the waiting, never the look-up.

        :raises ProxyError: ``CONNECT_FAILED``: the name could not be resolved yet.
        """
        while not self._addresses:
            if self.failure is not None:
                raise ProxyError(
                    Code.CONNECT_FAILED,
                    "the name of the model server cannot be resolved",
                    detail=f"{self.host!r}: {self.failure}",
                )
            await self._changed.wait()
        return self._addresses

    async def resolve(self, limiter: trio.CapacityLimiter) -> None:
        """Look the name up once; what was known stays if that fails. Does nothing while another look-up runs.

        Runs in a thread that cannot be interrupted: cancelled, it returns when the thread has.

        :param limiter: the threads that look-ups may use, apart from those of anything else.
        """
        if self._resolving or self.literal:
            return
        self._resolving = True
        try:
            found = await trio.to_thread.run_sync(_look_up, self.host, self.port, limiter=limiter)
        except (OSError, UnicodeError) as error:  # the second for a name that cannot be one
            self.failure = str(error)
        else:
            self._addresses = found
            self.failure = None
        finally:
            self._resolving = False
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    @property
    def resolved(self) -> bool:
        """Whether there is an address to connect to."""
        return bool(self._addresses)


def _look_up(host: str, port: int) -> list[Address]:
    found = [
        Address(family, sockaddr)
        for family, _, _, _, sockaddr in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    ]
    if not found:
        raise OSError(f"no address for {host!r}")
    return found
