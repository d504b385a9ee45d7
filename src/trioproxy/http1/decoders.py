"""One decoder for each way a body can end; the chunked one has a file of its own.

Must not live here: limits on the size of bodies (their reader's).
"""

from __future__ import annotations

from typing import Final, final

from trioproxy.errors import Fault

from .chunked import ChunkedDecoder
from .framing import BodyDecoder, Field, Framing, FramingKind, cut
from .gate import HeadLimits

_DEFAULT_LIMITS: Final = HeadLimits()


def decoder(framing: Framing, fault: Fault = Fault.CLIENT, limits: HeadLimits = _DEFAULT_LIMITS) -> BodyDecoder:
    """The decoder for a body.

    :param fault: whose body it is: CLIENT or UPSTREAM.
    :param limits: how large trailers may be, and how many.
    """
    kind = framing.kind
    if kind is FramingKind.LENGTH:
        return LengthDecoder(framing.length, fault)
    if kind is FramingKind.CHUNKED:
        return ChunkedDecoder(fault, limits)
    return NoBodyDecoder() if kind is FramingKind.NONE else UntilCloseDecoder()


@final
class NoBodyDecoder:
    """For a message that has no body."""

    __slots__ = ("done", "trailers")

    def __init__(self) -> None:
        self.done = True
        self.trailers: list[Field] = []

    def decode(self, data: bytes) -> tuple[list[bytes], int]:
        """Nothing, ever."""
        return [], 0

    def end_of_file(self) -> None:
        """Cuts nothing."""


@final
class LengthDecoder:
    """A countdown, for Content-Length (RFC 9112 section 6.3, rule 6)."""

    __slots__ = ("_fault", "remaining", "trailers")

    def __init__(self, length: int, fault: Fault) -> None:
        self.remaining = length
        self.trailers: list[Field] = []
        self._fault = fault

    @property
    def done(self) -> bool:
        """Whether all bytes have come."""
        return not self.remaining

    def decode(self, data: bytes) -> tuple[list[bytes], int]:
        """See BodyDecoder. Raises nothing."""
        remaining, size = self.remaining, len(data)
        if size <= remaining:
            self.remaining = remaining - size
            return ([data], size) if size else ([], 0)
        self.remaining = 0
        return ([data[:remaining]], remaining) if remaining else ([], 0)

    def took(self, count: int) -> None:
        """Count bytes of the body that the caller received in place, without handing them over.

        :param count: bytes, at most `remaining`; more is the caller's bug, a ValueError.
        """
        if not 0 <= count <= self.remaining:
            raise ValueError(f"{count} bytes were taken of a body that has {self.remaining} left")
        self.remaining -= count

    def end_of_file(self) -> None:
        """See BodyDecoder."""
        if self.remaining:
            raise cut(self._fault, f"the last {self.remaining} bytes of the body had come")


@final
class UntilCloseDecoder:
    """For a response whose body ends with its connection; a cut one cannot be told from a whole one."""

    __slots__ = ("done", "trailers")

    def __init__(self) -> None:
        self.done = False
        self.trailers: list[Field] = []

    def decode(self, data: bytes) -> tuple[list[bytes], int]:
        """See BodyDecoder: all of it, until the end of file. Raises nothing."""
        if self.done or not data:
            return [], 0
        return [data], len(data)

    def end_of_file(self) -> None:
        """Completes the body."""
        self.done = True
