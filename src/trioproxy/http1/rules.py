"""The rules on parsed fields and on the request target: framing, Host, Connection, Expect.

Lives here: one function for each rule, from values to a decision or a refusal that names what was wrong.
Must not live here: the shape of raw bytes (gate.py), and the order in which the rules apply (heads.py).
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from trioproxy.errors import Code, Fault, ProxyError

from .fields import tokens
from .framing import CHUNKED, Framing, FramingKind
from .gate import TOKEN, quote, refusal

_LENGTH: Final = FramingKind.LENGTH

LOOK_ALIKES: Final = frozenset({b"content_length", b"transfer_encoding"})
"""Names that servers which map `-` to `_` (CGI, WSGI) take for those that frame the body."""

_codings = re.compile(TOKEN + rb"++(?:[ \t]*+,[ \t]*+" + TOKEN + rb"++)*+").fullmatch
# reg-name of RFC 3986 section 3.2.2 in labels that are not empty; percent-encoding only of what is not ASCII.
_PLAIN: Final = rb"[0-9A-Za-z\-_~!$&'()*+,;=]++"
_LABEL: Final = rb"(?:" + _PLAIN + rb"|%[89A-Fa-f][0-9A-Fa-f])++"
_PORT: Final = rb"(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[0-5]?[0-9]{0,4})"
_authority = re.compile(
    rb"(?:" + _LABEL + rb"(?:\." + _LABEL + rb")*+\.?|\[[0-9A-Fa-f:.]{2,45}\])(?::" + _PORT + rb")?"
).fullmatch
plain_authority = re.compile(_PLAIN + rb"(?:\." + _PLAIN + rb")*+(?::" + _PORT + rb")?").fullmatch
"""Matches a part of what `check_authority` accepts, nearly every Host, at the cost of one simple pattern."""
_absolute = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://([^/?]*+)(.*)").fullmatch
_path = re.compile(rb"(?:[^%?]++|%(?!00)[0-9A-Fa-f]{2})*+(?:\?.*)?").fullmatch


def look_alike(key: bytes, fault: Fault) -> ProxyError:
    """The refusal of one of LOOK_ALIKES."""
    return refusal(fault, f"a field must not be named like a framing field: {quote(key)}")


def framing(length: bytes | None, coding: bytes | None, http_11: bool, fault: Fault) -> Framing | None:
    """The framing that Content-Length and Transfer-Encoding tell, None without either (RFC 9112 sections 6.1 to 6.3).

    Raises BAD_REQUEST or TRANSFER_CODING_UNSUPPORTED for a request, BAD_RESPONSE for a response.
    """
    if coding is None:
        if length is None:
            return None
        # Of bytes, isdigit() knows ASCII digits only.
        if not length.isdigit() or len(length) > 18 or (length[0] == 0x30 and len(length) > 1):
            rule = "Content-Length must be one line of at most 18 digits without leading zeros"
            raise refusal(fault, f"{rule}, got {quote(length)}")
        return Framing(_LENGTH, int(length))
    if length is not None:
        raise refusal(fault, "Content-Length and Transfer-Encoding must not come together")
    if not http_11:
        raise refusal(fault, "Transfer-Encoding does not exist in HTTP/1.0")
    if coding.lower() != b"chunked":  # of bytes, lower() folds ASCII only: no Kelvin sign becomes a k
        raise _bad_coding(coding, fault)
    return CHUNKED


def _bad_coding(coding: bytes, fault: Fault) -> ProxyError:
    """501 for codings that could be undone by someone else; 400 where no end of the body can be told (section 6.3)."""
    names = tokens(coding)
    if _codings(coding) and names[-1] == b"chunked" and names.count(b"chunked") == 1:
        message = f"the only transfer coding understood is chunked, got {quote(coding)}"
        return refusal(fault, message, Code.TRANSFER_CODING_UNSUPPORTED)
    return refusal(fault, f"Transfer-Encoding must be exactly chunked, got {quote(coding)}")


def keep_alive(connection: bytes, http_11: bool) -> bool:
    """Whether the connection may be used again, by all of its Connection lines (RFC 9112 section 9.3)."""
    if connection == b"keep-alive":  # what nearly all of them say
        return True
    names = tokens(connection)
    return b"close" not in names and (http_11 or b"keep-alive" in names)


def expect_continue(expect: bytes) -> bool:
    """Whether 100-continue is expected. Raises EXPECTATION_FAILED for any other expectation."""
    names = tokens(expect)
    if unknown := [name for name in names if name != b"100-continue"]:
        message = f"the only expectation that can be met is 100-continue, got {quote(unknown[0])}"
        raise ProxyError(Code.EXPECTATION_FAILED, message)
    return bool(names)


def check_authority(value: bytes, where: str) -> None:
    """Refuse what is not a host with an optional port, in the grammar of RFC 3986 section 3.2, without userinfo.

    Stricter in three ways: labels are not empty, percent-encoding cannot hide ASCII, the port fits 16 bits.
    """
    if not _authority(value):
        message = f"{where} must be a host and, if any, a port up to 65535, got {quote(value)}"
        raise ProxyError(Code.BAD_REQUEST, message)
    if value.startswith(b"["):
        address = value[1 : value.index(b"]")]
        try:
            ipaddress.IPv6Address(address.decode("ascii"))
        except ValueError:
            message = f"{where} must have an IPv6 address between brackets, got {quote(address)}"
            raise ProxyError(Code.BAD_REQUEST, message) from None


def split_target(method: bytes, target: bytes) -> tuple[bytes | None, bytes]:
    """The authority of an absolute-form target, None for the other forms, and the target to forward.

    An absolute form becomes the origin form; without a path and with OPTIONS it becomes `*` (RFC 9112 section 3.2.4).
    The query is not looked at.
    """
    authority = None
    if not target.startswith(b"/"):
        if target == b"*":
            if method != b"OPTIONS":
                raise ProxyError(Code.BAD_REQUEST, "the request target * is for OPTIONS only")
            return None, target
        match = _absolute(target)
        if match is None:
            message = f"the request target must begin with / or be an http URL, got {_without_userinfo(target)}"
            raise ProxyError(Code.BAD_REQUEST, message)
        authority, target = match.groups()
        if b"@" in authority:
            raise ProxyError(Code.BAD_REQUEST, "the request target must not have a user or password")
        check_authority(authority, "the request target")
        if not target.startswith(b"/"):
            target = b"*" if method == b"OPTIONS" and not target else b"/" + target
    if b"%" in target and not _path(target):
        message = f"the path must have two hex digits after each % and no %00, got {quote(target)}"
        raise ProxyError(Code.BAD_REQUEST, message)
    return authority, target


def _without_userinfo(target: bytes) -> str:
    return "one with an @" if b"@" in target else quote(target)
