"""The strict gate: what the raw bytes of a head must look like before any parser sees them.

Lives here: the limits, the search for the end of a head that stops at the first byte that cannot be right, and the
patterns that a whole head must match (RFC 9112 sections 2 to 5, without what they let a recipient tolerate).
Must not live here: what the fields mean (rules.py), and reading them into objects (heads.py).

One compiled pattern with possessive repeats matches a whole head: no backtracking, 1.0 µs for 12 fields. Only when it
fails does Python look at the lines one by one, to say exactly what was wrong.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final, final

from trioproxy.errors import Code, Fault, ProxyError

RawField = tuple[bytes, bytes]
"""Name and value of a field as they came, the value perhaps with whitespace around it."""

OWS: Final = b" \t"
"""Optional whitespace (RFC 9110 section 5.6.3): the only bytes that are trimmed from values."""

TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
TEXT: Final = rb"[\t\x20-\x7e\x80-\xff]"
_TARGET: Final = rb"[!-\"$-~]"  # visible ASCII except `#`: a fragment is never sent (RFC 9110 section 4.2.5)
_FIELDS: Final = rb"(?:" + TOKEN + rb"++:" + TEXT + rb"*+\r\n)*+\r\n"

_request = re.compile(rb"(" + TOKEN + rb"++) (" + _TARGET + rb"++) HTTP/([0-9]\.[0-9])\r\n" + _FIELDS).fullmatch
_response = re.compile(rb"HTTP/([0-9]\.[0-9]) ([0-9]{3})(?: (" + TEXT + rb"*+))?+\r\n" + _FIELDS).fullmatch
_fields = re.compile(_FIELDS).fullmatch
_token = re.compile(TOKEN + rb"++").fullmatch
_version = re.compile(rb"HTTP/[0-9]\.[0-9]").fullmatch
# Whole lines, as far as they are right: stops before the empty line, the end of the data, or the first wrong byte.
_lines = re.compile(rb"(?:(?<=" + TEXT + rb")\r\n)?+(?:" + TEXT + rb"++(?:\r\n)?+)*+").match


@final
@dataclass(frozen=True, slots=True)
class HeadLimits:
    """How large a head, or the trailers of a chunked body, may be. Exact: at the limit passes, one over fails."""

    size: int = 65536
    """Bytes from the first of the start line through the empty line."""
    fields: int = 100
    """Field lines."""
    target: int = 8192
    """Bytes of the request target."""


def refusal(fault: Fault, message: str, code: Code = Code.BAD_REQUEST) -> ProxyError:
    """The error for bytes that are wrong: `code` when a client sent them, BAD_RESPONSE when an upstream did."""
    if fault is Fault.UPSTREAM:
        return ProxyError(Code.BAD_RESPONSE, f"the upstream's response is malformed: {message}")
    return ProxyError(code, message)


def quote(data: bytes, limit: int = 64) -> str:
    """`data` for a message: escaped, bounded, and without a query, where credentials are sometimes put."""
    path, question_mark, query = data.partition(b"?")
    shown = path + question_mark
    if len(shown) > limit:
        return f"{shown[:limit]!r}… ({len(data)} bytes)"
    return f"{shown!r}…" if query else repr(shown)


@final
class Scan(enum.Enum):
    """What stands where a scan stopped."""

    MORE = "more"  # nothing yet
    END = "end"  # the empty line; the position is after it
    WRONG = "wrong"  # a bare CR, a bare LF or a control character; the position is before it


def scan(data: bytes | bytearray, start: int, stop: int) -> tuple[int, Scan]:
    """Look for the empty line that ends a block of lines, from `start` (where the last scan stopped) to `stop`.

    A wrong byte is found the moment it is there: whoever ends a head with bare LFs hears of it at once, not by a
    timeout. A CR at the end of the data is not wrong yet.
    """
    position = _lines(data, start, stop).end()  # type: ignore[union-attr]  # matches the empty string at least
    ahead = data[position : position + 2]
    if ahead == b"\r\n" and data[max(position - 2, 0) : position] == b"\r\n":
        return position + 2, Scan.END
    if position >= stop or ahead == b"\r":
        return position, Scan.MORE
    return position, Scan.WRONG


def wrong_byte(data: bytes | bytearray, position: int) -> str:
    """Why the byte at which a scan stopped is wrong."""
    byte = data[position]
    if byte == 0x0A:
        return "a line ended with a bare LF, lines end with CRLF"
    if byte == 0x0D:
        if data[position : position + 2] == b"\r\n":
            return "an empty line came before the start line"
        return "a CR was not followed by LF"
    return f"a control character (0x{byte:02x}) is not allowed in a head"


def check_request(head: bytes, limits: HeadLimits) -> tuple[bytes, bytes, bool, int]:
    """Method, target, whether it is HTTP/1.1, and the number of fields of a well-formed head.

    Raises BAD_REQUEST, HTTP_VERSION_UNSUPPORTED, METHOD_NOT_ALLOWED (CONNECT), TARGET_TOO_LONG or HEAD_TOO_LARGE.
    """
    match = _request(head)
    if match is None:
        raise ProxyError(Code.BAD_REQUEST, _why_request(head))
    method, target, version = match.groups()
    if version not in _VERSIONS:
        raise ProxyError(Code.HTTP_VERSION_UNSUPPORTED, f"only HTTP/1.0 and HTTP/1.1 are served, got {quote(version)}")
    if len(target) > limits.target:
        raise target_too_long(limits)
    if method == b"CONNECT":
        raise ProxyError(Code.METHOD_NOT_ALLOWED, "CONNECT is not served: this is no forward proxy")
    return method, target, version == b"1.1", _count(head, limits, Fault.CLIENT)


def check_response(head: bytes, limits: HeadLimits) -> tuple[int, bytes, bool, int]:
    """Status, reason phrase, whether it is HTTP/1.1, and the number of fields of a well-formed head.

    The reason's space may be missing (`HTTP/1.1 200`), as RFC 9112 section 4 lets it be in practice. Raises
    BAD_RESPONSE.
    """
    match = _response(head)
    if match is None:
        raise refusal(Fault.UPSTREAM, _why_response(head))
    version, digits, reason = match.groups()
    if version not in _VERSIONS:
        raise refusal(Fault.UPSTREAM, f"only HTTP/1.0 and HTTP/1.1 are spoken, got {quote(version)}")
    status = int(digits)
    if not 100 <= status <= 599:
        raise refusal(Fault.UPSTREAM, f"the status must be from 100 to 599, got {status}")
    return status, (reason or b"").strip(OWS), version == b"1.1", _count(head, limits, Fault.UPSTREAM)


def check_fields(block: bytes, limits: HeadLimits, fault: Fault) -> list[RawField]:
    """The fields of a block without a start line: trailers, through the empty line that ends them."""
    if _fields(block) is None:
        raise refusal(fault, _why_field(block.split(b"\r\n")[:-2], "trailer"))
    _count(b"\r\n" + block, limits, fault)
    return raw_fields(b"\r\n" + block)


def raw_fields(head: bytes) -> list[RawField]:
    """The fields of a head that passed the gate, by the gate's own reading: to explain what a parser refused."""
    return [(name, value) for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:-2])]


