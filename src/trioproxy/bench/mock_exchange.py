"""One request on the mock model server, from its head to its outcome.

Lives here: the state that the reader and the responder of a connection share, and the rule that decides whether a
client has abandoned a request. Everything here is synchronous: a time is taken where the event is seen.
"""

from __future__ import annotations

import enum
from typing import final

import trio

from trioproxy.bench.mock_record import RequestRecord
from trioproxy.bench.mock_request import Body, Plan, Refusal


@final
class Stage(enum.Enum):
    OPEN = enum.auto()
    """More will be sent than is in the socket's hands."""
    SENDING_LAST = enum.auto()
    """The last bytes are being handed over; whether they all were, only the send can tell."""
    FINISHED = enum.auto()
    """Over: leaving means nothing any more."""


@final
class Exchange:
    """One request from its head to its outcome."""

    __slots__ = (
        "body",
        "body_done",
        "left",
        "method",
        "origin",
        "path",
        "plan",
        "query",
        "record",
        "refusal",
        "request_id",
        "scope",
        "stage",
    )

    def __init__(
        self,
        record: RequestRecord,
        *,
        method: bytes = b"",
        path: bytes = b"",
        query: bytes = b"",
        request_id: bytes | None = None,
    ) -> None:
        self.record = record
        self.method = method
        self.path = path
        self.query = query
        self.request_id = request_id
        self.body: Body | None = None
        self.body_done = trio.Event()
        """The whole body was read, or the request was refused before that."""
        self.refusal: Refusal | None = None
        self.plan: Plan | None = None
        self.origin = 0.0
        """Trio's time when generation began; the plan counts from here."""
        self.stage = Stage.OPEN
        self.left: float | None = None
        self.scope = trio.CancelScope()

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.drop_body()
        self.body_done.set()

    def drop_body(self) -> None:
        if self.body is not None:
            self.body.close()
            self.body = None

    def leave(self, now: float) -> None:
        """The client is gone. Fixes the time and stops the work, both at once."""
        if self.stage is Stage.FINISHED or self.left is not None:
            return
        self.left = now
        if self.stage is Stage.OPEN:
            self.record.abandoned = now
        self.scope.cancel()

    def finish(self, now: float) -> None:
        """All has been sent, or nobody is left to send it to."""
        self.stage = Stage.FINISHED
        self.record.finished = now

    def settle(self) -> None:
        """The answering has stopped: if it was in the last send, it did not come through."""
        if self.left is not None and self.stage is not Stage.FINISHED:
            self.record.abandoned = self.left
