"""Lists of fields: looking names up, and leaving out what belongs to one connection only.

Must not live here: checking fields (gate.py, rules.py), and adding fields for the other side (the exchange's).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from .framing import Field

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Fields that end with the connection they came on, whether `Connection` names them or not (RFC 9110 section 7.6.1)."""

_NEVER_NOMINATED: Final = frozenset({b"host", b"content-length"})


def end_to_end(fields: list[Field]) -> list[Field]:
    """The fields to forward: without the hop-by-hop ones and those that any `Connection` line names.

    A nomination never removes Host, Content-Length or X-Forwarded-*: it would let a client take from a request what
    the next hop relies on.
    """
    dropped = HOP_BY_HOP
    for key, _, value in fields:
        if key == b"connection" and value not in _ORDINARY and (named := _nominated(value)):
            dropped |= named
    return [field for field in fields if field[0] not in dropped]


@final
class FieldFilter:
    """Says which fields of a head go on to the other side, in one pass that writes them as well.

    :param dropped: lower-case names of those that stay here, besides what `end_to_end` leaves out.
    :param noted: lower-case names of those that the caller must know of.
    :param once: those of the noted that go on only once, the first.
    """

    __slots__ = ("_noted", "_once", "_particular")

    def __init__(
        self, *, dropped: frozenset[bytes] = frozenset(), noted: frozenset[bytes], once: frozenset[bytes] = frozenset()
    ) -> None:
        self._noted = noted
        self._once = once
        self._particular = HOP_BY_HOP | dropped | noted

    def lines(self, fields: list[Field]) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """The lines to send, the names they begin with (see `request_head_of`), and the noted names that were there."""
        lines: list[bytes] = []
        names: list[bytes] = []
        seen: list[bytes] = []
        particular = self._particular
        for key, name, value in fields:
            if key in particular:
                if key == b"connection" and value not in _ORDINARY:
                    return self.lines(end_to_end(fields))  # it may name any of them; no Connection line is left
                if key not in self._noted or (key in self._once and key in seen):
                    continue
                seen.append(key)
            names.append(name)
            lines.append(name + b": " + value)
        return lines, names, seen


_ORDINARY: Final = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})


def _nominated(value: bytes) -> frozenset[bytes]:
    return frozenset(
        name for name in tokens(value) if name not in _NEVER_NOMINATED and not name.startswith(b"x-forwarded-")
    )


def tokens(value: bytes) -> list[bytes]:
    """The members of a comma-separated list, in lower case and trimmed; empty ones are left out."""
    return [token for member in value.lower().split(b",") if (token := member.strip(b" \t"))]


def get(fields: Iterable[Field], name: bytes) -> bytes | None:
    """The first value of the field called `name` (lower case), None without one."""
    for key, _, value in fields:
        if key == name:
            return value
    return None


def get_all(fields: Iterable[Field], name: bytes) -> list[bytes]:
    """Every value of the field called `name` (lower case), in order."""
    return [value for key, _, value in fields if key == name]


def pairs(fields: Iterable[Field]) -> list[tuple[bytes, bytes]]:
    """Names as they came and values: what the serializer takes."""
    return [(name, value) for _, name, value in fields]
