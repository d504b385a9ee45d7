"""What a head says: from bytes on the wire to a RequestHead or ResponseHead, or a refusal that says why.

Lives here: finding where a head ends, and the order of the checks: gate, parser, rules.
Must not live here: the checks themselves (gate.py, rules.py), and I/O.
"""

from __future__ import annotations

from typing import Final, final

import msgspec

from trioproxy.errors import Code, Fault, ProxyError

from . import rules
from .fields import tokens
from .framing import NO_BODY, UNTIL_CLOSE, Field, Framing, FramingKind
from .gate import HeadLimits, RawField, check_request, check_response, find_end, raw_fields, refusal
from .parsers import HeadParser, ParserRefusal
from .rules import LOOK_ALIKES, plain_authority

MAX_EMPTY_LINES: Final = 8
"""Empty lines skipped before a request line: some old clients send one after a body (RFC 9112 section 2.2)."""

_CLIENT: Final = Fault.CLIENT  # see gate.py
_UPSTREAM: Final = Fault.UPSTREAM
_CHUNKED_KIND: Final = FramingKind.CHUNKED

_ONCE: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})
_DECIDING_REQUEST: Final = _ONCE | LOOK_ALIKES | {b"connection", b"expect", b"te"}
_DECIDING_RESPONSE: Final = LOOK_ALIKES | {b"content-length", b"transfer-encoding", b"connection"}


@final
class RequestHead(msgspec.Struct, gc=False):
    """The head of a request that may be forwarded. A struct, since it is made in half the time of a dataclass."""

    method: bytes
    """A token, as it came; perhaps one that nobody knows."""
    target: bytes
    """Raw, in origin form or `*`."""
    http_11: bool
    fields: list[Field]
    """In the order they came, hop-by-hop ones included. Host agrees with `host`."""
    framing: Framing
    keep_alive: bool
    expect_continue: bool
    """Whether the client waits for a 100 before it sends its body. Never for HTTP/1.0, nor without a body."""
    host: bytes
    """The authority asked for: of the target if that is a URL, else of Host; empty for HTTP/1.0 without either."""
    te_trailers: bool
    """Whether the client takes trailers."""


@final
class ResponseHead(msgspec.Struct, gc=False):
    """The head of a response that may be forwarded, final or interim (1xx, 101 included)."""

    status: int
    reason: bytes
    http_11: bool
    fields: list[Field]
    """In the order they came, hop-by-hop ones included; of a 1xx or 204 those that tell a framing are left out."""
    framing: Framing
    keep_alive: bool
    """Whether, as far as the head says, the connection may be used again."""


