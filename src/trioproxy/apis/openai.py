"""What the body of an OpenAI request decides, and which reader follows a response.

Lives here: which fields decide something, and how each is read: on its own and permissively, since the model server is
the judge of a request and the proxy must not refuse what it would take.
Does not live here: which requests are read (``operations``), finding the fields (``json_scan``), SSE (``sse``), usage
(``usage``), or any policy.
"""

from __future__ import annotations

import enum
import re
from typing import Final, TypeAlias, final

import msgspec

from trioproxy.apis.json_scan import DEPTH_LIMIT, ScanState, TopLevelScanner
from trioproxy.apis.sse import SseUsageReader
from trioproxy.apis.usage import SMALL_BODY, JsonUsageReader, Usage, UsageReader
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

_LARGEST: Final = 2**63 - 1
_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_JSON_TYPES: Final = frozenset({b"application/json", b"application/x-www-form-urlencoded"})
"""``curl -d`` sends its JSON as the second, and some servers never look at the type."""

_Scalar: TypeAlias = bool | int | float | str | None


_USAGE_READERS: Final[dict[bytes, type[JsonUsageReader | SseUsageReader]]] = {
    b"application/json": JsonUsageReader,
    b"text/event-stream": SseUsageReader,
}


class _Body(msgspec.Struct, gc=False):
    """The fields that decide something, as they are; None where absent, or not a scalar that can be read."""

    model: _Scalar = None
    stream: _Scalar = None
    max_completion_tokens: _Scalar = None
    max_tokens: _Scalar = None
    max_output_tokens: _Scalar = None
    user: _Scalar = None


_BODY: Final = msgspec.json.Decoder(_Body)
_SCALAR: Final[msgspec.json.Decoder[_Scalar]] = msgspec.json.Decoder(_Scalar)
_WANTED: Final = frozenset(name.encode() for name in _Body.__struct_fields__)
_keys = re.compile(rb'"(?:' + rb"|".join(sorted(_WANTED)) + rb')"(?=[ \t\n\r]*+:)').findall
"""Each of these names where it may be a key, at any depth; as a value, as in ``"role": "user"``, it is not."""


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
class RequestFields(msgspec.Struct, frozen=True, gc=False):
    """What a request asks for, as far as something depends on it. It keeps no byte of the body.

    A struct, because making a frozen dataclass costs 1 µs more.
    """

    model: str | None
    stream: bool
    max_output_tokens: int | None
    """``max_completion_tokens``, else ``max_tokens``, else ``max_output_tokens``: the first that can be read. The
    first replaced the second in the chat API, the third is the name in the responses API."""
    user: str | None
    state: BodyState


_READ: Final = BodyState.READ  # an enum's members are looked up anew each time
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
            self._scanner = self._scan_first()
        self._scanner.feed(data)

    def finish(self) -> RequestFields:
        """What the body asks for, once all of it has been fed.

        :raises ProxyError: ``DUPLICATE_FIELD`` if a field that decides something occurs twice at the top level,
            whatever the values: parsers take the last, a policy might have taken the first (RFC 8259 section 4).
        """
        scanner = self._scanner
        if scanner is None:
            body = _decode_small(self._first or b"")
            if body is not None:
                return _read(body)
            scanner = self._scan_first()
        scan = scanner.finish()
        if scan.state is ScanState.UNREADABLE:
            return _UNREADABLE_FIELDS
        for name, values in scan.values.items():
            if len(values) > 1:
                raise ProxyError(
                    Code.DUPLICATE_FIELD,
                    f"the body has the field {name!r} more than once; send it once",
                    param=name,
                )
        return _read(_Body(**{name: _scalar(values[0]) for name, values in scan.values.items()}))

    def _scan_first(self) -> TopLevelScanner:
        scanner = TopLevelScanner(_WANTED, value_limit=STRING_LIMIT + 2, scalars_only=True)
        if self._first:
            scanner.feed(self._first)
        self._first = None
        return scanner


def _decode_small(body: bytes) -> _Body | None:
    """The fields of a small body; None where the scanner has to tell, so that the outcome is always the scanner's.

    That is so if the decoder refuses the body (it is stricter), if it may be too deep, and if a key may be repeated.
    """
    if body.count(b"{") + body.count(b"[") > DEPTH_LIMIT or (0x5C in body and body.find(b"\\u00") >= 0):
        return None
    keys = _keys(body)
    if len(keys) > len(set(keys)):
        return None
    try:
        fields = _BODY.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    for name in (fields.model, fields.user):
        # A character takes 12 bytes at most, so that this one may be over the limit.
        if isinstance(name, str) and len(name) > STRING_LIMIT // 12:
            return None
    return fields


def _scalar(text: bytes) -> _Scalar:
    """A JSON text as a value of its own; None too for an array, an object, ``TOO_LONG`` and what is no JSON.

    Strings that cannot be written as UTF-8 again, hence with a lone surrogate, are refused by the decoder.
    """
    try:
        return _SCALAR.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return None


def _read(body: _Body) -> RequestFields:
    most: int | None = None
    for bound in (body.max_completion_tokens, body.max_tokens, body.max_output_tokens):
        if bound is not None and (most := _as_count(bound)) is not None:
            break
    model, user = body.model, body.user
    return RequestFields(
        model if isinstance(model, str) else None,
        _as_bool(body.stream),
        most,
        user if isinstance(user, str) else None,
        _READ,
    )


def _as_bool(value: _Scalar) -> bool:
    """What pydantic's lax mode, hence vLLM, takes for true: ``true``, 1, 1.0, "true", "yes", "on", "1", "t", "y".

    A stream is what the model server makes of the request: to take less for true would put the deadlines of a whole
    response on a stream.
    """
    if isinstance(value, str):
        return value.lower() in _TRUE
    return value == 1


def _as_count(value: _Scalar) -> int | None:
    """A whole number from 0 to 2**63 - 1, in the spellings that pydantic's lax mode takes: 10, 10.0, 1e1, "10"."""
    if type(value) is int and 0 <= value <= _LARGEST:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    return int(value) if value == int(value) else None


def field_reader(content_type: bytes | None) -> FieldReader | None:
    """A reader for the body of a request, None if a body of this type has no fields.

    :param content_type: the header's value; without one the body is read, as model servers do.
    """
    if content_type is not None and content_type != b"application/json":
        media_type = _media_type(content_type)
        if media_type not in _JSON_TYPES and not media_type.endswith(b"+json"):
            return None
    return FieldReader()


def usage_reader(content_type: bytes | None, content_encoding: bytes | None) -> UsageReader | None:
    """A reader for a response with these headers, None if its usage cannot be read: encoded, or of another type."""
    if content_type is None:
        return None
    if content_encoding is not None and content_encoding.strip().lower() not in (b"", b"identity"):
        return None
    reader = _USAGE_READERS.get(content_type) or _USAGE_READERS.get(_media_type(content_type))
    return None if reader is None else reader()


def _media_type(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()
