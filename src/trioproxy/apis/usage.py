"""What a response says that it cost.

Lives here: ``Usage``, reading it from a JSON object in the names of each API, and following a JSON response. Does not
live here: streams (``sse``).

Who says what: OpenAI's chat and completions ``usage.prompt_tokens``, its responses ``usage.input_tokens`` (in events
within ``response``), Anthropic ``usage.input_tokens`` without those that were found in or written to the cache (in the
first event within ``message``), SGLang's generate ``meta_info``, llama.cpp ``timings`` and ``tokens_evaluated``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Protocol, TypeAlias, cast, final

import msgspec

from trioproxy.apis.json_scan import TopLevelScanner

USAGE_LIMIT: Final = 16384
"""Bytes of a usage object above which it is not read. Those of today's servers have less than 1,000."""

SMALL_BODY: Final = 8192
"""A body of one piece, up to these bytes, is decoded at once: a fifth of what the scanner takes."""

_LARGEST: Final = 2**63 - 1
_OBJECT: Final = msgspec.json.Decoder(dict[str, object])
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)] | None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Tokens = None


class Counts(msgspec.Struct, gc=False):
    """A usage object as servers write it: decoded by type in a third of what looking through a dict takes."""

    prompt_tokens: Tokens = None
    completion_tokens: Tokens = None
    total_tokens: Tokens = None
    prompt_tokens_details: _Details | None = None
    input_tokens: Tokens = None
    output_tokens: Tokens = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: Tokens = None
    cache_creation_input_tokens: Tokens = None
    cached_tokens: Tokens = None


class _Timings(msgspec.Struct, gc=False):
    prompt_n: Tokens = None
    """Tokens of the prompt that were computed: those from the cache are not among them."""
    predicted_n: Tokens = None
    cache_n: Tokens = None


class _Inner(msgspec.Struct, gc=False):
    usage: Counts | None = None


class Report(msgspec.Struct, gc=False):
    """What of a JSON object may tell of usage."""

    usage: Counts | None = None
    response: _Inner | str | None = None
    message: _Inner | str | None = None
    meta_info: Counts | None = None
    timings: _Timings | None = None
    tokens_evaluated: Tokens = None
    tokens_predicted: Tokens = None


_COUNTS: Final = msgspec.json.Decoder(Counts)
_REPORT: Final = msgspec.json.Decoder(Report)
_USAGE: Final = frozenset({b"usage"})
_OF_BODY: Final = frozenset({b"usage", b"meta_info", b"timings", b"tokens_evaluated", b"tokens_predicted"})
_OF_LLAMA: Final = frozenset({"timings", "tokens_evaluated", "tokens_predicted"})
_OF_EVENT: Final = _OF_BODY | {b"response", b"message"}


@final
class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens that a response reports; None is what it does not say."""

    prompt_tokens: int | None
    """All of the prompt, those that were found in the cache included, whatever the API counts."""
    completion_tokens: int | None
    total_tokens: int | None
    cached_tokens: int | None
    """Those of the prompt that were found in the server's cache."""


class UsageReader(Protocol):
    """Follows the body of one response and finds what it says about usage, and when its tokens came."""

    @property
    def events(self) -> int:
        """Complete events with data so far (SSE; comments are none); of a JSON body 1 from its first byte on."""
        ...

    @property
    def token_events(self) -> int:
        """Events so far that carried tokens: text, reasoning, or a part of a tool call. One may carry several tokens;
        0 for a JSON body."""
        ...

    @property
    def fed_tokens(self) -> int:
        """How many of them were in what was fed last."""
        ...

    @property
    def choices(self) -> Mapping[int, int]:
        """Of the token events, how many each choice had, by its index."""
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


_NO_CHOICES: Final[Mapping[int, int]] = {}


@final
class JsonUsageReader:
    """Reads the usage of one JSON response of any size, keeping only the usage object."""

    __slots__ = ("_first", "_scanner", "at_boundary", "choices", "events", "fed_tokens", "token_events")

    def __init__(self) -> None:
        self.events = 0
        self.token_events = 0
        self.fed_tokens = 0
        self.choices = _NO_CHOICES
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
            self._scanner = TopLevelScanner(_OF_BODY, value_limit=USAGE_LIMIT)
            self._scanner.feed(self._first or b"")
            self._first = None
        self._scanner.feed(data)

    def finish(self) -> Usage | None:
        if self._scanner is not None:
            return _of_members(self._scanner.finish().values)
        return None if self._first is None else find_usage(self._first)


def find_usage(data: bytes) -> Usage | None:
    """The usage that a JSON object reports, a whole response or an event of a stream."""
    try:
        found = _REPORT.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return find_permissively(data)
    return reported(found)