def target_too_long(limits: HeadLimits) -> ProxyError:
    """The refusal of a request target over its limit."""
    return ProxyError(Code.TARGET_TOO_LONG, f"the request target must be at most {limits.target} bytes long")


_VERSIONS: Final = (b"1.1", b"1.0")


def _count(head: bytes, limits: HeadLimits, fault: Fault) -> int:
    count = head.count(b"\n") - 2  # past the gate each LF ends a line
    if count > limits.fields:
        raise refusal(fault, f"at most {limits.fields} fields are allowed, got {count}", Code.HEAD_TOO_LARGE)
    return count


def _why_request(head: bytes) -> str:
    lines = head.split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or not _version(parts[2]):
        return f'the request line must be "METHOD target HTTP/1.1" with single spaces, got {quote(lines[0])}'
    if not _token(parts[0]):
        return f"the method must be a token, got {quote(parts[0])}"
    if b"#" in parts[1]:
        return "the request target must not have a fragment (#)"
    if not re.fullmatch(_TARGET + rb"++", parts[1]):
        return f"the request target must be visible ASCII, everything else percent-encoded, got {quote(parts[1])}"
    return _why_field(lines[1:-2], "header")


def _why_response(head: bytes) -> str:
    lines = head.split(b"\r\n")
    if not re.fullmatch(rb"HTTP/[0-9]\.[0-9] [0-9]{3}(?: " + TEXT + rb"*+)?+", lines[0]):
        return f'the status line must be "HTTP/1.1 200 reason", got {quote(lines[0])}'
    return _why_field(lines[1:-2], "header")


def _why_field(lines: list[bytes], kind: str) -> str:
    """What is wrong with the first wrong field line. Values are not quoted: they may be credentials."""
    for number, line in enumerate(lines, 1):
        where = f"{kind} line {number}"
        if line[:1] in (b" ", b"\t"):
            return f"{where} begins with whitespace: folded lines are obsolete and refused"
        name, colon, value = line.partition(b":")
        if not colon:
            return f"{where} has no colon"
        if not name:
            return f"{where} has an empty name"
        if name.rstrip(OWS) != name:
            return f"{where} has whitespace between the name {quote(name.rstrip(OWS))} and the colon"
        if not _token(name):
            return f"{where} has a name that is not a token: {quote(name)}"
        if wrong := re.search(rb"[^\t\x20-\x7e\x80-\xff]", value):
            return f"{where} ({quote(name)}): {wrong_byte(value, wrong.start())}"
    return "it must end with an empty line, and only there"
