"""The account of what all bodies of one proxy hold, and the limit for them together.

Lives here: counting, and telling those who wait. Does not live here: the bytes, or waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final


@final
class BodyLedger:
    """How many bytes the bodies of one proxy hold, and the limit for all of them together.

    Slots are granted in the order in which they were asked for. Synchronous: whoever must wait leaves a callback.

    :param limit: bytes.
    """

    __slots__ = ("_waiting", "held", "limit", "violations")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.violations = 0
        """Bodies that could not be emptied on release, since a view of them had escaped its lease."""
        self._waiting: dict[Callable[[], None], None] = {}

    def try_reserve(self, count: int) -> bool:
        """Account for ``count`` more bytes, if the limit allows."""
        if self.held + count > self.limit:
            return False
        self.held += count
        return True

    def take(self, count: int) -> None:
        """Account for bytes that are bounded elsewhere."""
        self.held += count

    def free(self, count: int) -> None:
        """Give bytes back and tell those who wait."""
        self.held -= count
        if count and self._waiting:
            waiting, self._waiting = self._waiting, {}
            for wake in waiting:
                wake()

    def call_when_freed(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once when bytes are given back."""
        self._waiting[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        """Take a callback back."""
        self._waiting.pop(wake, None)
