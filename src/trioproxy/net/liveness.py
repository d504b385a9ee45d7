"""Whether the system at the other end of a TCP connection still answers.

Lives here: the socket options that make the kernel find out, and when each is on. Does not live here: what a peer that
answers but does not read is allowed (the deadline ``write_stall``), and what is done about one that has vanished: the
kernel fails its socket, and whoever reads, writes or waits for the hang-up learns of it as of any broken connection.

Two things are told apart that TCP_USER_TIMEOUT throws together. A peer that answers nothing is gone, whether data are
on their way to it (the kernel would retransmit for 15 minutes) or not (it would wait for ever). A peer that answers
every probe and keeps its window closed is alive and slow: with TCP_USER_TIMEOUT set, Linux cuts it all the same, even
while there is room in the send buffer, so that nobody is told that anything blocked. So keep-alive probes are on for
good, and the timeout is on only while what was sent stays unanswered, which TCP_INFO tells (docs/measurements.md).
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
from typing import Final, Protocol, final

_PROBES: Final = 3
_IDLE: Final[int | None] = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
"""Which macOS calls TCP_KEEPALIVE."""
_INTERVAL: Final[int | None] = getattr(socket, "TCP_KEEPINTVL", None)
_COUNT: Final[int | None] = getattr(socket, "TCP_KEEPCNT", None)
_TELLS: Final = sys.platform == "linux"
_INFO_SIZE: Final = 60
_COUNTERS: Final = struct.Struct("=2x2B52xI")
"""Of tcp_info (linux/tcp.h): retransmissions and probes without an answer, milliseconds since the last ACK."""
VANISHED: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
"""How a connection fails whose peer has vanished; not the first where a neighbour or a router says why (RFC 1122
section 4.2.3.9 lets that decide only what is reported in the end)."""


class _Socket(Protocol):
    """What is needed of a socket: Python's own and Trio's have it."""

    @property
    def family(self) -> int: ...
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


@final
class LivenessWatch:
    """Watches over the peer of one socket. Made when a connection is some seconds old: a short one pays nothing.

    :param patience: seconds without any answer after which the peer has vanished: half of them until the first probe,
        a sixth for each of three.
    """

    __slots__ = ("_interval", "_patience", "_sock", "_unanswered")

    def __init__(self, sock: _Socket, patience: float) -> None:
        interval = interval_for(patience)
        idle = max(1, round(patience) - _PROBES * interval)
        self._patience = 1000 * (idle + _PROBES * interval)
        self._interval = 1000 * interval
        self._unanswered = False
        self._sock: _Socket | None = sock
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            self._sock = None
            return
        # Not its default first: Linux reckons from the last answer only if the probes are on when it is told the times.
        _set(sock, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((_INTERVAL, interval), (_COUNT, _PROBES), (_IDLE, idle)):
            if option is not None:
                _set(sock, socket.IPPROTO_TCP, option, value)

    def check(self) -> None:
        """Look at it again; to be called about once an interval. Costs about a microsecond."""
        if not _TELLS or self._sock is None:
            return
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
            retransmitted, probed, since_answer = _COUNTERS.unpack(info)
        except (OSError, struct.error):  # closed, or a kernel of another kind that passes for Linux
            self._sock = None
            return
        # One alone may be on its way.
        unanswered = max(retransmitted, probed) >= 2 and since_answer >= self._interval
        if unanswered is not self._unanswered:
            self._unanswered = unanswered
            timeout = self._patience if unanswered else 0
            _set(self._sock, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)


def interval_for(patience: float) -> int:
    """Seconds between two probes, and between two checks."""
    return max(1, round(patience / (2 * _PROBES)))


def _set(sock: _Socket, level: int, option: int, value: int) -> None:
    with contextlib.suppress(OSError):  # what a system does not have, it goes without
        sock.setsockopt(level, option, value)
