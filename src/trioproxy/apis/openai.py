"""What the body of an OpenAI request decides, and which reader follows a response.

Lives here: which paths are known, which fields decide something, and how each is read: on its own and permissively,
since the model server is the judge of a request and the proxy must not refuse what it would take.
Does not live here: finding the fields (``json_scan``), SSE (``sse``), usage (``usage``), or any policy.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, final

import msgspec

from trioproxy.apis.json_scan import DEPTH_LIMIT, ScanState, TopLevelScanner
from trioproxy.apis.sse import SseUsageReader
from trioproxy.apis.usage import JsonUsageReader, Usage, UsageReader
from trioproxy.errors import Code, ProxyError

__all__ = [
    "UNKNOWN_FIELDS",
    "BodyState",
    "FieldReader",
    "RequestFields",
    "Usage",
    "UsageReader",
    "field_reader",
    "usage_reader",
]

STRING_LIMIT: Final = 4096
"""Bytes of a model's or a user's name as it stands in the body. A longer one is not read."""

SMALL_BODY: Final = 8192
"""A body of one piece, up to these bytes, is decoded at once: 3 to 5 µs less than the scanner takes."""

_LARGEST: Final = 2**63 - 1
_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_JSON_TYPES: Final = frozenset({b"application/json", b"application/x-www-form-urlencoded"})
"""``curl -d`` sends its JSON as the second, and some servers never look at the type."""
_PATHS: Final = frozenset({b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings", b"/v1/responses"})

_ABSENT: Final = msgspec.Raw(b"")


class _Body(msgspec.Struct, gc=False):
    """The fields that decide something, undecoded. Where there are several bounds, the first that is readable counts:
    the order is that of the OpenAI API, where ``max_completion_tokens`` replaced ``max_tokens``."""

    model: msgspec.Raw = _ABSENT
    stream: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT
    user: msgspec.Raw = _ABSENT


_BODY: Final = msgspec.json.Decoder(_Body)
_STRING: Final = msgspec.json.Decoder(str)
_SCALAR: Final = msgspec.json.Decoder(bool | int | float | str | None)
_WANTED: Final = frozenset(name.encode() for name in _Body.__struct_fields__)
_QUOTED: Final = tuple(b'"%b"' % name for name in _WANTED)


@final
class BodyState(enum.Enum):
    """What could be learned of a body."""

    READ = "read"
    """A JSON object: a field that is None is absent, or not of a form that can be read."""
    UNREADABLE = "unreadable"
    """Not a JSON object, or one that no parser need take: its fields are None whatever it says."""
    UNKNOWN = "unknown"
    """Nobody looked: there is no reader for this path or type."""


@final
@dataclass(frozen=True, slots=True)
class RequestFields:
    """What a request asks for, as far as something depends on it. It keeps no byte of the body."""

    model: str | None
    stream: bool
    max_output_tokens: int | None
    user: str | None
    state: BodyState


UNKNOWN_FIELDS: Final = RequestFields(None, False, None, None, BodyState.UNKNOWN)
_UNREADABLE_FIELDS: Final = RequestFields(None, False, None, None, BodyState.UNREADABLE)


@final
class FieldReader:
    """Reads the fields of one request while its body arrives."""

    __slots__ = ("_first", "_scanner")

    def __init__(self) -> None:
        self._first: bytes | None = None
        """A copy of a small first piece, until it is known whether it is all."""
        self._scanner: TopLevelScanner | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the body. Never raises; afterwards ``data`` may be freed."""
        if self._scanner is None:
            if self._first is None and len(data) <= SMALL_BODY:
                self._first = bytes(data)
                return
            self._scan_first()
        if self._scanner is not None:
            self._scanner.feed(data)

    def finish(self) -> RequestFields:
        """What the body asks for, once all of it has been fed.

        :raises ProxyError: ``DUPLICATE_FIELD`` if a field that decides something occurs twice at the top level,
            whatever the values: parsers take the last, a policy might have taken the first (RFC 8259 section 4).
        """
        if self._scanner is None:
            body = _decode_small(self._first or b"")
            if body is not None:
                self._first = None
                return _read(body)
            self._scan_first()
        scan = self._scanner.finish()
        if scan.state is ScanState.UNREADABLE:
            return _UNREADABLE_FIELDS
        for name, values in scan.values.items():
            if len(values) > 1:
                raise ProxyError(
                    Code.DUPLICATE_FIELD,
                    f"the body has the field {name!r} more than once; send it once",
                    param=name,
                )
        return _read(_Body(**{name: msgspec.Raw(values[0]) for name, values in scan.values.items()}))

    def _scan_first(self) -> None:
        self._scanner = TopLevelScanner(_WANTED, value_limit=STRING_LIMIT + 2, scalars_only=True)
        if self._first:
            self._scanner.feed(self._first)
        self._first = None


