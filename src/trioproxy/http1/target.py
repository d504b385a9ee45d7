"""What a request target means for routing, apart from the bytes that are forwarded.

Lives here: a copy of the path that two spellings of one resource share. Does not live here: the target that goes to
the upstream, which stays as it came, and the grammar of targets (rules.py).
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from trioproxy.errors import Code, ProxyError

_plain: Final = re.compile(rb"(?:/(?!\.{0,2}(?:[/;]|$))[^/%\\\x00-\x1f\x7f]*+)*+/?").fullmatch
_twice: Final = re.compile(rb"%(?:2[ef]|5c)", re.IGNORECASE).search
_controls: Final = re.compile(rb"[\x00-\x1f\x7f]").search
_slashes: Final = re.compile(rb"/{2,}")


def route_of(target: bytes) -> bytes:
    """The path of a target, decoded and with single slashes, for whoever chooses by it.

    :raises ProxyError: ``BAD_REQUEST``: it has dot segments, encoded slashes, backslashes or control characters, by
        which what is checked here and what the upstream serves could be two paths (RFC 3986 section 6.2.2); so could
        what is encoded twice, and parameters (``..;``) that some servers take off a segment before they look at it.
    """
    path = target.partition(b"?")[0]
    if _plain(path):
        return path
    if path == b"*":
        return path
    decoded = unquote_to_bytes(path)
    if decoded.count(b"/") != path.count(b"/") or b"\\" in decoded:
        raise ProxyError(Code.BAD_REQUEST, "the path must not have encoded slashes or backslashes")
    if _twice(decoded) or _controls(decoded):
        raise ProxyError(Code.BAD_REQUEST, "the path must not have control characters, or be encoded twice")
    if any(segment.partition(b";")[0] in (b".", b"..") for segment in decoded.split(b"/")):
        raise ProxyError(Code.BAD_REQUEST, "the path must not have dot segments (/./ or /../), encoded ones neither")
    return _slashes.sub(b"/", decoded)
