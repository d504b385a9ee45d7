"""The facts of one request, from both sides, as they are kept and written.

Lives here: a record, which holds a payload's id, length and hash and never its bytes (unless they are to be kept), and
the file of JSON lines that grows while a run goes on. Does not live here: how facts are judged (join.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, Protocol, final

import msgspec

from .cases import Stage, Upstream, Way

RECEIVED_KEPT: Final = 16 * 1024
"""Bytes of an answer that are kept of a request whose client left."""

CANNOT_CONNECT: Final = "cannot connect"
"""How the reason of a request begins whose client could not."""

Leg = Literal["direct", "proxy"]
Load = Literal["single", "crowd"]


@final
class Outcome(enum.Enum):
    """What became of one request."""

    SEEN = "seen"
    """The model server saw that the client had left, in time."""
    LATE = "late"
    """It saw that, later than the limit."""
    MISSED = "missed"
    """It was not told while it was watched: it worked for nobody until it was done, or is still at it."""
    NEVER_REACHED = "never-reached"
    """The request never came to the model server: nothing was wasted."""
    COMPLETED = "completed"
    """The model server was done before the client left, or was seen to be done at once after it."""
    KEPT = "kept"
    """After a half-close the proxy goes on serving: the client is still connected, which TCP allows."""
    SERVED = "served"
    """After a half-close the client got its whole answer."""
    WHOLE = "whole"
    """A client that stayed got its whole answer, its own and in order."""
    FALSE_ABORT = "false-abort"
    """A client that stayed did not get it: the model server saw a disconnect, or the answer was cut or wrong."""
    FAILED = "failed"
    """The request did not come to its stage, so nothing was measured; ``why`` says what happened."""


@final
class Record(msgspec.Struct, kw_only=True, omit_defaults=False):
    """One request. Times are seconds of the system's monotonic clock, null for what did not happen.

    A millisecond value is null where its end was not seen.
    """

    id: str
    leg: Leg
    load: Load
    stage: Stage
    way: Way
    upstream: Upstream
    fraction: float
    payload_bytes: int
    payload_sha256: str
    parent_id: str | None
    payload: str | None = None
    """The request's body, only with ``--keep-payloads``."""
    outcome: Outcome
    why: str | None = None
    status: int | None = None
    tokens: int = 0
    """Seen by the client."""
    received_bytes: int = 0
    """Of the answer's body."""
    received: str | None = None
    """The answer's body until the client left, at most 16 KiB."""
    complete: bool = False
    started: float
    sent: float | None = None
    left: float | None = None
    ended: float | None = None
    ttft_ms: float | None = None
    """From the call to connect to the first token."""
    propagation_ms: float | None = None
    """From the client's call to close to the model server's noticing."""
    tokens_for_nobody: int = 0
    slot_ms_for_nobody: float = 0.0
    cross_delivered_bytes: int = 0
    disordered_tokens: int = 0
    attempts: int = 0
    """How many times the model server saw the request."""
    sent_after_leave: bool = False
    """Whether it came to the model server only after the client had left."""
    server_seen: float | None = None
    server_body_read: float | None = None
    server_abandoned: float | None = None
    server_finished: float | None = None
    server_tokens: int = 0

    @property
    def unconnected(self) -> bool:
        """Whether its client could not connect."""
        return self.outcome is Outcome.FAILED and self.why is not None and self.why.startswith(CANNOT_CONNECT)

    @property
    def over(self) -> bool:
        """Whether nobody has to do anything for it any more: the client is done and the model server knows it."""
        return self.outcome in _OVER


_OVER: Final = frozenset(
    {Outcome.SEEN, Outcome.LATE, Outcome.NEVER_REACHED, Outcome.COMPLETED, Outcome.SERVED, Outcome.WHOLE}
)


class Kept(Protocol):
    """What a record of any kind has that only the file needs."""

    payload: str | None
    received: str | None


class RecordWriter:
    """Writes records as JSON lines while a run goes on; without a file it does nothing.

    :param path: is replaced. Each record is with the system when ``write`` returns, so a crash loses none.
    """

    __slots__ = ("_encoder", "_file", "count")

    def __init__(self, path: Path | None) -> None:
        self._file: IO[bytes] | None = None if path is None else path.open("wb", buffering=0)
        self._encoder = msgspec.json.Encoder()
        self.count = 0

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, records: Iterable[Kept]) -> None:
        """Write them, in order. Then what only the file needs is dropped from each, so that a run stays small."""
        for record in records:
            self.count += 1
            if self._file is not None:
                self._file.write(self._encoder.encode(record) + b"\n")
            record.received = None
            record.payload = None
