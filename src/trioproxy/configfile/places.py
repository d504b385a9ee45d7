"""Where a proxy listens: the addresses as they are written, and listening there.

Lives here: ``HOST:PORT``, ``unix:PATH`` and ``systemd``. Does not live here: sockets.
"""

from __future__ import annotations

from typing import NamedTuple, final

from ..net import Listener, inherited, listen, listen_unix


@final
class Place(NamedTuple):
    """Where to listen: host and port, or a path, or neither for the sockets that were passed to the process."""

    shown: str
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read ``HOST:PORT``, ``[IPV6]:PORT``, ``:PORT`` (every address of this machine), ``unix:PATH`` or ``systemd``.

        :raises ValueError: it is none of these, with what is wrong.
        """
        if text == "systemd":
            return cls(text)
        if text.startswith("unix:"):
            if not (path := text.removeprefix("unix:")):
                raise ValueError(f"{text!r} lacks the path of a socket, such as unix:/run/trioproxy.sock")
            return cls(text, path=path)
        host, port = parse_address(text)
        return cls(show_address(host, port), host, port)

    async def listeners(self) -> list[Listener]:
        """Listen there; raises OSError."""
        if self.host:
            return await listen(self.host, self.port)
        return [listen_unix(self.path)] if self.path else inherited()


def parse_address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``.

    :raises ValueError: it is none of these, with what is wrong.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:8080")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address is written in brackets, such as [::1]:8080")
    return host or "0.0.0.0", int(port)


def show_address(host: str, port: int) -> str:
    """A host and a port as they are typed."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
