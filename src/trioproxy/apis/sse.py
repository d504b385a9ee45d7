"""Following a stream of server-sent events: how many, where they end, and what they carry.

Lives here: the framing of events (WHATWG HTML, section 9.2.6), over any cut of the stream into pieces.
Does not live here: changing a stream (``strip``), or what an event says (``events``).

A piece that is whole events with one line of data each, as almost all are, is decoded as it came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, final

from trioproxy.apis.events import TokenCounter, read_event
from trioproxy.apis.usage import Usage, find_permissively, find_usage, later, reported

EVENT_LIMIT: Final = 1 << 20
"""Bytes of one event above which it is counted and skipped, not kept and read."""

_BOM: Final = b"\xef\xbb\xbf"
_DATA_LINE: Final = re.compile(rb"(?:\A|\n)data(?::|\n|\Z)")
_DATA_BEGUN: Final = re.compile(rb"(?:\A|\n)data[:\n]")
_DATA: Final = re.compile(rb"^data: ?+(.*+)$", re.MULTILINE)
_TAIL: Final = len(b"\ndata:")


_STARTS: Final = frozenset(b"dei:r")
"""What a line begins with that is of an event: data, event, id, a comment, retry."""
_SMALLEST: Final = len(b'{"":""}')
"""No event that says anything is smaller."""


def data_of(event: bytes) -> bytes:
    """The data of one event, whichever line ends it has."""
    if 0x0D in event:
        event = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return b"\n".join(_DATA.findall(event))


@final
class SseUsageReader:
    """Reads the usage of one stream and counts its events, keeping at most the event that has not ended."""

    __slots__ = (
        "_data_seen",
        "_held",
        "_oversize",
        "_pending",
        "_skip_newline",
        "_tokens",
        "_usage",
        "at_boundary",
        "events",
    )

    def __init__(self) -> None:
        self.events = 0
        self.at_boundary = True
        self._tokens = TokenCounter()
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

    @property
    def token_events(self) -> int:
        return self._tokens.events

    @property
    def fed_tokens(self) -> int:
        return self._tokens.fed

    @property
    def choices(self) -> Mapping[int, int]:
        return self._tokens.choices

    def feed(self, data: bytes) -> None:
        self._tokens.fed = 0
        if self.at_boundary and data.endswith(b"\n\n") and data[0] in _STARTS and 0x0D not in data:
            self._held = None
            self._skip_newline = False
            if data.count(b"\n\n") == 1:
                self._take(data)
            else:
                for event in data[:-2].split(b"\n\n"):
                    self._take(event)
        else:
            self._follow(data)

    def finish(self) -> Usage | None:
        # A stream may end without the blank line; a browser would drop that event, an account should not.
        if self._pending and not self._oversize:
            self._report(find_usage(data_of(bytes(self._pending))))
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
        for event in events:
            self._take(event)
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
            self._take(bytes(self._pending))
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

    def _take(self, event: bytes) -> None:
        """Count one event, or none if it has no data, and read what it says."""
        if event.startswith(b"data:"):
            data = event[5:]
        else:
            begin = event.find(b"\ndata:")
            if begin < 0:
                if _DATA_LINE.search(event) is not None:  # without a colon, hence empty
                    self.events += 1
                return
            data = event[begin + 6 :]
        self.events += 1
        if not _SMALLEST <= len(data) <= EVENT_LIMIT:
            return
        found = read_event(data)
        if found is None:
            self._take_oddly(event, data)
            return
        self._tokens.take(found)
        if found.usage is not None or found.choices is None or found.timings is not None:
            self._report(reported(found))

    def _take_oddly(self, event: bytes, tried: bytes) -> None:
        """Read an event whose data is several lines, or malformed, or no JSON.

        :param tried: what could not be read.
        """
        data = data_of(event)
        found = None if data == tried.strip() else read_event(data)
        if found is not None:
            self._tokens.take(found)
            self._report(reported(found))
        elif data.lstrip().startswith(b"{"):
            self._tokens.take_malformed(data)
            self._report(find_permissively(data))

    def _report(self, usage: Usage | None) -> None:
        if usage is not None:
            self._usage = later(self._usage, usage)
