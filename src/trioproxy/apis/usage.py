"""What a response says that it cost.

Lives here: ``Usage`` and reading it from the JSON of a usage object, in the names of each OpenAI API.
Does not live here: finding that object in a response (``json_scan``, ``sse``).
"""

from __future__ import annotations

from typing import Annotated, Final, Protocol, TypeAlias, cast, final

import msgspec

from trioproxy.apis.json_scan import TopLevelScanner

USAGE_LIMIT: Final = 16384
"""Bytes of a usage object above which it is not read. Those of today's servers have less than 1,000."""

SMALL_BODY: Final = 8192
"""A body of one piece, up to these bytes, is decoded at once: a fifth of what the scanner takes."""

_LARGEST: Final = 2**63 - 1
_OBJECT: Final = msgspec.json.Decoder(dict[str, object])


_Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)] | None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Tokens = None


class _WellFormed(msgspec.Struct, gc=False):
    """A usage object as servers write it: decoded by type in a third of what looking through a dict takes."""

    prompt_tokens: _Tokens = None
    completion_tokens: _Tokens = None
    total_tokens: _Tokens = None
    prompt_tokens_details: _Details | None = None
    input_tokens: _Tokens = None
    output_tokens: _Tokens = None
    input_tokens_details: _Details | None = None


_NULL: Final = msgspec.Raw(b"null")


class _WellFormedHolder(msgspec.Struct, gc=False):
    usage: _WellFormed | None = None
    response: msgspec.Raw = _NULL


class _Holder(msgspec.Struct, gc=False):
    usage: msgspec.Raw = _NULL
    response: msgspec.Raw = _NULL


_WELL_FORMED: Final = msgspec.json.Decoder(_WellFormed)
_WELL_FORMED_HOLDER: Final = msgspec.json.Decoder(_WellFormedHolder)
_HOLDER: Final = msgspec.json.Decoder(_Holder)
_USAGE: Final = frozenset({b"usage"})


@final
class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens that a response reports; None is what it does not say."""

    prompt_tokens: int | None
    completion_tokens: int | None
    total_tokens: int | None
    cached_tokens: int | None
    """Those of the prompt that were found in the server's cache."""


class UsageReader(Protocol):
    """Follows the body of one response and finds what it says about usage."""

    @property
    def events(self) -> int:
        """Complete events with data so far (SSE; comments are none); of a JSON body 1 from its first byte on."""
        ...

    @property
    def at_boundary(self) -> bool:
        """Whether another event may follow what was fed so far without a blank line in between."""
        ...

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body, as sent by the upstream. Never raises."""
        ...

    def finish(self) -> Usage | None:
        """The last usage that was reported, None if there was none."""
        ...


@final
class JsonUsageReader:
    """Reads the usage of one JSON response of any size, keeping only the usage object."""

    __slots__ = ("_first", "_scanner", "at_boundary", "events")

    def __init__(self) -> None:
        self.events = 0
        self.at_boundary = False
        """Never: nothing may follow a part of a JSON body."""
        self._first: bytes | None = None
        """A copy of a small first piece, until it is known whether it is all: decoding it is quicker."""
        self._scanner: TopLevelScanner | None = None

    def feed(self, data: bytes) -> None:
        if not data:
            return
        self.events = 1
        if self._scanner is None:
            if self._first is None and len(data) <= SMALL_BODY:
                self._first = bytes(data)
                return
            self._scanner = TopLevelScanner(_USAGE, value_limit=USAGE_LIMIT)
            self._scanner.feed(self._first or b"")
            self._first = None
        self._scanner.feed(data)

    def finish(self) -> Usage | None:
        if self._scanner is not None:
            return _last(self._scanner.finish().values.get("usage", []))
        return None if self._first is None else find_usage(self._first)


def find_usage(data: bytes) -> Usage | None:
    """The usage that a JSON object holds: at its top (chat, completions) or in its ``response`` (responses)."""
    try:
        found = _WELL_FORMED_HOLDER.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return _find_permissively(data)
    usage = None if found.usage is None else _read(found.usage)
    if usage is None and found.response is not _NULL:
        return _find_permissively(data)
    return usage


def _find_permissively(data: bytes) -> Usage | None:
    try:
        found = _HOLDER.decode(data)
        usage = parse_usage(found.usage)
        if usage is None and bytes(found.response).startswith(b"{"):
            usage = parse_usage(_HOLDER.decode(found.response).usage)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        # What the decoder refuses, such as NaN in logprobs, the scanner passes over.
        return _scan(data)
    return usage


def _scan(data: bytes) -> Usage | None:
    scanner = TopLevelScanner(_USAGE | {b"response"}, value_limit=len(data))
    scanner.feed(data)
    values = scanner.finish().values
    usage = _last(values.get("usage", []))
    if usage is not None or "response" not in values:
        return usage
    scanner = TopLevelScanner(_USAGE, value_limit=USAGE_LIMIT)
    scanner.feed(values["response"][-1])
    return _last(scanner.finish().values.get("usage", []))


def _last(values: list[bytes]) -> Usage | None:
    """The last of these JSON values that says anything about usage."""
    return next((usage for usage in map(parse_usage, reversed(values)) if usage is not None), None)


def parse_usage(value: bytes | msgspec.Raw) -> Usage | None:
    """Read a usage object: of chat and completions (``prompt_tokens``), or of responses (``input_tokens``).

    A count that cannot be read loses no other. None if nothing can be read, as for ``null`` and ``{}``.
    """
    try:
        return _read(_WELL_FORMED.decode(value))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return _parse_permissively(value)


def _read(usage: _WellFormed) -> Usage | None:
    prompt, completion, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
    if prompt is None:
        prompt = usage.input_tokens
    if completion is None:
        completion = usage.output_tokens
    details = usage.prompt_tokens_details
    cached = None if details is None else details.cached_tokens
    if cached is None and usage.input_tokens_details is not None:
        cached = usage.input_tokens_details.cached_tokens
    if prompt is None and completion is None and total is None and cached is None:
        return None
    return Usage(prompt, completion, total, cached)


def _parse_permissively(value: bytes | msgspec.Raw) -> Usage | None:
    try:
        usage = _OBJECT.decode(value)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    found = Usage(
        prompt_tokens=_count(usage, "prompt_tokens", "input_tokens"),
        completion_tokens=_count(usage, "completion_tokens", "output_tokens"),
        total_tokens=_count(usage, "total_tokens"),
        cached_tokens=_cached(usage),
    )
    return None if found == _NOTHING else found


def _count(usage: dict[str, object], *names: str) -> int | None:
    for name in names:
        match usage.get(name):
            case bool():
                continue
            case int() as count if 0 <= count <= _LARGEST:
                return count
            case float() as count if 0 <= count <= _LARGEST and count.is_integer():
                return int(count)
            case _:
                continue
    return None


def _cached(usage: dict[str, object]) -> int | None:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            count = _count(cast("dict[str, object]", details), "cached_tokens")
            if count is not None:
                return count
    return None


_NOTHING: Final = Usage(None, None, None, None)