def reported(found: Report) -> Usage | None:
    """What was decoded, as usage; None if it says nothing of it."""
    usage = None if found.usage is None else _read(found.usage)
    if usage is not None:
        return usage
    for inner in (found.response, found.message):
        if isinstance(inner, _Inner) and inner.usage is not None:
            return _read(inner.usage)
    if found.meta_info is not None:
        return _read(found.meta_info)
    if found.timings is not None or found.tokens_evaluated is not None or found.tokens_predicted is not None:
        return _of_llama(found.timings, found.tokens_evaluated, found.tokens_predicted)
    return None


def later(before: Usage | None, after: Usage) -> Usage:
    """What is known after both were reported: the last one wins, and loses nothing that only the first one said, since
    Anthropic tells of the prompt at first and of the output at last."""
    if before is None:
        return after
    prompt, completion, cached = after.prompt_tokens, after.completion_tokens, after.cached_tokens
    return Usage(
        before.prompt_tokens if prompt is None else prompt,
        before.completion_tokens if completion is None else completion,
        after.total_tokens,  # that of before does not fit what has come since
        before.cached_tokens if cached is None else cached,
    )


def find_permissively(data: bytes) -> Usage | None:
    """The usage that a JSON object reports in which something is malformed: that costs nothing else."""
    try:
        members = {name: [bytes(value)] for name, value in _MEMBERS.decode(data).items()}
    except (msgspec.MsgspecError, RecursionError, ValueError):
        # What the decoder refuses, such as NaN in logprobs, the scanner passes over.
        members = _scan(data, _OF_EVENT, len(data))
    return _of_members(members)


def _scan(data: bytes, wanted: frozenset[bytes], value_limit: int) -> dict[str, list[bytes]]:
    scanner = TopLevelScanner(wanted, value_limit=value_limit)
    scanner.feed(data)
    return scanner.finish().values


def _of_members(members: Mapping[str, list[bytes]]) -> Usage | None:
    """The usage in the JSON texts of an object's members."""
    usage = _last(members.get("usage", []))
    for name in ("response", "message"):
        if usage is None and name in members:
            usage = _last(_scan(members[name][-1], _USAGE, USAGE_LIMIT).get("usage", []))
    if usage is None:
        usage = _last(members.get("meta_info", []))
    if usage is None and not _OF_LLAMA.isdisjoint(members):
        text = b",".join(b'"%b":%b' % (name.encode(), members[name][-1]) for name in _OF_LLAMA & members.keys())
        try:
            usage = reported(_REPORT.decode(b"{%b}" % text))
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
    return usage


def _last(values: list[bytes]) -> Usage | None:
    """The last of these JSON values that says anything about usage."""
    return next((usage for usage in map(parse_usage, reversed(values)) if usage is not None), None)


def parse_usage(value: bytes | msgspec.Raw) -> Usage | None:
    """Read a usage object, of any API.

    A count that cannot be read loses no other. None if nothing can be read, as for ``null`` and ``{}``.
    """
    if not bytes(value).lstrip().startswith(b"{"):
        return None
    try:
        return _read(_COUNTS.decode(value))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return _parse_permissively(value)


def _read(counts: Counts) -> Usage | None:
    prompt, completion, total = counts.prompt_tokens, counts.completion_tokens, counts.total_tokens
    cached = counts.cache_read_input_tokens
    if prompt is None:
        prompt = counts.input_tokens
        if prompt is not None:
            prompt += (cached or 0) + (counts.cache_creation_input_tokens or 0)
    if completion is None:
        completion = counts.output_tokens
    if cached is None:
        for details in (counts.prompt_tokens_details, counts.input_tokens_details):
            if cached is None and details is not None:
                cached = details.cached_tokens
        if cached is None:
            cached = counts.cached_tokens
    if prompt is None and completion is None and total is None and cached is None:
        return None
    return Usage(prompt, completion, total, cached)


def _of_llama(timings: _Timings | None, prompt: int | None, completion: int | None) -> Usage | None:
    cached = None
    if timings is not None:
        cached = timings.cache_n
        if timings.prompt_n is not None:
            prompt = timings.prompt_n + (cached or 0)
        if completion is None:
            completion = timings.predicted_n
    if prompt is None and completion is None:
        return None
    return Usage(prompt, completion, None, cached)


def _parse_permissively(value: bytes | msgspec.Raw) -> Usage | None:
    """The same, each count on its own."""
    try:
        usage = _OBJECT.decode(value)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    counts = Counts()
    for name in _PLAIN_COUNTS:
        setattr(counts, name, _count(usage.get(name)))
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            setattr(counts, name, _Details(_count(cast("dict[str, object]", details).get("cached_tokens"))))
    return _read(counts)


def _count(value: object) -> int | None:
    match value:
        case bool():
            return None
        case int() if 0 <= value <= _LARGEST:
            return value
        case float() if 0 <= value <= _LARGEST and value.is_integer():
            return int(value)
        case _:
            return None


_PLAIN_COUNTS: Final = tuple(name for name in Counts.__struct_fields__ if not name.endswith("_details"))
