"""An error of the proxy's own as the client reads it.

Lives here: the JSON of an error in the form of the OpenAI API. Does not live here: which error it is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..errors import ProxyError

_TYPES: Final = {
    400: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class _Error(msgspec.Struct):
    message: str
    type: str
    code: str
    param: str | None
    request_id: str


class _Refusal(msgspec.Struct):
    error: _Error


def refusal(error: ProxyError, request_id: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The fields and the body of the response that tells of an error."""
    status = error.status
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    body = msgspec.json.encode(_Refusal(_Error(error.message, kind, error.code.value, error.param, request_id)))
    fields = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    if error.retry_after is not None:
        fields.append((b"retry-after", b"%d" % error.retry_after))
    if status == 405:
        fields.append((b"allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"))
    return fields, body
