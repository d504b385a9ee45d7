"""How far the mock model server's answers may go.

Lives here: one gate for all requests of a server, moved by whoever measures: so that any number of streams stand still
at the same token for as long as it takes to look at them, and go on together. Does not live here: a request's own pace
(mock_request.py).
"""

from __future__ import annotations

import math
from typing import final

import trio


@final
class Gate:
    """Lets tokens pass whose index is below a limit; open, until ``hold`` is called."""

    __slots__ = ("_limit", "_waiting")

    def __init__(self) -> None:
        self._limit = math.inf
        self._waiting = trio.lowlevel.ParkingLot()

    def hold(self, limit: float) -> None:
        """From now on no request makes its token ``limit``, counted from 0, nor one after it.

        Those that a higher limit lets go on do so. A request that has made its tokens ends, whatever the limit.
        """
        self._limit = limit
        self._waiting.unpark_all()

    def open(self) -> None:
        """Let everything pass."""
        self.hold(math.inf)

    async def passed(self, index: int) -> None:
        """Wait until the token with this index may be made. Its deadline is the caller's; a checkpoint if it waits."""
        while index >= self._limit:
            await self._waiting.park()
