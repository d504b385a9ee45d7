"""How long a body is, and what a decoder that finds its end looks like.

Must not live here: how a head tells its framing (rules.py), and the decoders (decoders.py, chunked.py).
"""

from __future__ import annotations

import enum
from typing import Final, Protocol, final

import msgspec

from trioproxy.errors import Code, Fault, ProxyError

Field = tuple[bytes, bytes, bytes]
"""A field: its name in lower case, its name as it came, and its value trimmed of SP and HTAB."""


@final
class FramingKind(enum.Enum):
    """How the end of a body is found (RFC 9112 section 6.3)."""

    NONE = "none"  # no body, by the kind of message
    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


@final
class Framing(msgspec.Struct, frozen=True, gc=False):
    """How long a body is; `length` is 0 unless the kind is LENGTH. A struct: making a named tuple costs five times."""

    kind: FramingKind
    length: int = 0

    @staticmethod
    def of_length(length: int) -> Framing:
        """A body of `length` bytes, 0 included: that is an empty body, not the absence of one."""
        return Framing(FramingKind.LENGTH, length)


NO_BODY: Final = Framing(FramingKind.NONE)
CHUNKED: Final = Framing(FramingKind.CHUNKED)
UNTIL_CLOSE: Final = Framing(FramingKind.UNTIL_CLOSE)


class BodyDecoder(Protocol):
    """Finds the end of one body. Holds no payload: what comes in goes out."""

    @property
    def done(self) -> bool:
        """Whether the whole body, trailers included, has been seen; from the start for an empty one."""
        ...

    @property
    def trailers(self) -> list[Field]:
        """Trailers of a chunked body that is done, checked and without those that may not be trailers."""
        ...

    def decode(self, data: bytes) -> tuple[list[bytes], int]:
        """The pieces of payload in `data`, and how many bytes of `data` belong to this message.

        Less than all of it belongs only when the body is done; what is left over is the next message's. When all of
        `data` is payload, it is passed through as it is, without a copy. Raises ProxyError, BAD_REQUEST or
        BAD_RESPONSE by whose body it is, on the first byte that is wrong.
        """
        ...

    def end_of_file(self) -> None:
        """The peer shut its side. Raises ProxyError, BAD_REQUEST or UPSTREAM_CLOSED, if that cut the body."""
        ...


def cut(fault: Fault, missing: str) -> ProxyError:
    """The error for a body that ended too early."""
    if fault is Fault.UPSTREAM:
        return ProxyError(Code.UPSTREAM_CLOSED, f"the upstream closed the connection before {missing}")
    return ProxyError(Code.BAD_REQUEST, f"the connection was shut before {missing}")