@final
class HeadReader:
    """Finds where heads end: one for each connection and direction.

    :param fault: whose heads these are: CLIENT for requests, UPSTREAM for responses.
    """

    __slots__ = ("_empty_lines", "_fault", "_held", "_limits", "_rest", "_scanned", "started")

    def __init__(self, limits: HeadLimits, *, fault: Fault) -> None:
        self.started = False
        """Whether any byte of a head has come. Empty lines before a request line are none."""
        self._limits = limits
        self._fault = fault
        self._held: bytes | bytearray = b""  # a head under way; not empty, it is a bytearray
        self._rest = b""  # what came after a whole head
        self._scanned = 0
        self._empty_lines = 0

    def feed(self, data: bytes) -> bytes | None:
        """The bytes of one whole head through its empty line, once they are there.

        Then `take_rest` has what came after it; if nobody takes that, the next call goes on with it. Raises
        ProxyError as soon as a head that has not ended can no longer be right: on a bare CR, a bare LF or a control
        character, on the first byte over a limit. A head that comes whole is left to the gate, which finds the same:
        which error, does not depend on how the bytes were cut. Do not call it after that.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        if not self._held:
            end = data.find(b"\r\n\r\n") + 4
            if 4 <= end <= self._limits.size and data[0] != 0x0D:
                self._rest = data[end:]
                self._empty_lines = 0
                return data[:end]
        return self._feed_piece(data)

    def _feed_piece(self, data: bytes) -> bytes | None:
        if self._held:
            self._held += data
            found: bytes | bytearray = self._held
        else:
            found = data
        if not self.started:
            found = self._skip_empty_lines(found)
            if not found or (found == b"\r" and self._fault is _CLIENT):
                self._hold(found)
                return None
            self.started = True
        position, ended = find_end(found, self._scanned, self._limits, self._fault)
        if not ended:
            self._scanned = position
            self._hold(found)
            return None
        head, rest = bytes(found[:position]), bytes(found[position:])
        self._reset()
        self._rest = rest
        return head

    def take_rest(self) -> bytes:
        """What came after the head, or all of an unfinished one. The reader is empty and as new after that."""
        rest = self._rest
        if rest:
            self._rest = b""
        elif self._held or self._empty_lines:
            rest = bytes(self._held)
            self._reset()
        return rest

    def _reset(self) -> None:
        self._held = b""
        self.started = False
        self._scanned = self._empty_lines = 0

    def _hold(self, found: bytes | bytearray) -> None:
        if found is not self._held:
            self._held = bytearray(found)

    def _skip_empty_lines(self, found: bytes | bytearray) -> bytes | bytearray:
        if self._fault is not _CLIENT or found[:2] != b"\r\n":
            return found
        start = 0
        while found[start : start + 2] == b"\r\n":
            start += 2
            self._empty_lines += 1
            if self._empty_lines > MAX_EMPTY_LINES:
                message = f"at most {MAX_EMPTY_LINES} empty lines may come before a request line"
                raise ProxyError(Code.BAD_REQUEST, message)
        return found[start:]


def read_request_head(head: bytes, parser: HeadParser, limits: HeadLimits) -> RequestHead:
    """Read one whole head of a request.

    Raises ProxyError: BAD_REQUEST, HEAD_TOO_LARGE (fields), TARGET_TOO_LONG, METHOD_NOT_ALLOWED (CONNECT),
    HTTP_VERSION_UNSUPPORTED, TRANSFER_CODING_UNSUPPORTED or EXPECTATION_FAILED.
    """
    method, target, http_11, count = check_request(head, limits)
    try:
        parsed_method, parsed_target, raw = parser.request(head)
    except ParserRefusal as refused:
        _request(method, target, http_11, raw_fields(head))  # our rules may have a better reason
        raise ProxyError(Code.BAD_REQUEST, f"the head is malformed: {refused}") from None
    if parsed_method != method or parsed_target != target or len(raw) != count:
        raise ProxyError(Code.BAD_REQUEST, "the head can be read in more than one way")
    return _request(method, target, http_11, raw)


def read_response_head(head: bytes, parser: HeadParser, limits: HeadLimits, *, request_method: bytes) -> ResponseHead:
    """Read one whole head of a response to a request of the given method. Raises ProxyError, BAD_RESPONSE."""
    status, reason, http_11, count = check_response(head, limits)
    try:
        parsed_status, raw = parser.response(head)
    except ParserRefusal as refused:
        _response(status, reason, http_11, raw_fields(head), request_method)
        raise refusal(Fault.UPSTREAM, f"{refused}") from None
    if parsed_status != status or len(raw) != count:
        raise refusal(Fault.UPSTREAM, "the head can be read in more than one way")
    return _response(status, reason, http_11, raw, request_method)


def _sort(raw: list[RawField], deciding: frozenset[bytes], fault: Fault) -> tuple[list[Field], dict[bytes, bytes]]:
    """All fields, and the values of the deciding ones; of those that are lists, every line is joined."""
    fields: list[Field] = []
    found: dict[bytes, bytes] = {}
    for name, untrimmed in raw:  # the hottest loop of a head
        key = name.lower()
        value = untrimmed.strip()  # past the gate, SP and HTAB are all the white space there can be
        fields.append((key, name, value))
        if key in deciding:
            if key not in found:
                found[key] = value
                if key in LOOK_ALIKES:
                    raise rules.look_alike(key, fault)
            elif key in _ONCE:
                raise refusal(fault, f"{key.decode('ascii').title()} must come only once")
            else:
                found[key] += b", " + value
    return fields, found


def _request(method: bytes, target: bytes, http_11: bool, raw: list[RawField]) -> RequestHead:
    fields, found = _sort(raw, _DECIDING_REQUEST, _CLIENT)
    get = found.get
    framing = rules.framing(get(b"content-length"), get(b"transfer-encoding"), http_11, _CLIENT) or NO_BODY
    host = get(b"host")
    if host is not None:
        if not plain_authority(host):
            rules.check_authority(host, "Host")
    elif http_11:
        raise ProxyError(Code.BAD_REQUEST, "an HTTP/1.1 request must have a Host field")
    if target[0] != 0x2F or 0x25 in target:  # not a path without %: that has nothing to check past the gate
        authority, target = rules.split_target(method, target)
        if authority is not None:
            host = authority
            fields = _with_host(fields, authority)
    connection = get(b"connection")
    waits = b"expect" in found and rules.expect_continue(found[b"expect"]) and http_11
    return RequestHead(
        method,
        target,
        http_11,
        fields,
        framing,
        http_11 if connection is None else rules.keep_alive(connection, http_11),
        waits and (framing.length > 0 or framing.kind is _CHUNKED_KIND),
        host or b"",
        b"te" in found and b"trailers" in tokens(found[b"te"]),
    )


def _with_host(fields: list[Field], authority: bytes) -> list[Field]:
    """The fields with the target's authority in Host, which is put first if it was missing (RFC 9112 section 3.2.2)."""
    rest = [field for field in fields if field[0] != b"host"]
    name = next((name for key, name, _ in fields if key == b"host"), b"Host")
    return [(b"host", name, authority), *rest]


def _response(status: int, reason: bytes, http_11: bool, raw: list[RawField], request_method: bytes) -> ResponseHead:
    fields, found = _sort(raw, _DECIDING_RESPONSE, _UPSTREAM)
    length, coding = found.get(b"content-length"), found.get(b"transfer-encoding")
    connection = found.get(b"connection")
    keep_alive = http_11 if connection is None else rules.keep_alive(connection, http_11)
    if status < 200 or status == 204:
        # They have no body whatever they say, so what they say is left out (RFC 9110 section 8.6); but nobody who
        # writes a length that is none can be trusted with where the next response begins.
        if length is not None:
            rules.framing(length, None, http_11, _UPSTREAM)
        if length is not None or coding is not None:
            fields = [field for field in fields if field[0] not in _ONCE]
        framing = NO_BODY
    else:
        told = rules.framing(length, coding, http_11, _UPSTREAM)
        if status == 304 or request_method == b"HEAD":
            framing = NO_BODY
        elif told is None:
            framing = UNTIL_CLOSE
            keep_alive = False
        else:
            framing = told
    return ResponseHead(status, reason, http_11, fields, framing, keep_alive)
