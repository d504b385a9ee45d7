"""What the mock model server has seen: one record a request, and the ledger that keeps the newest of them.

Lives here: the facts that a referee of cancellation asks for, and how to wait for them.
Does not live here: who establishes them (mock_connection.py) and how they are served over HTTP.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import trio

from trioproxy.bench.mock_load import EngineLoad

KEPT_RECORDS: Final = 10_000
"""The ledger forgets the oldest record beyond these."""


@final
@dataclass(slots=True)
class RequestRecord:
    """One request, as far as it has come. Times are seconds on the ledger's clock, None until it happened.

    Exactly one of ``abandoned`` and ``finished`` is set once the request is over, unless disconnects are ignored:
    then a request that was abandoned is finished too. Neither is set on a request that the server's own end cut off.
    """

    id: str
    """``metadata.id``, else the X-Bench-Id header, which proxies leave alone, else X-Request-Id, which some replace,
    else a number of the server's own. Need not be unique."""
    path: str
    seen: float
    """The head had been read."""
    model: str | None = None
    stream: bool = False
    body_bytes: int = 0
    body_read: float | None = None
    first_token: float | None = None
    abandoned: float | None = None
    """FIN or reset came before the last byte of the response had been handed to the socket."""
    finished: float | None = None
    """The last byte had been handed to the socket, or the response was cut on purpose."""
    tokens: int = 0
    """Tokens made, sent or not."""
    tokens_after_abandon: int = 0
    """Of those, the ones made when the client had already been seen to leave: wasted work."""
    status: int | None = None
    """Status of the response whose head was produced, None as long as there is none."""


@final
class Ledger:
    """The newest records, oldest first, and a place to wait for one.

    :param clock: seconds. The default is the system's monotonic clock, which two processes of one machine share;
        Trio's has an offset of its own in every run.
    :param on_name: called, synchronously, with each record when it comes and again when its body names it differently.
    """

    __slots__ = ("_changed", "_count", "_on_name", "clock", "load", "records")

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, on_name: Callable[[RequestRecord], None] | None = None
    ) -> None:
        self._on_name = on_name
        self.clock = clock
        self.load = EngineLoad()
        self.records: deque[RequestRecord] = deque(maxlen=KEPT_RECORDS)
        self._changed = trio.lowlevel.ParkingLot()
        self._count = 0

    def next_id(self) -> str:
        """A number for a request that brought no id of its own."""
        self._count += 1
        return str(self._count)

    def add(self, record: RequestRecord) -> None:
        """Keep a record; the oldest goes if there are too many."""
        self.records.append(record)
        if self._on_name is not None:
            self._on_name(record)
        self.changed()

    def rename(self, record: RequestRecord, name: str) -> None:
        """The body has named the request."""
        if record.id != name:
            record.id = name
            if self._on_name is not None:
                self._on_name(record)

    def changed(self) -> None:
        """Wake those who wait. To be called after every change of a record; costs nothing when nobody waits."""
        self._changed.unpark_all()

    def named(self, record_id: str) -> list[RequestRecord]:
        """The records with this id, oldest first."""
        return [record for record in self.records if record.id == record_id]

    def clear(self) -> None:
        """Forget all records. Requests still in flight go on, unrecorded."""
        self.records.clear()

    async def wait(self, predicate: Callable[[RequestRecord], object]) -> RequestRecord:
        """Wait for a record that satisfies ``predicate`` and return the newest one.

        Has no deadline of its own: that is the caller's. Cancellation leaves nothing behind.
        """
        await trio.lowlevel.checkpoint()
        while True:
            for record in reversed(self.records):
                if predicate(record):
                    return record
            await self._changed.park()
