"""What the model server saw, found by a request's id.

Lives here: which records belong to a request. A proxy that tries again sends a request twice, so there may be several.
Does not live here: what follows from them (join.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

import trio

from ..mock_record import RequestRecord

_POLL: Final = 0.001
"""Seconds between two looks. It delays a client's next step, never a time that is measured: the mock takes those."""


@final
class Index:
    """The records of the requests that are being watched; give ``note`` to the mock as ``on_name``."""

    __slots__ = ("_left", "_records", "strangers")

    def __init__(self) -> None:
        self._records: dict[str, list[RequestRecord]] = {}
        self._left: list[RequestRecord] = []
        self.strangers = 0
        """Requests that nobody here has sent: health checks, or what the proxy makes up."""

    def expect(self, request_id: str) -> None:
        """Keep records of this request from now on."""
        self._records[request_id] = []

    def note(self, record: RequestRecord) -> None:
        """The mock has a record of this id."""
        known = self._records.get(record.id)
        if known is None:
            self.strangers += 1
        elif not any(record is other for other in known):
            known.append(record)

    def seen(self, request_id: str) -> Sequence[RequestRecord]:
        """The records of a request, oldest first."""
        return self._records.get(request_id, ())

    def forget(self, request_id: str) -> None:
        """The request is judged. What the model server still does for it is only waited for, by ``quiet``."""
        self._left += [record for record in self._records.pop(request_id, ()) if not is_over(record)]

    async def quiet(self) -> None:
        """Wait until the model server has done all that it does for requests that are judged: those that were missed
        keep a proxy's slots busy, which the next measurement must not take for its own. Its deadline is the caller's.
        """
        await _until(lambda: all(map(is_over, self._left)))
        self._left.clear()

    async def arrived(self, request_id: str) -> None:
        """Wait until the whole request is with the model server. Its deadline is the caller's."""
        await _until(lambda: any(record.body_read is not None for record in self.seen(request_id)))

    async def begun(self, request_id: str) -> None:
        """Wait until the request's head is with the model server. Its deadline is the caller's."""
        await _until(lambda: bool(self.seen(request_id)))

    async def another(self, request_id: str, known: int) -> None:
        """Wait until there are more than ``known`` records of the request. Its deadline is the caller's."""
        await _until(lambda: len(self.seen(request_id)) > known)

    async def settled(self, request_id: str) -> None:
        """Wait until the model server has nothing to do for the request. Its deadline is the caller's."""
        await _until(lambda: _settled(self.seen(request_id)))


async def _until(holds: Callable[[], bool]) -> None:
    # The mock wakes whoever waits for a record at every token of every stream: with a thousand streams, and a thousand
    # that wait, looking now and then costs less.
    while not holds():  # noqa: ASYNC110
        await trio.sleep(_POLL)


def _settled(records: Sequence[RequestRecord]) -> bool:
    return bool(records) and all(is_over(record) for record in records)


def is_over(record: RequestRecord) -> bool:
    """Whether the model server knows how a request ended: it finished, or saw that nobody waits."""
    return record.abandoned is not None or record.finished is not None
