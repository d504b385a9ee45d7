"""Listening sockets, and taking connections from them.

Lives here: TCP, unix sockets, and sockets that a service manager has opened before. Does not live here: what is done
with a connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import MutableMapping
from typing import Final, final

import trio

from ..transport import Transport
from .sockets import adopt

_BACKLOG: Final = 4096
_FIRST_INHERITED: Final = 3
"""The number of the first socket that is passed on (sd_listen_fds(3))."""


@final
class Listener:
    """A listening socket, which it owns.

    :param path: of a unix socket whose name this process has made, and removes.
    """

    __slots__ = ("_path", "_sock", "_status", "name")

    def __init__(self, sock: socket.socket, path: str | None = None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._path = path
        self._status = None if path is None else os.lstat(path)
        self.name: Final = _name_of(sock)
        """Where it listens: ``127.0.0.1:8080``, ``[::1]:8080`` or ``unix:/path``."""

    def __repr__(self) -> str:
        return f"<Listener {self.name}{' closed' if self._sock.fileno() < 0 else ''}>"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; of a unix socket, its path and 0."""
        host_and_port = _host_and_port(self._sock)
        return (self.name.removeprefix("unix:"), 0) if host_and_port is None else host_and_port

    async def wait_readable(self) -> None:
        """Wait until a connection may be there to be accepted."""
        await trio.lowlevel.wait_readable(self._sock)

    def accept_nowait(self) -> tuple[Transport, str] | None:
        """The next connection that waits, and the peer's address (empty if it has none); or None.

        :raises OSError: the process or the system has no file or memory left for it.
        """
        while True:
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                return None
            except ConnectionError:
                continue  # it was gone before it was accepted
            try:
                return adopt(sock), str(peer[0]) if sock.family in (socket.AF_INET, socket.AF_INET6) else ""
            except BaseException:
                sock.close()
                raise

    def close(self) -> None:
        """Stop listening, and remove the name of a unix socket if it is still this one's. Idempotent."""
        if self._sock.fileno() < 0:
            return
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
        if self._path is not None and self._status is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.lstat(self._path), self._status):
                    os.unlink(self._path)


def _host_and_port(sock: socket.socket) -> tuple[str, int] | None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    name: tuple[str, int] = sock.getsockname()[:2]
    return name


def _name_of(sock: socket.socket) -> str:
    host_and_port = _host_and_port(sock)
    if host_and_port is None:
        path: str | bytes = sock.getsockname()
        if isinstance(path, bytes):  # of Linux's abstract namespace
            return f"unix:@{os.fsdecode(path[1:])}"
        return f"unix:{path}"
    host, port = host_and_port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def listen(host: str, port: int) -> list[Listener]:
    """Listeners for a host name or address, and a port (0 for any free one).

    :raises OSError: the address is in use, not ours, or unknown.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except UnicodeError:
        raise OSError(errno.EINVAL, f"{host!r} is not a host name") from None
    found: list[Listener] = []
    for listener in listeners:
        bound = listener.socket
        found.append(Listener(socket.socket(bound.family, bound.type, bound.proto, fileno=bound.detach())))
    return found


def listen_unix(path: str) -> Listener:
    """A listener on a unix socket at this path; one that nobody listens at any more is replaced.

    Who may connect is a matter of the directory's and the socket's permissions, the latter by the process's umask.

    :raises OSError: somebody listens there, something else is there, or the path is too long (107 bytes on Linux).
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.bind(path)
        sock.listen(_BACKLOG)
        return Listener(sock, path)
    except BaseException:
        sock.close()
        raise


def _remove_stale(path: str) -> None:
    """Remove the socket of a process that is gone. The name is all that is left of it."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, f"{path!r} is there and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        result = probe.connect_ex(path)
    if result == errno.ECONNREFUSED:
        os.unlink(path)
    elif result != errno.ENOENT:
        raise OSError(errno.EADDRINUSE, f"somebody listens at {path!r}")


def inherited(environment: MutableMapping[str, str] | None = None) -> list[Listener]:
    """The sockets that were opened by whoever started this process, as systemd does it (sd_listen_fds(3)).

    They can be taken once.

    :param environment: where they are told of; the process's own, unless given.
    :raises OSError: there are none (any more), or one of them does not listen for streams; then all are closed.
    """
    if environment is None:
        environment = os.environ
    if environment.get("LISTEN_PID") != str(os.getpid()):
        raise OSError("no sockets were passed to this process (LISTEN_PID is not its own): start it by a .socket unit")
    count = environment.get("LISTEN_FDS", "")
    if not count.isascii() or not count.isdigit() or not int(count):
        raise OSError(f"LISTEN_FDS must be how many sockets were passed, got {count!r}")
    del environment["LISTEN_PID"], environment["LISTEN_FDS"]
    sockets: list[socket.socket] = []
    try:
        for number in range(_FIRST_INHERITED, _FIRST_INHERITED + int(count)):
            sockets.append(_passed(number))
            if not _listens_for_streams(sockets[-1]):
                raise OSError(f"the passed socket {number} does not listen for streams of TCP or of a unix socket")
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return [Listener(sock) for sock in sockets]


def _passed(number: int) -> socket.socket:
    try:
        os.set_inheritable(number, False)
        return socket.socket(fileno=number)
    except OSError as error:
        raise OSError(f"the passed file {number} is no socket: {error.strerror}") from None


def _listens_for_streams(sock: socket.socket) -> bool:
    known = sock.family in (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_UNIX", None))
    accepts = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return known and accepts and sock.type == socket.SOCK_STREAM
