"""The account of what all bodies of one proxy hold, and the limit for them together.

Lives here: counting, and telling those who wait. Does not live here: the bytes, or waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final


@final
class BodyLedger:
    """How many bytes the bodies of one proxy hold, and the limit for all of them together.

    Synchronous: whoever must wait leaves a callback.

    :param limit: bytes of bodies that are held whole. Those that pass through are bounded one by one, and counted
        apart: a client that fills pipes takes no room from others.
    """

    __slots__ = ("_passing", "_waiting", "_whole", "limit", "violations")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._whole = 0
        self._passing = 0
        self.violations = 0
        """Bodies that could not be emptied on release, since a view of them had escaped its lease."""
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def held(self) -> int:
        """Bytes of all bodies, those that pass through included."""
        return self._whole + self._passing

    def try_reserve(self, count: int) -> bool:
        """Account for ``count`` more bytes of a body that is held whole, if the limit allows."""
        if self._whole + count > self.limit:
            return False
        self._whole += count
        return True

    def passing(self, count: int) -> None:
        """Account for bytes of a body that passes through."""
        self._passing += count

    def passed(self, count: int) -> None:
        """They have been handed on, or dropped."""
        self._passing -= count

    def free(self, count: int) -> None:
        """Give bytes back and tell those who wait."""
        self._whole -= count
        if count:
            self._wake()

    def resize(self, limit: int) -> None:
        """Have another limit from now on. What is held stays, even above it."""
        self.limit = limit
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake()

    def call_when_freed(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once when bytes are given back, or the limit is another."""
        self._waiting[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        """Take a callback back."""
        self._waiting.pop(wake, None)