def _decode_small(body: bytes) -> _Body | None:
    """The fields of a small body; None where the scanner has to tell, so that the outcome is always the scanner's.

    That is so if the decoder refuses the body (it is stricter), if it may be too deep, and if a key may be repeated.
    """
    if body.count(b"{") + body.count(b"[") > DEPTH_LIMIT or b"\\u00" in body:
        return None
    for quoted in _QUOTED:
        if body.count(quoted) > 1:
            return None
    try:
        return _BODY.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _read(body: _Body) -> RequestFields:
    bounds = (body.max_completion_tokens, body.max_tokens, body.max_output_tokens)
    return RequestFields(
        model=_as_string(body.model),
        stream=_as_bool(body.stream),
        max_output_tokens=next((bound for bound in map(_as_count, bounds) if bound is not None), None),
        user=_as_string(body.user),
        state=BodyState.READ,
    )


def _as_string(raw: msgspec.Raw) -> str | None:
    """A string of up to ``STRING_LIMIT`` bytes, if it can be written as UTF-8 again: no lone surrogate."""
    value = _scalar(raw)
    return value if isinstance(value, str) else None


def _as_bool(raw: msgspec.Raw) -> bool:
    """What pydantic's lax mode, hence vLLM, takes for true: ``true``, 1, 1.0, "true", "yes", "on", "1", "t", "y".

    A stream is what the model server makes of the request: taking less for true would put the deadlines of a whole
    response on a stream.
    """
    value = _scalar(raw)
    if isinstance(value, str):
        return value.lower() in _TRUE
    return value == 1


def _as_count(raw: msgspec.Raw) -> int | None:
    """A whole number from 0 to 2**63 - 1, in the spellings that pydantic's lax mode takes: 10, 10.0, 1e1, "10"."""
    value = _scalar(raw)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    return int(value) if value == int(value) else None


def _scalar(raw: msgspec.Raw) -> bool | int | float | str | None:
    if raw is _ABSENT:
        return None
    text = bytes(raw)
    if len(text) > STRING_LIMIT + 2:
        return None
    try:
        return _SCALAR.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return None


def field_reader(method: bytes, path: bytes, content_type: bytes | None) -> FieldReader | None:
    """A reader for the body of this request, None if nobody knows what it says.

    :param path: without the query string, as it came.
    :param content_type: the header's value; without one the body is read, as model servers do.
    """
    if method != b"POST" or path not in _PATHS:
        return None
    if content_type is not None:
        media_type = _media_type(content_type)
        if media_type not in _JSON_TYPES and not media_type.endswith(b"+json"):
            return None
    return FieldReader()


def usage_reader(content_type: bytes | None, content_encoding: bytes | None) -> UsageReader | None:
    """A reader for a response with these headers, None if its usage cannot be read: encoded, or of another type."""
    if content_encoding is not None and content_encoding.strip().lower() not in (b"", b"identity"):
        return None
    if content_type is None:
        return None
    match _media_type(content_type):
        case b"text/event-stream":
            return SseUsageReader()
        case b"application/json":
            return JsonUsageReader()
        case _:
            return None


def _media_type(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()
