"""The head parser on llhttp, through httptools.

Must not live here: trust. httptools cannot pause or tell how far it read: one call once parsed 2,730 pipelined
requests, and `Upgrade` on a POST turned its body into a second request. So each message gets an object of its own
(0.35 µs), which sees exactly one head; its view of framing, keep-alive and upgrades is never asked for.

How the framing fields go together is for rules.py to judge, the same for every parser: llhttp, left to itself, refuses
a tab after `chunked`, or a 204 that has both fields. Hence the leniencies.
"""

from __future__ import annotations

from typing import Final, final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

from .gate import RawField
from .parsers import ParserRefusal

_USUAL: Final = (b"POST ", b"GET ", b"HEAD ", b"PUT ", b"PATCH ", b"DELETE ", b"OPTIONS ")
_STAND_IN: Final = b"GET"
_CUT: Final = "it ends too early"
_STOPPED: Final = (HttpParserUpgrade, HttpParserError)
"""Before the head is complete these are refusals. After that they speak of what would follow: an upgrade, or the pause
of a 101."""


@final
class LlhttpParser:
    """See HeadParser."""

    __slots__ = ()

    def request(self, head: bytes) -> tuple[bytes, bytes, list[RawField]]:
        """See HeadParser.

        llhttp knows a fixed list of methods, and some of them change what it reads (PRI, SOURCE). Methods are an open
        set (RFC 9110 section 9.1), so one that is not usual is read with another in its place and put back.
        """
        method, read = None, head
        if not head.startswith(_USUAL):
            method = head[: head.find(b" ")]
            read = _STAND_IN + head[len(method) :]
        seen = _Seen()
        parser = HttpRequestParser(seen)
        parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_transfer_encoding=True)
        reason = _CUT
        try:
            parser.feed_data(read)
        except _STOPPED as stopped:
            reason = str(stopped)
        if not seen.complete:
            raise ParserRefusal(reason)
        return method or parser.get_method(), seen.target, seen.fields

    def response(self, head: bytes) -> tuple[int, list[RawField]]:
        """See HeadParser."""
        seen = _Seen()
        parser = HttpResponseParser(seen)
        parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_transfer_encoding=True)
        reason = _CUT
        try:
            parser.feed_data(head)
        except _STOPPED as stopped:
            reason = str(stopped)
        if not seen.complete:
            raise ParserRefusal(reason)
        return parser.get_status_code(), seen.fields


@final
class _Seen:
    """What the parser calls back with. It has no `on_body` and no `on_message_complete`: nobody asks."""

    __slots__ = ("complete", "fields", "target")

    def __init__(self) -> None:
        self.complete = False
        self.target = b""
        self.fields: list[RawField] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True
