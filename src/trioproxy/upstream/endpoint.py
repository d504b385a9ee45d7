"""An endpoint: one model server, its name, and the addresses that the name stands for.

Lives here: the identity of an upstream and the resolution of its name, which happens outside exchanges, so that a
cancelled request leaves no resolver thread behind. Does not live here: connections.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Final, final
from urllib.parse import urlsplit

import trio

from ..errors import Code, ProxyError
from ..net import Address

_LOOKS: Final = "http://HOST:PORT, https://HOST:PORT or unix:/PATH"
_UNIX_PATH: Final = 107
"""Bytes that the path of a unix socket may have (unix(7))."""


@final
class Endpoint:
    """One upstream.

    :param url: ``http://HOST[:PORT]``, ``https://HOST[:PORT]``, ``unix:/PATH``, or ``HOST:PORT`` for the first; a path,
        a user or a query after the host is refused.
    :raises ValueError: the URL is not one of those, with what is wrong.
    """

    __slots__ = ("_addresses", "_changed", "_resolving", "failure", "host", "literal", "port", "tls", "url")

    def __init__(self, url: str) -> None:
        self.host: str
        """A name or an address; empty for a unix socket."""
        self.port: int
        self.tls: bool
        """Whether TLS is spoken; the certificate must be for ``host`` then."""
        self.url: str
        self.literal = False
        """Whether it is an address already, which needs no resolving."""
        self.failure: str | None = None
        """Why the last look-up failed, if it did."""
        self._addresses: list[Address] = []
        self._changed = trio.Event()
        self._resolving = False
        # urlsplit drops some characters and takes others for a part of the name, instead of refusing them.
        if not url.isprintable() or " " in url or "\\" in url:
            raise ValueError(f"upstream {url!r} must look like {_LOOKS}")
        if url.startswith("unix:"):
            self._init_unix(url)
        else:
            self._init_url(url if "://" in url or ":" not in url or url.startswith("//") else f"http://{url}")

    def _init_unix(self, url: str) -> None:
        path = url.removeprefix("unix:")
        if not path.startswith("/") or path.startswith("//") or path.endswith("/"):
            raise ValueError(
                f"upstream {url!r} must be unix: and the absolute path of a socket, such as unix:/run/model"
            )
        if len(os.fsencode(path)) > _UNIX_PATH:
            raise ValueError(f"upstream {url!r}: the path of a unix socket has at most {_UNIX_PATH} bytes")
        self.host, self.port, self.tls, self.url = "", 0, False, url
        self.literal = True
        self._addresses = [Address(socket.AF_UNIX, path)]

    def _init_url(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ValueError(f"upstream {url!r} must look like {_LOOKS}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"upstream {url!r} must look like {_LOOKS}")
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"upstream {parts.hostname!r}: a URL with a user or a password is refused")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError(
                f"upstream {url!r} must end after the port: paths are forwarded as the client sent them "
                f"(give {parts.scheme}://{parts.netloc})"
            )
        self.tls = parts.scheme == "https"
        try:
            port = parts.port
        except ValueError:
            port = 0
        if port == 0:
            raise ValueError(f"upstream {url!r}: the port must be a number from 1 to 65535")
        self.host = parts.hostname
        self.port = port or (443 if self.tls else 80)
        self.url = f"{parts.scheme}://{parts.netloc}"
        try:
            ip = ipaddress.ip_address(self.host)
        except ValueError:
            return
        self.literal = True
        if ip.version == 6:
            self._addresses = [Address(socket.AF_INET6, (self.host, self.port, 0, 0))]
        else:
            self._addresses = [Address(socket.AF_INET, (self.host, self.port))]

    def __repr__(self) -> str:
        return f"<Endpoint {self.url}>"

    def said(self, detail: str | None) -> str:
        """What a log line says of it: its URL, once, and the detail."""
        if detail is None:
            return self.url
        return detail if self.url in detail else f"{self.url}: {detail}"

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
            found = await trio.to_thread.run_sync(look_up, self.host, self.port, limiter=limiter)
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


def look_up(host: str, port: int) -> list[Address]:
    """Ask the system's resolver; blocks. Raises OSError, and UnicodeError for a name that cannot be one."""
    found = [
        Address(family, sockaddr)
        for family, _, _, _, sockaddr in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    ]
    if not found:
        raise OSError(f"no address for {host!r}")
    return found
