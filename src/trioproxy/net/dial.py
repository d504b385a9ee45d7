"""Opening connections: to one address, or to the first of several that answers.

Does not live here: names (an endpoint has been resolved before), TLS, or how long all of it may take.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, zip_longest
from typing import Final, TypeAlias, final

import trio

from ..transport import Transport
from .sockets import adopt

_ATTEMPT_DELAY: Final = 0.25
"""Seconds until the next address is tried beside one that has not answered (RFC 8305 section 5)."""
_BACKLOG_PAUSE: Final = 0.01


@final
class Address:
    """Where to connect to: a resolved socket address."""

    __slots__ = ("family", "sockaddr")

    def __init__(self, family: socket.AddressFamily, sockaddr: tuple[str | int | bytes, ...] | str) -> None:
        self.family = family
        self.sockaddr = sockaddr
        """As the socket module has it: a tuple, or the path of a unix socket."""

    def __repr__(self) -> str:
        return f"<Address {self.sockaddr}>"


Connector: TypeAlias = Callable[[Address], Awaitable[Transport]]
"""How a connection is opened; tests put a network of their own here."""


async def connect(address: Address) -> Transport:
    """Open a connection to one address.

    :raises OSError: it was refused or cannot be reached. Cancelled or failed, nothing is left open.
    """
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        error = sock.connect_ex(address.sockaddr)
        while error == errno.EAGAIN:  # a unix socket whose backlog is full: there is nothing to wait on
            await trio.sleep(_BACKLOG_PAUSE)
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


async def dial(addresses: Sequence[Address], connector: Connector = connect) -> Transport:
    """A connection to whichever address answers first: Happy Eyeballs (RFC 8305).

    Addresses are tried in their order, the families in turn, each as soon as the one before has failed or has kept
    silent for a quarter of a second.

    :raises OSError: none could be reached; that of the last. Cancelled or failed, nothing is left open.
    """
    if len(addresses) == 1:
        return await connector(addresses[0])
    race = _Race(connector)
    try:
        async with trio.open_nursery() as nursery:
            for address in _families_in_turn(addresses):
                over = trio.Event()
                nursery.start_soon(race.attempt, address, over, nursery.cancel_scope)
                with trio.move_on_after(_ATTEMPT_DELAY):
                    await over.wait()
    except BaseException:
        if race.winner is not None:
            race.winner.reset()
        raise
    if race.winner is None:
        raise race.failures[-1]
    return race.winner


@final
class _Race:
    __slots__ = ("_connector", "failures", "winner")

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.winner: Transport | None = None
        self.failures: list[OSError] = []

    async def attempt(self, address: Address, over: trio.Event, race: trio.CancelScope) -> None:
        try:
            transport = await self._connector(address)
        except OSError as error:
            self.failures.append(error)
            over.set()
        else:
            if self.winner is None:
                self.winner = transport
            else:
                transport.reset()
            race.cancel()


def _families_in_turn(addresses: Sequence[Address]) -> list[Address]:
    """The order of RFC 8305 section 4: beginning with the family that the resolver put first."""
    first = [address for address in addresses if address.family == addresses[0].family]
    second = [address for address in addresses if address.family != addresses[0].family]
    return [address for address in chain.from_iterable(zip_longest(first, second)) if address is not None]
