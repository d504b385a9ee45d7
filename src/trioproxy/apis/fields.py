"""What the body of a request decides, in the names of each API.

Lives here: which fields decide something, and how each is read: on its own and permissively, since the model server is
the judge of a request and the proxy must not refuse what it would take.
Does not live here: which requests are read (``operations``), finding the fields (``json_scan``), bodies that come
encoded (``coding``), changing a body (``edits``), or any policy.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import msgspec

from trioproxy.apis.edits import Edit, inclusion_of_usage
from trioproxy.apis.json_scan import DEPTH_LIMIT, ScanResult, ScanState, TopLevelScanner
from trioproxy.apis.operations import Form
from trioproxy.apis.usage import SMALL_BODY
from trioproxy.errors import Code, ProxyError

STRING_LIMIT: Final = 4096
"""Bytes of a model's or a user's name as it stands in the body. A longer one is not read."""
_VALUE_LIMIT: Final = 65536
"""Bytes of an object of which a member is read, such as ``sampling_params``; a JSON schema may be in it."""

_LARGEST: Final = 2**63 - 1
_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_JSON_TYPES: Final = frozenset({b"application/json", b"application/x-www-form-urlencoded"})
"""``curl -d`` sends its JSON as the second, and some servers never look at the type."""

_Scalar: TypeAlias = bool | int | float | str | None

_NULL: Final = msgspec.Raw(b"null")


class _Body(msgspec.Struct, gc=False):
    """The fields that decide something, as they are; None where absent, or not a scalar that can be read."""

    model: _Scalar = None
    stream: _Scalar = None
    max_completion_tokens: _Scalar = None
    max_tokens: _Scalar = None
    max_output_tokens: _Scalar = None
    n_predict: _Scalar = None
    user: _Scalar = None
    previous_response_id: _Scalar = None
    input_file_id: _Scalar = None
    metadata: msgspec.Raw = _NULL
    sampling_params: msgspec.Raw = _NULL


class _Metadata(msgspec.Struct, gc=False):
    user_id: _Scalar = None


class _SamplingParams(msgspec.Struct, gc=False):
    max_new_tokens: _Scalar = None
    max_tokens: _Scalar = None


_BODY: Final = msgspec.json.Decoder(_Body)
_SCALAR: Final[msgspec.json.Decoder[_Scalar]] = msgspec.json.Decoder(_Scalar)
_METADATA: Final = msgspec.json.Decoder(_Metadata)
_SAMPLING_PARAMS: Final = msgspec.json.Decoder(_SamplingParams)
_OBJECTS: Final = frozenset({"metadata", "sampling_params"})


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
    """Under the first name of its API that can be read: ``max_completion_tokens``, which replaced ``max_tokens`` in
    chat; ``max_output_tokens`` of responses; ``sampling_params.max_new_tokens``; ``n_predict``."""
    user: str | None
    """``user``, or ``metadata.user_id`` of messages."""
    state: BodyState
    refers_to: str | None = None
    """The id of something that only the endpoint has that made it: ``previous_response_id`` of a response,
    ``input_file_id`` of a batch."""


@final
@dataclass(frozen=True, slots=True)
class _Names:
    """The fields that the bodies of one API have."""

    wanted: frozenset[bytes]
    bounds: tuple[str, ...]
    """Those that may limit the output, the first that can be read wins."""
    keys: Callable[[bytes], list[bytes]]
    """Finds each of the names where it may be a key, at any depth; as a value, as in ``"role": "user"``, it is not."""
    scalars_only: bool
    refers: str | None


def _names(*names: str, bounds: tuple[str, ...] = (), refers: str | None = None) -> _Names:
    every = {"model", "stream", *names, *bounds, *([refers] if refers else [])}
    wanted = frozenset(name.encode() for name in every)
    keys = re.compile(rb'"(?:' + rb"|".join(sorted(wanted)) + rb')"(?=[ \t\n\r]*+:)').findall
    return _Names(wanted, bounds, keys, every.isdisjoint(_OBJECTS), refers)


_NAMES: Final[dict[Form, _Names]] = {
    Form.CHAT: _names("user", bounds=("max_completion_tokens", "max_tokens")),
    Form.RESPONSES: _names("user", bounds=("max_output_tokens",), refers="previous_response_id"),
    Form.PLAIN: _names("user"),
    Form.BATCH: _names("user", refers="input_file_id"),
    Form.MESSAGES: _names("metadata", bounds=("max_tokens",)),
    Form.GENERATE: _names("user", "sampling_params", bounds=("max_tokens",)),
    Form.LLAMA: _names("user", bounds=("n_predict", "max_tokens")),
}
_READ: Final = BodyState.READ  # an enum's members are looked up anew each time
UNKNOWN_FIELDS: Final = RequestFields(None, False, None, None, BodyState.UNKNOWN)
UNREADABLE_FIELDS: Final = RequestFields(None, False, None, None, BodyState.UNREADABLE)
_STREAM_OPTIONS: Final = frozenset({b"stream_options"})


@final
class FieldReader:
    """Reads the fields of one request while its body arrives.

    :param form: how they are named.
    :param includes_usage: whether to find out what would make a stream report its usage that was not asked to.
    """

    __slots__ = ("_first", "_includes_usage", "_names", "_scanner", "edit")

    def __init__(self, form: Form, *, includes_usage: bool = False) -> None:
        self._names = _NAMES[form]
        self._includes_usage = includes_usage
        self._first: bytes | None = None
        """A copy of a small first piece, until it is known whether it is all."""
        self._scanner: TopLevelScanner | None = None
        self.edit: Edit | None = None
        """Once finished: what would make the stream that is asked for report its usage; None if it does already, if the
        client spoke of it, or if nobody wants to know."""

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
            text = self._first or b""
            body = _decode_small(text, self._names)
            if body is not None and not (self._includes_usage and b"stream_options" in text):
                fields = _read(body, self._names)
                if self._includes_usage and fields.stream:
                    self.edit = inclusion_of_usage(len(text) - len(text.lstrip()), None)
                return fields
            scanner = self._scan_first()
        scan = scanner.finish()
        if scan.state is ScanState.UNREADABLE:
            return UNREADABLE_FIELDS
        body = _Body()
        for name, values in scan.values.items():
            if name == "stream_options":
                continue
            if len(values) > 1:
                raise ProxyError(
                    Code.DUPLICATE_FIELD,
                    f"the body has the field {name!r} more than once; send it once",
                    param=name,
                )
            if name in _OBJECTS:
                setattr(body, name, msgspec.Raw(values[0]))
            elif len(values[0]) <= STRING_LIMIT + 2:
                setattr(body, name, _scalar(values[0]))
        fields = _read(body, self._names)
        if self._includes_usage and fields.stream:
            self.edit = _inclusion_in(scan)
        return fields

    def _scan_first(self) -> TopLevelScanner:
        names = self._names
        if self._includes_usage:
            scanner = TopLevelScanner(names.wanted | _STREAM_OPTIONS, value_limit=_VALUE_LIMIT)
        elif names.scalars_only:
            scanner = TopLevelScanner(names.wanted, value_limit=STRING_LIMIT + 2, scalars_only=True)
        else:
            scanner = TopLevelScanner(names.wanted, value_limit=_VALUE_LIMIT)
        if self._first:
            scanner.feed(self._first)
        self._first = None
        return scanner


def _inclusion_in(scan: ScanResult) -> Edit | None:
    options = scan.values.get("stream_options", [])
    if not options:
        return inclusion_of_usage(scan.opening, None)
    return inclusion_of_usage(scan.offsets["stream_options"][0], options[0]) if len(options) == 1 else None


def _decode_small(body: bytes, names: _Names) -> _Body | None:
    """The fields of a small body; None where the scanner has to tell, so that the outcome is always the scanner's.

    That is so if the decoder refuses the body (it is stricter), if it may be too deep, and if a key may be repeated.
    """
    if body.count(b"{") + body.count(b"[") > DEPTH_LIMIT or (0x5C in body and body.find(b"\\u00") >= 0):
        return None
    keys = names.keys(body)
    if len(keys) > len(set(keys)):
        return None
    try:
        fields = _BODY.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    for name in (fields.model, fields.user, fields.previous_response_id, fields.input_file_id):
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


def _read(body: _Body, names: _Names) -> RequestFields:
    most: int | None = None
    user = body.user
    if not names.scalars_only:
        if names is _MESSAGES:
            user = _user_of(body.metadata)
        else:
            most = _most_of(body.sampling_params)
    for name in names.bounds:
        if most is not None:
            break
        bound: _Scalar = getattr(body, name)
        if bound is not None:
            most = _as_count(bound)
    refers: _Scalar = None if names.refers is None else getattr(body, names.refers)
    return RequestFields(
        body.model if isinstance(body.model, str) else None,
        _as_bool(body.stream),
        most,
        user if isinstance(user, str) else None,
        _READ,
        refers if isinstance(refers, str) else None,
    )


_MESSAGES: Final = _NAMES[Form.MESSAGES]


def _user_of(metadata: msgspec.Raw) -> _Scalar:
    try:
        user = _METADATA.decode(metadata).user_id
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return None if isinstance(user, str) and len(user) > STRING_LIMIT else user


def _most_of(sampling_params: msgspec.Raw) -> int | None:
    """What one set of parameters limits the output to; None for a list of them, one for each prompt."""
    try:
        params = _SAMPLING_PARAMS.decode(sampling_params)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    most = _as_count(params.max_new_tokens)
    return _as_count(params.max_tokens) if most is None else most


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


def is_json(content_type: bytes | None) -> bool:
    """Whether a body of this type is read: as JSON. Without a type it is, as model servers do."""
    if content_type is None or content_type == b"application/json":
        return True
    kind = media_type(content_type)
    return kind in _JSON_TYPES or kind.endswith(b"+json")


def media_type(content_type: bytes) -> bytes:
    """The type without its parameters, in small letters."""
    return content_type.partition(b";")[0].strip().lower()
