"""An error of the proxy's own as the client reads it.

Lives here: the JSON of an error in the form of the API that was asked for, and what tells the client's library whether
to try again. Does not live here: which error it is.

Both official SDKs repeat a request, twice by default, after 408, 409, 429 and every status from 500 on, unless the
response says ``x-should-retry: false`` (openai-python and anthropic-sdk-python, ``_base_client.py``). A model server
that was just too slow for its deadline would get each prompt three times.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..errors import ProxyError
from .operations import Api

_OPENAI: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_SOON: Final = 1
"""Seconds after which to come again, where nothing better is known."""
_BUSY: Final = frozenset({429, 503})
_REPEATED: Final = frozenset({408, 409, 429})
"""Statuses below 500 that the SDKs repeat."""


class _OpenAiError(msgspec.Struct):
    message: str
    type: str
    code: str
    param: str | None
    request_id: str


class _OpenAi(msgspec.Struct):
    error: _OpenAiError


class _AnthropicError(msgspec.Struct):
    type: str
    message: str


class _Anthropic(msgspec.Struct):
    error: _AnthropicError
    request_id: str
    type: str = "error"


def refusal(error: ProxyError, request_id: str, api: Api) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The fields and the body of the response that tells of an error."""
    status = error.status
    fields = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    if api is Api.ANTHROPIC:
        fields.append((b"request-id", request_id.encode()))
    if error.retry_after is not None or (error.retryable and status in _BUSY):
        fields.append((b"retry-after", b"%d" % (error.retry_after or _SOON)))
    elif not error.retryable and (status >= 500 or status in _REPEATED):
        fields.append((b"x-should-retry", b"false"))
    if status == 405:
        fields.append((b"allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"))
    return fields, error_body(error, request_id, api)


def error_body(error: ProxyError, request_id: str, api: Api) -> bytes:
    """The JSON that tells of an error."""
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    if api is Api.ANTHROPIC:
        kind = _ANTHROPIC.get(error.status, usual)
        return msgspec.json.encode(_Anthropic(_AnthropicError(kind, error.message), request_id))
    kind = _OPENAI.get(error.status, usual)
    return msgspec.json.encode(_OpenAi(_OpenAiError(error.message, kind, error.code.value, error.param, request_id)))
