"""What a request target means for routing, apart from the bytes that are forwarded.

Lives here: a copy of the path that two spellings of one resource share. Does not live here: the target that goes to
the upstream, which stays as it came, and the grammar of targets (rules.py).
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from trioproxy.errors import Code, ProxyError

_plain: Final = re.compile(rb"(?:/(?!\.{0,2}(?:/|$))[^/%\\]*+)*+/?").fullmatch
_slashes: Final = re.compile(rb"/{2,}")


def route_of(target: bytes) -> bytes:
    """The path of a target, decoded and with single slashes, for whoever chooses by it.

    :raises ProxyError: ``BAD_REQUEST``: it has dot segments, encoded slashes or backslashes, by which what is checked
        here and what the upstream serves could be two paths (RFC 3986 section 6.2.2).
    """
    path = target.partition(b"?")[0]
    if _plain(path):
        return path
    if path == b"*":
        return path
    decoded = unquote_to_bytes(path)
    if decoded.count(b"/") != path.count(b"/") or b"\\" in decoded:
        raise ProxyError(Code.BAD_REQUEST, "the path must not have encoded slashes or backslashes")
    if any(segment in (b".", b"..") for segment in decoded.split(b"/")):
        raise ProxyError(Code.BAD_REQUEST, "the path must not have dot segments (/./ or /../), encoded ones neither")
    return _slashes.sub(b"/", decoded)
