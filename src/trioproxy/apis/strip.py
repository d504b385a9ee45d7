"""Taking out of a stream the event that reports usage to a client that did not ask for it.

Lives here: finding that event, over any cut of the stream into pieces. Does not live here: asking for it (``edits``).

It is the one without choices that ``include_usage`` adds at the end. Servers that report usage in an event with choices
are left alone, and so is the ``"usage": null`` in all others that OpenAI adds: to take that out would be to write every
event anew. What came of an event that has not ended waits for the rest, since no client can do anything with it.
"""

from __future__ import annotations

import re
from typing import Final, final

import msgspec

from trioproxy.apis.sse import EVENT_LIMIT, data_of

_boundaries: Final = re.compile(rb"(?>\r\n|\n|\r){2}").finditer
_without_choices: Final = re.compile(rb'"choices"\s*+:\s*+\[\s*+\]').search
_BOUNDARY: Final = 4
"""Bytes of the longest boundary."""
_NULL: Final = msgspec.Raw(b"null")


class _Report(msgspec.Struct, gc=False):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = _NULL


_REPORT: Final = msgspec.json.Decoder(_Report)


@final
class UsageStripper:
    """Passes a stream on without the event that reports its usage."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()
        """The event that has not ended."""

    def take(self, pieces: list[bytes], *, last: bool) -> list[bytes]:
        """The bytes to pass on for these, and for the end of the stream if they are the last."""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        held = self._held
        if held or not data.endswith(b"\n\n"):
            begin = max(0, len(held) - _BOUNDARY)
            held += data
            end = len(held) if last or len(held) > EVENT_LIMIT else _last_boundary(held, begin)
            data = bytes(held[:end])
            del held[:end]
        if _without_choices(data) is not None:
            data = _strip(data)
        return [data] if data else []


def _last_boundary(held: bytearray, begin: int) -> int:
    """Where the last event that has ended ends."""
    end = 0
    for match in _boundaries(held, begin):
        end = match.end()
    return end


def _strip(data: bytes) -> bytes:
    """These events without those that only report usage."""
    kept: list[bytes] = []
    begin = 0
    for end in [*(match.end() for match in _boundaries(data)), len(data)]:
        event = data[begin:end]
        begin = end
        if not _only_reports(event):
            kept.append(event)
    return b"".join(kept)


def _only_reports(event: bytes) -> bool:
    if _without_choices(event) is None:
        return False
    try:
        report = _REPORT.decode(data_of(event))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False
    return report.choices == [] and bytes(report.usage).startswith(b"{")
