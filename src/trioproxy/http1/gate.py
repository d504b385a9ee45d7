"""The strict gate: what the raw bytes of a head must look like before any parser sees them.

Lives here: the limits, the search for the end of a head that stops at the first byte that cannot be right, and the
patterns that a whole head must match (RFC 9112 sections 2 to 5, without what they let a recipient tolerate).
Must not live here: what the fields mean (rules.py), and reading them into objects (heads.py).

One compiled pattern with possessive repeats matches a whole head: no backtracking, 1.0 µs for 12 fields. Only when it
fails does Python look at the lines one by one, to say exactly what was wrong. A head that comes whole is looked at by
that pattern alone; one that comes in pieces is scanned on the way, so that what is wrong is told at once.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final, final

from trioproxy.errors import Code, Fault, ProxyError

# An enum's members are looked up anew each time, 0.1 µs of a head's 5 (CPython 3.11).
_CLIENT: Final = Fault.CLIENT
_UPSTREAM: Final = Fault.UPSTREAM

RawField = tuple[bytes, bytes]
"""Name and value of a field as they came, the value perhaps with whitespace around it."""

OWS: Final = b" \t"
"""Optional whitespace (RFC 9110 section 5.6.3): the only bytes that are trimmed from values."""

TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
TEXT: Final = rb"[\t\x20-\x7e\x80-\xff]"
_TARGET: Final = rb"[!-\"$-~]"  # visible ASCII except `#`: a fragment is never sent (RFC 9110 section 4.2.5)
_FIELDS: Final = rb"(?:" + TOKEN + rb"++:" + TEXT + rb"*+\r\n)*+\r\n"

_request = re.compile(rb"(" + TOKEN + rb"++) (" + _TARGET + rb"++) HTTP/1\.([01])\r\n" + _FIELDS).fullmatch
_response = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: (" + TEXT + rb"*+))?+\r\n" + _FIELDS).fullmatch
_fields = re.compile(_FIELDS).fullmatch
_token = re.compile(TOKEN + rb"++").fullmatch
_version = re.compile(rb"HTTP/([0-9]\.[0-9])").fullmatch
_VERSIONS: Final = (b"1.1", b"1.0")
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
        return f"{_escaped(shown[:limit])}… ({len(data)} bytes)"
    return f"{_escaped(shown)}…" if query else _escaped(shown)


def _escaped(data: bytes) -> str:
    return repr(data)[1:]  # in quotes, control characters and non-ASCII as escapes, without Python's b


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


def find_end(data: bytes | bytearray, start: int, limits: HeadLimits, fault: Fault) -> tuple[int, bool]:
    """Where a head ends, or else where to go on looking; and whether it has ended.

    Raises ProxyError for what is wrong or over a limit: among several faults, the one that shows first decides.
    """
    limit = limits.size
    position, what = scan(data, start, min(len(data), limit))
    if fault is _CLIENT and position > limits.target and _target_is_too_long(data, position, limits):
        raise target_too_long(limits)
    if what is Scan.END and position <= limit:
        return position, True
    # A bare CR shows with the byte after it, which must still be within the limit.
    if what is Scan.WRONG and position + (2 if data[position] == 0x0D else 1) <= limit:
        raise refusal(fault, f"in the head {wrong_byte(data, position)}")
    if len(data) >= limit:
        raise refusal(fault, f"a head must be at most {limit} bytes long", Code.HEAD_TOO_LARGE)
    return position, False


def check_request(head: bytes, limits: HeadLimits) -> tuple[bytes, bytes, bool, int]:
    """Method, target, whether it is HTTP/1.1, and the number of fields of a well-formed head.

    Raises BAD_REQUEST, HTTP_VERSION_UNSUPPORTED, METHOD_NOT_ALLOWED (CONNECT), TARGET_TOO_LONG or HEAD_TOO_LARGE.
    """
    match = _request(head)
    if match is None:
        find_end(head, 0, limits, _CLIENT)  # raises what had shown first, had the head come in pieces
        raise _why_request(head)
    method, target, minor = match.groups()
    if len(target) > limits.target:
        raise target_too_long(limits)
    if method == b"CONNECT":
        raise ProxyError(Code.METHOD_NOT_ALLOWED, "CONNECT is not served: this is no forward proxy")
    count = head.count(b"\n") - 2  # past the pattern each LF ends a line
    if count > limits.fields:
        raise _too_many_fields(count, limits, _CLIENT)
    return method, target, minor == b"1", count


def check_response(head: bytes, limits: HeadLimits) -> tuple[int, bytes, bool, int]:
    """Status, reason phrase, whether it is HTTP/1.1, and the number of fields of a well-formed head.

    The reason's space may be missing (`HTTP/1.1 200`), as RFC 9112 section 4 lets it be in practice. Raises
    BAD_RESPONSE.
    """
    match = _response(head)
    if match is None:
        find_end(head, 0, limits, _UPSTREAM)
        raise _why_response(head)
    minor, digits, reason = match.groups()
    count = head.count(b"\n") - 2
    if count > limits.fields:
        raise _too_many_fields(count, limits, _UPSTREAM)
    return int(digits), (reason or b"").strip(), minor == b"1", count


def check_fields(block: bytes, limits: HeadLimits, fault: Fault) -> list[RawField]:
    """The fields of a block without a start line: trailers, through the empty line that ends them."""
    if _fields(block) is None:
        raise refusal(fault, _why_field(block.split(b"\r\n")[:-2], "trailer"))
    count = block.count(b"\n") - 1
    if count > limits.fields:
        raise _too_many_fields(count, limits, fault)
    return raw_fields(b"\r\n" + block)


def raw_fields(head: bytes) -> list[RawField]:
    """The fields of a head that passed the gate, by the gate's own reading: to explain what a parser refused."""
    return [(name, value) for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:-2])]


