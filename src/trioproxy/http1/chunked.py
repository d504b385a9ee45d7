"""The strict decoder of the chunked coding (RFC 9112 section 7.1), and the rules for trailers.

Must not live here: encoding (serialize.py).

Stricter than the RFC where leniency has been used to smuggle: sizes are 1 to 16 hex digits, line ends are exactly
CRLF, no whitespace around `;` and `=`, quoted strings are closed. Extensions mean nothing to a proxy and are dropped.
"""

from __future__ import annotations

import re
from typing import Final, final

from trioproxy.errors import Code, Fault

from .fields import HOP_BY_HOP
from .framing import Field, cut
from .gate import OWS, TEXT, TOKEN, HeadLimits, Scan, check_fields, quote, refusal, scan, wrong_byte
from .rules import LOOK_ALIKES, look_alike

MAX_LINE: Final = 4096
"""Bytes of a chunk's first line, CRLF included."""
FREE_WIRE: Final = 65536
MAX_WIRE_PER_BYTE: Final = 16
"""After the first 64 KiB on the wire a body that costs more wire bytes per byte of payload than this is refused: such
chunks serve to burn CPU, no sender makes them (1-byte chunks cost 6)."""

_QUOTED: Final = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\' + TEXT + rb')*+"'
_EXTENSION: Final = rb";" + TOKEN + rb"++(?:=(?:" + TOKEN + rb"++|" + _QUOTED + rb"))?+"
# A whole line at the place, and what a line that has not ended yet may look like. A line is decided by the first LF.
_line = re.compile(rb"([0-9A-Fa-f]{1,16})(?:" + _EXTENSION + rb")*+\r\n").match
_begun = re.compile(rb"(?:[0-9A-Fa-f]{1,16}(?:;" + TEXT + rb"*+)?+\r?)?").fullmatch

_NO_TRAILER: Final = HOP_BY_HOP | frozenset({
    # framing and routing (RFC 9110 section 6.5.1)
    b"host", b"forwarded", b"via", b"x-real-ip", b"max-forwards", b"expect",
    # authentication
    b"authorization", b"www-authenticate", b"authentication-info", b"proxy-authentication-info", b"cookie",
    b"set-cookie", b"x-api-key", b"api-key",
    # modifiers of the request, control data of the response
    b"cache-control", b"pragma", b"range", b"if-match", b"if-none-match", b"if-modified-since",
    b"if-unmodified-since", b"if-range", b"age", b"date", b"expires", b"location", b"retry-after", b"vary",
})  # fmt: skip
_NO_TRAILER_PREFIXES: Final = (b"content-", b"x-forwarded-")


@final
class ChunkedDecoder:
    """One chunked body. At most one unfinished line and the trailers are held."""

    __slots__ = ("_body", "_fault", "_held", "_left", "_limits", "_scanned", "_wire", "done", "trailers")

    def __init__(self, fault: Fault, limits: HeadLimits) -> None:
        self.done = False
        self.trailers: list[Field] = []
        self._fault = fault
        self._limits = limits
        self._left = _SIZE
        """Payload bytes of the chunk under way, or, if not positive, what comes next."""
        self._held = bytearray()
        self._scanned = 0
        self._wire = 0
        self._body = 0

    def decode(self, data: bytes) -> tuple[list[bytes], int]:
        """See BodyDecoder. A piece never spans two chunks."""
        pieces: list[bytes] = []
        position, end = 0, len(data)
        while position < end and not self.done:
            left = self._left
            if left > 0:
                piece = data[position : position + left]  # of bytes, a slice of everything is the object itself
                pieces.append(piece)
                position += len(piece)
                self._left = left - len(piece) or _DATA_CR
            elif left == _SIZE:
                position = self._first_line(data, position)
            elif left == _TRAILERS:
                position = self._trailer_part(data, position)
            else:
                position = self._after_data(data, position)
        return pieces, position

    def end_of_file(self) -> None:
        """See BodyDecoder."""
        if not self.done:
            raise cut(self._fault, "the last chunk had come")

    def _first_line(self, data: bytes, position: int) -> int:
        held = self._held
        start = position
        if not held and (match := _line(data, position, position + MAX_LINE)):
            position = match.end()
        else:
            newline = data.find(b"\n", position, position + MAX_LINE - len(held))
            position = newline + 1 if newline >= 0 else min(len(data), position + MAX_LINE - len(held))
            held += data[start:position]
            if newline < 0:
                if len(held) >= MAX_LINE or not _begun(held):
                    raise self._bad_line(bytes(held))
                return position
            line = bytes(held)
            held.clear()
            match = _line(line)
            if match is None:
                raise self._bad_line(line)
        size = int(match[1], 16)
        self._wire += match.end() - match.start() + size + 2
        if self._wire > FREE_WIRE and self._wire > MAX_WIRE_PER_BYTE * (self._body + size):
            raise refusal(self._fault, "the chunks are too small for what their sizes and extensions cost")
        self._body += size
        if size:
            self._left = size
        else:
            self._left = _TRAILERS
            held += b"\r\n"  # the line that was just read: so that no trailers and some end alike, with CRLF CRLF
            self._scanned = 2
        return position

    def _after_data(self, data: bytes, position: int) -> int:
        if self._left == _DATA_CR and data.startswith(b"\r\n", position):
            self._left = _SIZE
            return position + 2
        if data[position] != (0x0D if self._left == _DATA_CR else 0x0A):
            raise refusal(self._fault, "a chunk's data must be as long as its size says and be followed by CRLF")
        self._left = _DATA_LF if self._left == _DATA_CR else _SIZE
        return position + 1

    def _trailer_part(self, data: bytes, position: int) -> int:
        held = self._held
        before = len(held)
        limit = self._limits.size + 2  # the CRLF of the last chunk's line is not theirs
        held += data[position : position + limit - before]
        stop, found = scan(held, self._scanned, len(held))
        if found is Scan.WRONG:
            raise refusal(self._fault, f"in the trailers {wrong_byte(held, stop)}")
        if found is Scan.MORE:
            if len(held) >= limit:
                message = f"the trailers must be at most {self._limits.size} bytes long"
                raise refusal(self._fault, message, Code.HEAD_TOO_LARGE)
            self._scanned = stop
            return position + len(held) - before
        if stop > 4:
            self.trailers = _read_trailers(bytes(held[2:stop]), self._limits, self._fault)
        held.clear()
        self.done = True
        return position + stop - before

    def _bad_line(self, line: bytes) -> Exception:
        rule = "a chunk must begin with 1 to 16 hex digits, extensions if any, and CRLF"
        if len(line) >= MAX_LINE:
            return refusal(self._fault, f"{rule}, all in at most {MAX_LINE} bytes")
        return refusal(self._fault, f"{rule}, got {quote(line, 32)}")


# What comes next, where no payload is due: values of ChunkedDecoder._left.
_SIZE: Final = 0
_DATA_CR: Final = -1
_DATA_LF: Final = -2
_TRAILERS: Final = -3


def _read_trailers(block: bytes, limits: HeadLimits, fault: Fault) -> list[Field]:
    trailers: list[Field] = []
    for name, value in check_fields(block, limits, fault):
        key = name.lower()
        if key in LOOK_ALIKES:
            raise look_alike(key, fault)
        if key not in _NO_TRAILER and not key.startswith(_NO_TRAILER_PREFIXES):
            trailers.append((key, name, value.strip(OWS)))
    return trailers
