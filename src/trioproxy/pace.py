"""The deadlines of one exchange: one time, which moves with what the exchange waits for.

Lives here: which stage an exchange is in and until when it may be. Does not live here: waking anybody (the client's
reader keeps the alarm, since it is there for as long as the exchange), and what a deadline that has passed leads to.

A cancel scope of its own cost an exchange 7 µs and each move 2: here a move is an assignment.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Final, Protocol, final

import trio

from .config import Deadlines
from .errors import Code, ProxyError


@final
class Stage(enum.Enum):
    """What an exchange waits for, hence what its deadline means."""

    BODY = "body"
    CONNECT = "connect"
    FIRST_BYTE = "first byte"
    FIRST_EVENT = "first event"
    STREAMING = "streaming"


_EXPIRED: Final = {
    Stage.FIRST_BYTE: (Code.FIRST_BYTE_TIMEOUT, "the upstream sent no response"),
    Stage.FIRST_EVENT: (Code.FIRST_EVENT_TIMEOUT, "the upstream sent the head of a stream and then no event"),
    Stage.STREAMING: (Code.IDLE_TIMEOUT, "the upstream's response stood still"),
}
# CPython 3.11 looks a member of an enum up anew each time, for 0.1 µs.
_BODY: Final = Stage.BODY
_CONNECT: Final = Stage.CONNECT
_FIRST_EVENT: Final = Stage.FIRST_EVENT
_STREAMING: Final = Stage.STREAMING


class _Counting(Protocol):
    """Whoever counts the events of a response."""

    @property
    def events(self) -> int:
        """Complete events so far."""
        ...


@final
class Pace:
    """When one exchange has taken too long.

    :param alarm: told of each new deadline that may be earlier than the last.
    """

    __slots__ = ("_alarm", "_deadlines", "_left", "_seconds", "_stage", "_until", "deadline", "events")

    def __init__(self, deadlines: Deadlines, alarm: Callable[[float], None]) -> None:
        self._deadlines = deadlines
        self._alarm = alarm
        self._left = math.inf
        self._stage = _BODY
        self._seconds = total = deadlines.total
        self._until = self.deadline = math.inf if total == math.inf else trio.current_time() + total
        """The deadline of the stage, on Trio's clock."""
        self.events: _Counting | None = None
        """Counts the events of the response; None if any byte of it is its first event."""
        if total != math.inf:
            alarm(self.deadline)

    @property
    def until(self) -> float:
        """When the exchange as a whole has taken too long."""
        return self._until

    def renew(self, deadlines: Deadlines, began: float) -> None:
        """Go by other deadlines, of an exchange that began then: those of the route that it takes."""
        self._deadlines = deadlines
        self._until = self.deadline = began + deadlines.total
        self._seconds = deadlines.total
        if deadlines.total != math.inf:
            self._alarm(self.deadline)

    def enter(self, stage: Stage, seconds: float) -> None:
        """Wait for something else from now on, for so long at most."""
        self._stage = stage
        self._seconds = seconds
        self.deadline = deadline = min(trio.current_time() + seconds, self._until)
        self._alarm(deadline)

    def connecting(self) -> None:
        """Wait for a connection from now on: whoever opens it keeps the time."""
        self._stage = _CONNECT
        self.deadline = self._until

    def stop(self) -> None:
        """Have no deadline any more."""
        self.deadline = math.inf

    def progress(self) -> None:
        """Called by the relay after each piece of the body that it has passed on."""
        if self._stage is _FIRST_EVENT and (self.events is None or self.events.events):
            self._stage = _STREAMING
            self._seconds = self._deadlines.idle
        # Before the first event only comments came, which extend nothing; after it each piece does.
        if self._stage is _STREAMING:
            self.deadline = deadline = min(trio.current_time() + self._seconds, self._until)
            self._alarm(deadline)

    def blocked(self) -> None:
        """Called by the relay before it waits for the client: that time is not the upstream's."""
        self._left = self.deadline - trio.current_time()
        self.deadline = self._until

    def resumed(self) -> None:
        """Called by the relay when the client has taken it: the upstream's time runs on from where it stood."""
        self.deadline = min(trio.current_time() + self._left, self._until)
        self._alarm(self.deadline)

    def expired(self) -> ProxyError:
        """The error of the deadline that has passed."""
        if self._stage in (_BODY, _CONNECT) or trio.current_time() >= self._until:
            return ProxyError(
                Code.TOTAL_TIMEOUT, f"the request took longer than the {self._deadlines.total:g} s that it may take"
            )
        code, what = _EXPIRED[self._stage]
        return ProxyError(code, f"{what} for {self._seconds:.4g} s")
