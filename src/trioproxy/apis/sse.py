"""Following a stream of server-sent events: how many, where they end, and the usage that they report.

Lives here: the framing of events (WHATWG HTML, section 9.2.6), over any cut of the stream into pieces.
Does not live here: changing a stream, or what the numbers of a usage object mean (``usage``).

A piece that is one whole event without usage, as almost all are, costs a few searches and no more.
"""

from __future__ import annotations

import re
from typing import Final, final

from trioproxy.apis.usage import Usage, find_usage

EVENT_LIMIT: Final = 1 << 20
"""Bytes of one event above which it is counted and skipped, not kept and read."""

_BOM: Final = b"\xef\xbb\xbf"
_DATA_LINE: Final = re.compile(rb"(?:\A|\n)data(?::|\n|\Z)")
_DATA_BEGUN: Final = re.compile(rb"(?:\A|\n)data[:\n]")
_DATA: Final = re.compile(rb"^data: ?+(.*+)$", re.MULTILINE)
_TAIL: Final = len(b"\ndata:")


def _may_report(data: bytes) -> bool:
    """Whether usage may be in it. With ``include_usage`` each chunk but the last says that it is null."""
    count = data.count(b'"usage"')
    return count > 0 and count != data.count(b'"usage":null') + data.count(b'"usage": null')


@final
class SseUsageReader:
    """Reads the usage of one stream, keeping at most the event that has not ended."""

    __slots__ = ("_data_seen", "_held", "_oversize", "_pending", "_skip_newline", "_usage", "at_boundary", "events")

    def __init__(self) -> None:
        self.events = 0
        self.at_boundary = True
        self._held: bytes | None = b""
        """The first bytes of the stream, while they may be part of a byte order mark; None from then on."""
        self._skip_newline = False
        """The last byte was a carriage return: a newline after it belongs to it."""
        self._pending = bytearray()
        """The event that has not ended, its lines ended by newlines."""
        self._oversize = False
        self._data_seen = False
        """Whether the oversize event had data in what was dropped of it."""
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> None:
        if (
            self.at_boundary
            and data.endswith(b"\n\n")
            and data.startswith(b"data:")
            and 0x0D not in data
            and (data.find(b'"usage"') < 0 or not _may_report(data))
        ):
            # Whole events, each with its data first: every blank line ends one.
            ends = data.count(b"\n\n")
            if ends == 1 or data.count(b"\n\ndata:") == ends - 1:
                self._held = None
                self._skip_newline = False
                self.events += ends
                return
        self._follow(data)

    def finish(self) -> Usage | None:
        # A stream may end without the blank line; a browser would drop that event, an account should not.
        if self._pending and not self._oversize:
            before = self.events
            self._take([bytes(self._pending)])
            self.events = before
        return self._usage

    def _follow(self, data: bytes) -> None:
        text = self._after_bom(bytes(data))
        if not text:
            return
        if self._skip_newline:
            text = text.removeprefix(b"\n")
        self._skip_newline = data.endswith(b"\r")
        if 0x0D in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._pending:
            text = self._finish_pending(text)
        # Between events only: white lines are nothing.
        *events, rest = text.lstrip(b"\n").split(b"\n\n")
        self._take([event.lstrip(b"\n") for event in events if event])
        self._extend(rest.lstrip(b"\n"))
        self.at_boundary = not self._pending

    def _after_bom(self, data: bytes) -> bytes:
        if self._held is None:
            return data
        self._held += data
        if self._held != _BOM and _BOM.startswith(self._held):
            self.at_boundary = not self._held
            return b""
        data = self._held.removeprefix(_BOM)
        self._held = None
        self.at_boundary = not data
        return data

    def _finish_pending(self, text: bytes) -> bytes:
        """Add to the event at hand what belongs to it; what is left of the text, where it ends the event."""
        if text.startswith(b"\n") and self._pending.endswith(b"\n"):
            end, rest = 0, text[1:]
        else:
            end = text.find(b"\n\n")
            if end < 0:
                self._extend(text)
                return b""
            rest = text[end + 2 :]
        self._extend(text[:end])
        if self._oversize:
            self.events += self._data_seen or _DATA_LINE.search(self._pending) is not None
        else:
            self._take([bytes(self._pending)])
        self._pending.clear()
        self._oversize = self._data_seen = False
        return rest

    def _extend(self, text: bytes) -> None:
        self._pending += text
        if self._oversize or len(self._pending) > EVENT_LIMIT:
            self._oversize = True
            self._data_seen = self._data_seen or _DATA_BEGUN.search(self._pending) is not None
            # Enough to see the blank line, or a line of data, that the next piece completes; as if in a comment.
            self._pending = bytearray(b":" + self._pending[-_TAIL:])

    def _take(self, events: list[bytes]) -> None:
        """Count these events, and read the last that reports usage: it stands for those before it."""
        with_data = [event for event in events if event.startswith(b"data:") or _DATA_LINE.search(event) is not None]
        self.events += len(with_data)
        for event in reversed(with_data):
            if len(event) <= EVENT_LIMIT and _may_report(event):
                usage = find_usage(b"\n".join(_DATA.findall(event)))
                if usage is not None:
                    self._usage = usage
                    return
