"""What is tried: at which stage a client leaves, in which way, before which kind of model server.

Lives here: names, and what a request must ask of the mock model server so that it stands still at its stage. Does not
live here: playing it (play.py).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final


@final
class Stage(enum.Enum):
    """Where a request is when its client leaves."""

    UPLOADING = "uploading"
    """A fraction of the body has been sent."""
    BEFORE_HEAD = "before-head"
    """A stream in prefill whose head has not been sent."""
    EARLY_HEAD = "early-head"
    """A stream in prefill whose head has been sent at once, as vLLM does."""
    STALL = "stall"
    """After the first event, while nothing comes."""
    MID_STREAM = "mid-stream"
    """While tokens come at their pace."""
    AFTER_LAST = "after-last"
    """After the last token, before the end of the response."""
    WHOLE = "whole"
    """Waiting for a response that is not streamed."""
    NONE = "none"
    """The client stays until the end: a control, which must not be disturbed."""


@final
class Way(enum.Enum):
    """How a client leaves."""

    FIN = "fin"
    """It reads what is there and closes its connection: the system sends a FIN."""
    RST = "rst"
    """It resets its connection."""
    HALF_CLOSE = "half-close"
    """It shuts down its sending side and reads on. TCP allows that to a client that wants its answer, so a proxy may go
    on serving it."""
    DEADLINE = "deadline"
    """Its own deadline fires while it reads, at no particular point of the stream, and it closes without reading what
    is there, as HTTP libraries do: a FIN, or a reset if something was unread."""
    STAY = "stay"
    """It does not."""


@final
class Upstream(enum.Enum):
    """What the model server does when it sees a disconnect."""

    STOPS = "stops"
    IGNORES = "ignores"


STAGES: Final = tuple(stage for stage in Stage if stage is not Stage.NONE)
WAYS: Final = tuple(way for way in Way if way is not Way.STAY)


@final
@dataclass(frozen=True, slots=True, order=False)
class Case:
    """One kind of leaving.

    :param fraction: of the body, for ``Stage.UPLOADING``; else 1.
    """

    stage: Stage
    way: Way
    upstream: Upstream = Upstream.STOPS
    fraction: float = 1.0

    @property
    def place(self) -> str:
        """The stage for people: with the fraction of the body, if it is uploading."""
        return f"{self.stage.value} {self.fraction:.0%}" if self.stage is Stage.UPLOADING else self.stage.value

    @property
    def label(self) -> str:
        """All of it in one word or two."""
        ignoring = ", ignored" if self.upstream is Upstream.IGNORES else ""
        return f"{self.place}, {self.way.value}{ignoring}"


def cases(
    stages: Iterable[Stage] = STAGES,
    ways: Iterable[Way] = WAYS,
    upstreams: Iterable[Upstream] = (Upstream.STOPS,),
    fractions: Sequence[float] = (0.5,),
) -> list[Case]:
    """All combinations, in the order of a request's life."""
    ways, upstreams = list(ways), list(upstreams)
    return [
        Case(stage, way, upstream, fraction)
        for stage in stages
        for fraction in (fractions if stage is Stage.UPLOADING else (1.0,))
        for upstream in upstreams
        for way in ways
    ]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the model server behaves and how long things are watched. Seconds."""

    prefill: float = 0.5
    stall: float = 0.5
    interval: float = 0.02
    """From one token to the next."""
    dwell: float = 0.03
    """From reaching a stage to leaving, so that the request is at rest there; none in mid-stream."""
    watch: float = 2.0
    """After leaving; what the model server has not seen by then, it is never told."""
    patience: float = 5.0
    """For a request to reach its stage, beyond the time that the model server takes."""


MID_STREAM_TOKENS: Final = 5
"""After which a client leaves in mid-stream."""
CONTROL_TOKENS: Final = 10


def knobs(case: Case, pace: Pace) -> dict[str, object]:
    """What the model server is told, so that a request comes to its stage and work is left to be wasted there."""
    beyond_watch = MID_STREAM_TOKENS + math.ceil(1.5 * pace.watch / pace.interval)
    asked: dict[str, object] = {"interval": pace.interval, "prefill": 0.0, "tokens": beyond_watch}
    match case.stage:
        case Stage.BEFORE_HEAD:
            asked |= {"prefill": pace.prefill, "head": "late"}
        case Stage.EARLY_HEAD:
            asked |= {"prefill": pace.prefill, "head": "early"}
        case Stage.STALL:
            asked |= {"stall_after": 1, "stall": pace.stall}
        case Stage.AFTER_LAST:
            asked |= {"tokens": MID_STREAM_TOKENS, "stall_after": MID_STREAM_TOKENS, "stall": pace.stall}
        case Stage.WHOLE:
            asked |= {"prefill": pace.prefill}
        case Stage.NONE:
            asked |= {"tokens": CONTROL_TOKENS}
        case Stage.UPLOADING | Stage.MID_STREAM:
            pass
    if case.upstream is Upstream.IGNORES:
        asked["ignore_disconnect"] = True
    return asked


def streamed(case: Case) -> bool:
    """Whether the request asks for a stream."""
    return case.stage is not Stage.WHOLE
