"""The head parser on h11: runs wherever Python does, and judges the other one.

Must not live here: any opinion of h11's about framing, keep-alive or whose turn it is. Each message gets a connection
of its own, which sees exactly one head. How the fields go together is for rules.py to judge, the same for every parser,
but h11 takes some of them for its own: it refuses every Transfer-Encoding but `chunked`, merges Content-Lengths, and
wants a Host. So every name is read with a letter in front, which is taken away again, and a Host is put below.
"""

from __future__ import annotations

from typing import Final, final

import h11

from .gate import RawField
from .parsers import ParserRefusal

_MARK: Final = b"x"
_HOST: Final = b"\r\nHost: h\r\n\r\n"
_END: Final = b"\r\n\r\n"
_NO_LIMIT: Final = 1 << 40
"""Bytes; the gate's limit has been kept before."""
_ASKED: Final = h11.Request(method="GET", target="/", headers=[("Host", "h"), ("Upgrade", "any")])
"""The request that responses are read for: with one that asks for no upgrade, h11 takes no 101."""


@final
class H11Parser:
    """See HeadParser."""

    __slots__ = ()

    def request(self, head: bytes) -> tuple[bytes, bytes, list[RawField]]:
        """See HeadParser."""
        connection = h11.Connection(h11.SERVER, _NO_LIMIT)
        event = _read(connection, _marked(head) + _HOST)
        if not isinstance(event, h11.Request):
            raise ParserRefusal("it is no request")
        return event.method, event.target, _fields(event.headers.raw_items())[:-1]

    def response(self, head: bytes) -> tuple[int, list[RawField]]:
        """See HeadParser."""
        connection = h11.Connection(h11.CLIENT, _NO_LIMIT)
        connection.send(_ASKED)
        event = _read(connection, _marked(head) + _END)
        if not isinstance(event, h11.InformationalResponse | h11.Response):
            raise ParserRefusal("it is no response")
        return event.status_code, _fields(event.headers.raw_items())


def _marked(head: bytes) -> bytes:
    """The lines of a head, without its end. Past the gate, every CRLF ends a line and none is folded."""
    return head[:-4].replace(b"\r\n", b"\r\n" + _MARK)


def _fields(marked: list[RawField]) -> list[RawField]:
    return [(name[1:], value) for name, value in marked]


def _read(connection: h11.Connection, head: bytes) -> object:
    try:
        connection.receive_data(head)
        return connection.next_event()
    except h11.RemoteProtocolError as error:
        raise ParserRefusal(str(error)) from None
