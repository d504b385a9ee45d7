"""What a request asks of the mock model server: its body while it is read, and the plan decoded from it.

Lives here: the settings, the per-request overrides in ``metadata``, the body's storage and its decoding.
Does not live here: any I/O, any clock, any HTTP. A refusal is a value, not an exception: exceptions of JSON decoders
and their tracebacks hold the document, and nothing of it may outlive ``Body.close``.
"""

from __future__ import annotations

import base64
import binascii
import json
import mmap
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple, final

import msgspec

BODY_LIMIT: Final = 256 * 2**20
"""Bytes of a request's body; beyond them it is refused with 413."""

FIRST_CAPACITY: Final = 64 * 1024
"""Bytes of storage for a body whose length is not announced; doubled when full."""

NAME_LIMIT: Final = 256
"""Characters of a model's name or an id that a record keeps."""

MARK_START: Final = b"<<mock:"
MARK_END: Final = b">>"
"""Between them, anywhere in the prompt, stands base64url of ``Knobs`` as JSON: the way past proxies that drop fields
that they do not know. Nothing in it is changed by JSON's escapes."""
_MARK_LIMIT: Final = 4096
"""Bytes of a mark that are looked at."""

HeadTime = Literal["early", "late"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MockSettings:
    """How the server behaves unless a request's ``metadata`` says otherwise. Times are seconds."""

    prefill: float = 0.0
    """From the last byte of the request's body to the first token."""
    head: HeadTime = "late"
    """A stream's status line and headers: ``early``, as soon as the body was read (vLLM), or with the first event."""
    interval: float = 0.02
    """From one token to the next."""
    tokens: int = 16
    """Tokens made; ``max_tokens`` and ``max_completion_tokens`` bound them further."""
    ignore_disconnect: bool = False
    """Go on generating for a client that has left, as a server without disconnect detection does."""
    model: str = "mock-model"
    """The name listed by ``/v1/models`` and answered to requests that name none."""


class Refusal(NamedTuple):
    """An error for the client, in the terms of OpenAI's error object."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None


Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


@final
class Knobs(msgspec.Struct, frozen=True, gc=False):
    """The overrides in ``metadata``, or in a mark in the prompt (``MARK_START``), which then is all that counts.

    Values may be strings, as the API requires, or what they mean. Times are seconds, ``"inf"`` for never. Other keys
    are ignored.
    """

    id: str | int | None = None
    prefill: Seconds | None = None
    head: HeadTime | None = None
    interval: Seconds | None = None
    tokens: Count | None = None
    """Counts even above ``max_tokens``."""
    ignore_disconnect: bool | None = None
    token_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**20)] | None = None
    """Bytes of each token's text."""
    tag: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,64}$")] | None = None
    """Stands in the text of every token, ``TAG#NUMBER``: bytes of another's response can be told by it."""
    stall_after: Count | None = None
    """After this many tokens, wait for ``stall``."""
    stall: Seconds | None = None
    """Seconds; for ever if ``stall_after`` comes without it."""
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None
    """Answer with this error, after prefill."""
    cut_after: Count | None = None
    """After this many tokens, break the connection off in the middle of the response."""
    cut: Literal["reset", "close"] | None = None
    """How to break off: by a reset, which is the default, or by a FIN."""


class _StreamOptions(msgspec.Struct, frozen=True, gc=False):
    include_usage: bool | None = None


class _Fields(msgspec.Struct, frozen=True, gc=False):
    """What is decoded of a body; everything else is skipped without being copied."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    metadata: Knobs | None = None


_decoder: Final = msgspec.json.Decoder(_Fields, strict=False)
_knobs_decoder: Final = msgspec.json.Decoder(Knobs, strict=False)


def mark(knobs: Mapping[str, object]) -> bytes:
    """The mark that tells the mock these knobs, to be put into a prompt."""
    return MARK_START + base64.urlsafe_b64encode(msgspec.json.encode(knobs)) + MARK_END


def unmark(encoded: bytes) -> Knobs | Refusal:
    """What stands inside a mark."""
    try:
        return _knobs_decoder.decode(base64.urlsafe_b64decode(encoded))
    except (binascii.Error, ValueError) as error:
        return Refusal(400, f"The mark in the prompt is not one: {error}", "invalid_mark")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to generate and when; small, and without any part of the body."""

    id: str | None
    model: str
    stream: bool
    include_usage: bool
    prompt_tokens: int
    """Four bytes of body make one, since the mock does not tokenize."""
    tokens: int
    finish_reason: Literal["stop", "length"]
    token_bytes: int
    tag: bytes
    """Empty for none."""
    prefill: float
    head: HeadTime
    interval: float
    stall_after: int | None
    stall: float
    ignore_disconnect: bool
    status: int | None
    cut_after: int | None
    cut: Literal["reset", "close"]

    @property
    def made(self) -> int:
        """Tokens that will be made, if nobody stops it."""
        if self.status is not None:
            return 0
        return self.tokens if self.cut_after is None else min(self.tokens, self.cut_after)

    def due(self, index: int) -> float:
        """Seconds from the body's last byte to the token with this index.

        From the start, not from the token before: neither rounding nor a late wake-up adds up.
        """
        return self.prefill + self._paced(index) + self._stalled(index)

    @property
    def end(self) -> float:
        """Seconds from the body's last byte to the end of the response: at once after the last token."""
        return self.prefill + self._paced(self.made - 1) + self._stalled(self.made)

    @property
    def is_cut(self) -> bool:
        """Whether the response breaks off once its tokens are made."""
        return self.cut_after is not None and self.cut_after <= self.tokens

    @property
    def ends_with(self) -> str | None:
        """Why it is over when it has come to its end by itself; None if it was to fail."""
        return None if self.status is not None or self.is_cut else self.finish_reason

    def _paced(self, index: int) -> float:
        return index * self.interval if index > 0 else 0.0  # not the product: 0 times an endless interval is NaN

    def _stalled(self, made: int) -> float:
        return self.stall if self.stall_after is not None and made >= self.stall_after else 0.0


