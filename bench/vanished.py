"""What Linux does about a TCP peer that vanished, and about one that lives and does not read, by socket options.

Lives here: the experiment behind net/liveness.py, on raw sockets between network namespaces. Does not live here: the
proxy. Each row is a connection of its own, and all of them run at once: `python -m bench.vanished` takes as long as
`--seconds` says. Needs Linux, root and iproute2.
"""

from __future__ import annotations

import argparse
import errno
import socket
import sys
import time
from collections.abc import Callable
from typing import Final, final

from trioproxy.net.liveness import LivenessWatch

from .namespaces import Host, NoNamespacesError, network

_PATIENCE: Final = 30
_RTO_MAX_MS: Final = 44
"""TCP_RTO_MAX_MS, of Linux 6.15."""
_SETTLING: Final = 5.0
"""Seconds between what is done to a connection and the cut."""
_SITUATIONS: Final = (
    "gone, nothing in flight",
    "gone, data in flight",
    "gone, window closed",
    "gone, send blocked",
    "lives, window closed",
    "lives, send blocked",
)


def _probes(sock: socket.socket) -> None:
    LivenessWatch(sock, _PATIENCE)


def _probes_and_timeout(sock: socket.socket) -> None:
    _probes(sock)
    _user_timeout(sock, _PATIENCE)


def _probes_and_short_rto(sock: socket.socket) -> None:
    _probes(sock)
    sock.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, 2000)


def _user_timeout(sock: socket.socket, seconds: int) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * seconds)


_LIFTED: Final = "user timeout, lifted while a send blocks"
_WATCHED: Final = "user timeout while nothing is answered"
_WAYS: Final[dict[str, Callable[[socket.socket], None]]] = {
    "nothing": lambda _: None,
    "probes": _probes,
    "probes, user timeout": _probes_and_timeout,
    f"probes, {_LIFTED}": _probes_and_timeout,
    "probes, at most 2 s between retransmissions": _probes_and_short_rto,
    f"probes, {_WATCHED}": _probes,
}


@final
class Connection:
    """One connection in one situation."""

    def __init__(self, way: str, situation: str, server: Host, client: Host) -> None:
        self.way: Final = way
        self.situation: Final = situation
        self.ended: tuple[float, int] | None = None
        """When, and by which error."""
        with server.open_socket() as listener:
            listener.bind((server.address, 0))
            listener.listen()
            self._far = client.open_socket()
            self._far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            self._far.connect(listener.getsockname())
            self._near = listener.accept()[0]
        self._near.setblocking(False)
        self._near.send(b"x")
        self._far.recv(1)
        _WAYS[way](self._near)
        self._watch = LivenessWatch(self._near, _PATIENCE) if way.endswith(_WATCHED) else None
        self._blocked = False
        if situation.endswith("window closed"):
            self._send(20_000)  # more than its window, less than our buffer
        elif situation.endswith("send blocked"):
            while self._send(65536):
                pass

    def _send(self, size: int) -> bool:
        try:
            self._near.send(bytes(size))
        except BlockingIOError:
            if self.way.endswith(_LIFTED) and not self._blocked:
                _user_timeout(self._near, 0)
            self._blocked = True
            return False
        if self.way.endswith(_LIFTED) and self._blocked:
            _user_timeout(self._near, _PATIENCE)
        self._blocked = False
        return True

    def step(self, now: float) -> None:
        """Look whether it has ended; twice a second, an event of a stream."""
        if self.ended is not None:
            return
        error = self._near.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not error and self.situation in ("gone, data in flight", "gone, window closed", "lives, window closed"):
            try:
                self._send(100)
            except OSError as failure:
                error = failure.errno or errno.EIO
        if error:
            self.ended = now, error

    def check(self) -> None:
        """What trioproxy does every five seconds."""
        if self._watch is not None and self.ended is None:
            self._watch.check()

    def close(self) -> None:
        """Close both ends."""
        self._near.close()
        self._far.close()


def measure(seconds: float) -> list[Connection]:
    """Every way in every situation, watched for that long after the cut."""
    with network("server", "gone", "living") as hosts:
        server, gone, living = hosts.hosts
        connections = [
            Connection(way, situation, server, gone if situation.startswith("gone") else living)
            for way in _WAYS
            for situation in _SITUATIONS
        ]
        try:
            time.sleep(_SETTLING)
            hosts.cut(gone)
            began = time.monotonic()
            for turn in range(int(2 * seconds)):
                for connection in connections:
                    connection.step(time.monotonic() - began)
                    if turn % 10 == 0:
                        connection.check()
                time.sleep(max(0.0, began + (turn + 1) / 2 - time.monotonic()))
        finally:
            for connection in connections:
                connection.close()
    return connections


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="how long to wait after the cut (%(default)g)")
    seconds = parser.parse_args().seconds
    try:
        connections = measure(seconds)
    except NoNamespacesError as error:
        sys.exit(str(error))
    print("| options | " + " | ".join(_SITUATIONS) + " |")
    print("|---" * (len(_SITUATIONS) + 1) + "|")
    for way in _WAYS:
        ends = [connection.ended for connection in connections if connection.way == way]
        cells = [f"> {seconds:g} s" if end is None else f"{end[0]:.0f} s {errno.errorcode[end[1]]}" for end in ends]
        print(f"| {way} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
