"""What is noted of one request on its way, for whoever counts or logs it when it is over.

Lives here: the record, and the outcomes. It holds small values only, never a byte of a body or a credential, so that it
may be kept as long as anyone likes. Does not live here: what is made of it (telemetry).

Times are on Trio's clock, in seconds; NaN where the request did not come that far.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final, final

from .errors import Code, Fault, ProxyError

if TYPE_CHECKING:
    from .apis.usage import Usage
    from .http1 import RequestHead
    from .upstream.endpoint import Endpoint

_NEVER: Final = math.nan


@final
class Phase(enum.Enum):
    """Which phase a request in flight is in."""

    __hash__ = object.__hash__  # by identity, in C; the default one runs Python for each count

    REQUEST = "request"
    FORWARDING = "forwarding"
    RESPONSE = "response"


@final
class Outcome(enum.Enum):
    """How a request ended; fixed once."""

    __hash__ = object.__hash__

    COMPLETED = "completed"
    """The last byte of a response of the upstream, whatever its status, was handed to the client's socket."""
    SERVED = "served"
    """So was that of a response of the proxy's own that is no error, such as the list of models."""
    CLIENT_CLOSED = "client_closed"
    CLIENT_STALLED = "client_stalled"
    """The client took nothing, or sent nothing, for as long as it may."""
    REFUSED = "refused"
    """The proxy answered itself: something was wrong with the request, or there was no room for it."""
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    DRAINED = "drained"
    """The proxy was told to stop and the grace was over."""
    INTERNAL_ERROR = "internal_error"


_TIMEOUTS: Final = frozenset(
    {
        Code.CONNECT_TIMEOUT,
        Code.SEND_TIMEOUT,
        Code.FIRST_BYTE_TIMEOUT,
        Code.FIRST_EVENT_TIMEOUT,
        Code.IDLE_TIMEOUT,
        Code.TOTAL_TIMEOUT,
        Code.UPSTREAM_VANISHED,
    }
)


def outcome_of(error: ProxyError) -> Outcome:
    """The outcome of a request that ended with this error."""
    if error.code is Code.REQUEST_TIMEOUT:
        return Outcome.CLIENT_STALLED
    if error.code in _TIMEOUTS:
        return Outcome.UPSTREAM_TIMEOUT
    if error.code is Code.INTERNAL:
        return Outcome.INTERNAL_ERROR
    return Outcome.UPSTREAM_ERROR if error.fault is Fault.UPSTREAM else Outcome.REFUSED


@final
class RequestRecord:
    """One request, from its head on.

    :param request_id: the proxy's own id, unique within the process.
    :param public_id: the id that client and upstream know it by.
    :param head: None for a request that was refused before its head could be read.
    """

    __slots__ = (
        "answered",
        "attempts",
        "began",
        "body_held",
        "body_size",
        "client",
        "connected",
        "ended",
        "endpoint",
        "error",
        "events",
        "first_event",
        "last_event",
        "max_output_tokens",
        "method",
        "model",
        "operation",
        "outcome",
        "path",
        "phase",
        "public_id",
        "received",
        "released",
        "request_id",
        "response_size",
        "retries_of_client",
        "route",
        "status",
        "stream",
        "tenant",
        "upstream_status",
        "usage",
        "usage_unknown",
    )

    def __init__(self, request_id: str, public_id: str, head: RequestHead | None, client: str, began: float) -> None:
        self.request_id: Final = request_id
        self.public_id: Final = public_id
        self.client: Final = client
        """The client's address; empty if it has none."""
        self.method = b"" if head is None else head.method
        self.path = b"" if head is None else head.target.partition(b"?")[0]
        """As it came, without the query, in which there may be secrets."""
        self.operation = ""
        """Which operation of which API, such as ``openai.chat``; empty if nobody knows."""
        self.route = ""
        self.tenant = ""
        """Whose key the client showed."""
        self.model: str | None = None
        """As the client named it."""
        self.stream = False
        self.max_output_tokens: int | None = None
        self.endpoint: Endpoint | None = None
        """Where it was sent last."""
        self.attempts = 0
        """Endpoints that were tried, and connections that turned out to be dead."""
        self.retries_of_client: int | None = None
        """What the client says that it is: 0 for its first attempt (``x-stainless-retry-count``)."""
        self.phase = Phase.REQUEST
        self.outcome: Outcome | None = None
        self.error: Code | None = None
        self.status = 0
        """That the client was sent; 0 if there was none."""
        self.upstream_status = 0
        self.body_size = 0
        """Bytes of the request's body that came."""
        self.body_held = 0
        """The most bytes of it that were held at a time."""
        self.response_size = 0
        """Bytes of the response's body, as the upstream sent it."""
        self.events = 0
        """Of the response's stream."""
        self.usage: Usage | None = None
        self.usage_unknown = False
        """Whether there was a response whose usage could not be read."""
        self.began: Final = began
        self.received = _NEVER
        """When the last byte of the request was there."""
        self.connected = _NEVER
        """When the connection on which it was sent stood."""
        self.released = _NEVER
        """When its body was let go of."""
        self.answered = _NEVER
        """When the head of the response was there."""
        self.first_event = _NEVER
        self.last_event = _NEVER
        self.ended = _NEVER

    def __repr__(self) -> str:
        return f"<RequestRecord {self.request_id} {self.phase.value} {self.outcome}>"