def target_too_long(limits: HeadLimits) -> ProxyError:
    """The refusal of a request target over its limit."""
    return ProxyError(Code.TARGET_TOO_LONG, f"the request target must be at most {limits.target} bytes long")


def _too_many_fields(count: int, limits: HeadLimits, fault: Fault) -> ProxyError:
    return refusal(fault, f"at most {limits.fields} fields are allowed, got {count}", Code.HEAD_TOO_LARGE)


def _target_is_too_long(data: bytes | bytearray, stop: int, limits: HeadLimits) -> bool:
    space = data.find(b" ", 0, stop)
    over = space + 1 + limits.target + 1
    if space < 0 or stop < over or data.find(b"\r", 0, space) >= 0:
        return False
    return data.find(b" ", space + 1, over) < 0 and data.find(b"\r", space + 1, over) < 0


def _why_request(head: bytes) -> ProxyError:
    lines = head.split(b"\r\n")
    parts = lines[0].split(b" ")
    version = _version(parts[2]) if len(parts) == 3 else None
    if version is None:
        why = f'the request line must be "METHOD target HTTP/1.1" with single spaces, got {quote(lines[0])}'
    elif not _token(parts[0]):
        why = f"the method must be a token, got {quote(parts[0])}"
    elif b"#" in parts[1]:
        why = "the request target must not have a fragment (#)"
    elif not re.fullmatch(_TARGET + rb"++", parts[1]):
        why = f"the request target must be visible ASCII, everything else percent-encoded, got {quote(parts[1])}"
    elif _fields(head, len(lines[0]) + 2) and version[1] not in _VERSIONS:
        why = f"only HTTP/1.0 and HTTP/1.1 are served, got {quote(version[1])}"
        return ProxyError(Code.HTTP_VERSION_UNSUPPORTED, why)
    else:
        why = _why_field(lines[1:-2], "header")
    return ProxyError(Code.BAD_REQUEST, why)


def _why_response(head: bytes) -> ProxyError:
    lines = head.split(b"\r\n")
    match = re.fullmatch(rb"HTTP/([0-9]\.[0-9]) ([0-9]{3})(?: " + TEXT + rb"*+)?+", lines[0])
    if match is None:
        why = f'the status line must be "HTTP/1.1 200 reason", got {quote(lines[0])}'
    elif _fields(head, len(lines[0]) + 2) is None:
        why = _why_field(lines[1:-2], "header")
    elif match[1] not in _VERSIONS:
        why = f"only HTTP/1.0 and HTTP/1.1 are spoken, got {quote(match[1])}"
    else:
        why = f"the status must be from 100 to 599, got {int(match[2])}"
    return refusal(_UPSTREAM, why)


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
