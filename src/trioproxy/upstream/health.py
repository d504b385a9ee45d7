"""How an endpoint does: what its requests and its probes say of it.

Lives here: the state of one endpoint and what changes it, without I/O or a clock of its own. Does not live here: who is
asked instead (group), sending a probe (probe), or what counts as a failure of a request (exchange).

There are two sources, and each has a say of its own. Requests that fail in a row set an endpoint aside for a time that
doubles; when it is over, the next failure sets it aside again, the next success forgets all. Probes, where there are
any, take it out until they succeed again, which ends its time aside as well.
"""

from __future__ import annotations

import math
from typing import Final, final

from ..config import Health

_MOST_DOUBLINGS: Final = 6
_SLOWEST: Final = 0.1
"""Of its share, what an endpoint gets at least when it has just come back."""


@final
class HealthState:
    """The health of one endpoint.

    :param plan: the thresholds and times.
    """

    __slots__ = ("_back", "_doublings", "_plan", "_probes", "aside_until", "drained", "failures", "up")

    def __init__(self, plan: Health) -> None:
        self._plan = plan
        self.failures = 0
        """Of requests, in a row."""
        self.up: bool = True
        """As probes see it; until they have failed often enough, it is."""
        self.drained = False
        """Whether an operator has taken it out: it gets no new request."""
        self.aside_until = -math.inf
        """Until when it is set aside since its requests failed, on Trio's clock."""
        self._doublings = 0
        self._probes = 0
        """Of those in a row that contradict ``up``."""
        self._back = -math.inf
        """When it came back last."""

    def __repr__(self) -> str:
        return f"<HealthState {'up' if self.up else 'down'} {self.failures} failures, drained {self.drained}>"

    @property
    def failing(self) -> bool:
        """Whether it is better not counted on."""
        return not self.up or self.failures >= self._plan.failures

    def available(self, now: float) -> bool:
        """Whether it gets requests."""
        return self.up and not self.drained and now >= self.aside_until

    def share(self, now: float) -> float:
        """What it gets of its share of requests: less than 1 while it has only just come back."""
        slow = self._plan.slow_start
        if now >= self._back + slow:
            return 1.0
        return max(_SLOWEST, (now - self._back) / slow)

    def renew(self, plan: Health) -> None:
        """Go by another plan from now on."""
        self._plan = plan
        if plan.path is None:
            self.up = True

    def request_failed(self) -> bool:
        """A request has failed; whether it should be set aside for that."""
        self.failures += 1
        return self.failures >= self._plan.failures

    def set_aside(self, now: float) -> float:
        """Set it aside; returns for how many seconds."""
        seconds = min(self._plan.aside * 2.0**self._doublings, self._plan.aside_most)
        self._doublings = min(self._doublings + 1, _MOST_DOUBLINGS)
        self.aside_until = self._back = now + seconds
        return seconds

    def request_succeeded(self, now: float) -> bool:
        """A request has succeeded; whether that was news."""
        if not self.failures:
            return False
        news = self.failures >= self._plan.failures
        self.failures = self._doublings = 0
        if now < self.aside_until:
            self.aside_until = -math.inf
            self._back = now
        return news

    def probed(self, succeeded: bool, now: float) -> bool:
        """A probe has come back; whether the endpoint has gone up or down by it."""
        if succeeded:
            self.aside_until = min(self.aside_until, now)
        if succeeded is self.up:
            self._probes = 0
            return False
        self._probes += 1
        if self._probes < (self._plan.rise if succeeded else self._plan.fall):
            return False
        self._probes = 0
        self.up = succeeded
        if succeeded:
            self._back = now
            self.failures = self._doublings = 0
        return True