@final
class Body:
    """A request's body until it is decoded, in memory mapped for it alone.

    Unmapping gives the memory back to the system, whatever the allocator's thresholds have become, and
    ``tracemalloc`` never sees it: a test in this process that measures what a proxy holds is not disturbed.

    :param announced: Content-Length, None for a chunked body.
    """

    __slots__ = ("_map", "size")

    def __init__(self, announced: int | None) -> None:
        self.size = 0
        self._map = _anonymous(FIRST_CAPACITY if announced is None else announced)

    def append(self, data: bytes | bytearray) -> None:
        """Add a piece. Its caller has checked the limit."""
        end = self.size + len(data)
        if end > len(self._map):
            larger = _anonymous(max(2 * len(self._map), end))
            with memoryview(self._map) as old:
                larger[: self.size] = old[: self.size]
            self._map.close()
            self._map = larger
        self._map[self.size : end] = data
        self.size = end

    def plan(self, settings: MockSettings) -> Plan | Refusal:
        """What the body asks for, or why it is refused. Nothing in the result refers to the body."""
        with memoryview(self._map) as mapped, mapped[: self.size] as body:
            fields = _decode(body)
        if isinstance(fields, Refusal):
            return fields
        knobs = self._marked()
        if isinstance(knobs, Refusal):
            return knobs
        return _plan(fields, knobs or fields.metadata or Knobs(), self.size, settings)

    def _marked(self) -> Knobs | Refusal | None:
        """The knobs in the prompt's last mark, None without one."""
        start = self._map.rfind(MARK_START, 0, self.size)
        if start < 0:
            return None
        start += len(MARK_START)
        end = self._map.find(MARK_END, start, min(self.size, start + _MARK_LIMIT))
        return unmark(self._map[start:end]) if end >= 0 else None

    def close(self) -> None:
        """Give the memory back to the system. Idempotent."""
        self._map.close()


def _anonymous(capacity: int) -> mmap.mmap:
    capacity = max(capacity, 1)
    if sys.platform == "win32":
        return mmap.mmap(-1, capacity)
    return mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _decode(body: memoryview) -> _Fields | Refusal:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        return _mistyped(error)
    except msgspec.DecodeError as error:
        why = str(error)
    except RecursionError:
        return Refusal(400, "The body is nested too deeply.", "invalid_json")
    # A lone surrogate in a prompt is legal JSON and reaches real servers; only the slower decoder lets it pass.
    try:
        return msgspec.convert(json.loads(str(body, "utf-8")), _Fields, strict=False)
    except msgspec.ValidationError as error:
        return _mistyped(error)
    except (ValueError, RecursionError):
        return Refusal(400, f"The body is not valid JSON: {why}", "invalid_json")


def _mistyped(error: msgspec.ValidationError) -> Refusal:
    message = str(error)
    path = re.search(r" - at `\$\.([^`]+)`$", message)
    return Refusal(400, message, "invalid_value", path[1] if path else None)


def _plan(fields: _Fields, knobs: Knobs, body_bytes: int, settings: MockSettings) -> Plan:
    bound = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
    tokens = settings.tokens if bound is None else min(settings.tokens, bound)
    if knobs.tokens is not None:
        tokens = knobs.tokens
    return Plan(
        id=None if knobs.id is None else printable(str(knobs.id)),
        model=settings.model if fields.model is None else printable(fields.model),
        stream=bool(fields.stream),
        include_usage=fields.stream_options is not None and bool(fields.stream_options.include_usage),
        prompt_tokens=max(body_bytes // 4, 1),
        tokens=tokens,
        finish_reason="stop" if bound is None or tokens < bound else "length",
        token_bytes=5 if knobs.token_bytes is None else knobs.token_bytes,
        tag=b"" if knobs.tag is None else knobs.tag.encode(),
        prefill=settings.prefill if knobs.prefill is None else knobs.prefill,
        head=settings.head if knobs.head is None else knobs.head,
        interval=settings.interval if knobs.interval is None else knobs.interval,
        stall_after=knobs.stall_after,
        stall=float("inf") if knobs.stall is None else knobs.stall,
        ignore_disconnect=settings.ignore_disconnect if knobs.ignore_disconnect is None else knobs.ignore_disconnect,
        status=knobs.status,
        cut_after=knobs.cut_after,
        cut=knobs.cut or "reset",
    )


def printable(name: str) -> str:
    """A name from outside, short enough to keep and free of what JSON cannot carry (lone surrogates)."""
    return name[:NAME_LIMIT].encode("utf-8", "replace").decode()
