"""What can go wrong with a request, in one table: whose fault, which status, whether it may be tried again.

Lives here: the error type that every layer raises and the table that maps its code to what the client is told.
Does not live here: how an error is written (each API has a form of its own), nor when a retry is legal
(the upstream's rules), nor anything that does I/O.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, final


@final
class Fault(enum.Enum):
    """Whose doing an error is."""

    CLIENT = "client"
    UPSTREAM = "upstream"
    PROXY = "proxy"


@final
class Code(enum.Enum):
    """The name of an error: stable, in the JSON that a client gets and in the statistics."""

    BAD_REQUEST = "bad_request"
    DUPLICATE_FIELD = "duplicate_field"
    PATH_NOT_ALLOWED = "path_not_allowed"
    MODEL_NOT_FOUND = "model_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    BODY_TOO_LARGE = "body_too_large"
    TARGET_TOO_LONG = "target_too_long"
    EXPECTATION_FAILED = "expectation_failed"
    HEAD_TOO_LARGE = "head_too_large"
    TRANSFER_CODING_UNSUPPORTED = "transfer_coding_unsupported"
    HTTP_VERSION_UNSUPPORTED = "http_version_unsupported"
    LOOP_DETECTED = "loop_detected"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    NO_UPSTREAM = "no_upstream"
    CONNECT_FAILED = "connect_failed"
    TLS_FAILED = "tls_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    SEND_TIMEOUT = "send_timeout"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    FIRST_EVENT_TIMEOUT = "first_event_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    BAD_RESPONSE = "bad_response"
    UPSTREAM_CLOSED = "upstream_closed"
    UPSTREAM_VANISHED = "upstream_vanished"
    INTERNAL = "internal_error"


class Rule(NamedTuple):
    """What follows from a code."""

    status: int
    """The status that the client gets, if its response has not begun."""
    fault: Fault
    retryable: bool
    """Whether another attempt might succeed, as far as the error alone can tell."""


RULES: Final[dict[Code, Rule]] = {
    Code.BAD_REQUEST: Rule(400, Fault.CLIENT, False),
    Code.DUPLICATE_FIELD: Rule(400, Fault.CLIENT, False),
    Code.PATH_NOT_ALLOWED: Rule(404, Fault.CLIENT, False),
    Code.MODEL_NOT_FOUND: Rule(404, Fault.CLIENT, False),
    Code.METHOD_NOT_ALLOWED: Rule(405, Fault.CLIENT, False),
    Code.REQUEST_TIMEOUT: Rule(408, Fault.CLIENT, False),
    Code.BODY_TOO_LARGE: Rule(413, Fault.CLIENT, False),
    Code.TARGET_TOO_LONG: Rule(414, Fault.CLIENT, False),
    Code.EXPECTATION_FAILED: Rule(417, Fault.CLIENT, False),
    Code.HEAD_TOO_LARGE: Rule(431, Fault.CLIENT, False),
    Code.TRANSFER_CODING_UNSUPPORTED: Rule(501, Fault.CLIENT, False),
    Code.HTTP_VERSION_UNSUPPORTED: Rule(505, Fault.CLIENT, False),
    Code.LOOP_DETECTED: Rule(508, Fault.CLIENT, False),
    Code.OVERLOADED: Rule(503, Fault.PROXY, True),
    Code.SHUTTING_DOWN: Rule(503, Fault.PROXY, True),
    Code.NO_UPSTREAM: Rule(503, Fault.UPSTREAM, True),
    Code.CONNECT_FAILED: Rule(503, Fault.UPSTREAM, True),
    Code.TLS_FAILED: Rule(502, Fault.UPSTREAM, False),
    Code.CONNECT_TIMEOUT: Rule(504, Fault.UPSTREAM, True),
    Code.SEND_TIMEOUT: Rule(504, Fault.UPSTREAM, False),
    Code.FIRST_BYTE_TIMEOUT: Rule(504, Fault.UPSTREAM, False),
    Code.FIRST_EVENT_TIMEOUT: Rule(504, Fault.UPSTREAM, False),
    Code.IDLE_TIMEOUT: Rule(504, Fault.UPSTREAM, False),
    Code.TOTAL_TIMEOUT: Rule(504, Fault.UPSTREAM, False),
    Code.BAD_RESPONSE: Rule(502, Fault.UPSTREAM, False),
    Code.UPSTREAM_CLOSED: Rule(502, Fault.UPSTREAM, False),
    Code.UPSTREAM_VANISHED: Rule(504, Fault.UPSTREAM, False),
    Code.INTERNAL: Rule(500, Fault.PROXY, False),
}


class ProxyError(Exception):
    """Something ended or refused one request.

    :param code: which error, hence its status, fault and retryability.
    :param message: what was wrong and what to do about it, for the client to read. Input is quoted with
        ``repr`` or not at all; secrets never.
    :param param: the field of the request that was wrong, where one was.
    :param retry_after: seconds after which another attempt makes sense, where that is known.
    :param detail: more for the operator's log, such as an upstream's address, that is no client's business.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.detail = detail

    @property
    def status(self) -> int:
        """The status for the client."""
        return RULES[self.code].status

    @property
    def fault(self) -> Fault:
        """Whose doing it is."""
        return RULES[self.code].fault

    @property
    def retryable(self) -> bool:
        """Whether another attempt might succeed."""
        return RULES[self.code].retryable
