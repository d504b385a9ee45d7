"""Reading the fields of a request's body that comes encoded: gzip, deflate, zstd.

Lives here: decoding a body a step at a time, within bounds, for the reader of its fields and for nobody else. Does not
live here: the fields, or the body, which is forwarded as it came.

A body that decodes to more than it may is refused (413) and not passed on unread: it would get around routes and
policies that go by the model, and the server behind the proxy would be the one to unpack it. What is no such coding, is
broken or ends too early makes the body unreadable, which is no error: the server is the judge of it.

Bounds: bytes that come out in all, and how many times the bytes that came in those may be (above a small size, since
short repetitive prompts shrink more than any honest long one).
"""

from __future__ import annotations

import enum
import sys
import zlib
from collections.abc import Callable
from typing import Final, Protocol, final

from trioproxy.apis.edits import Edit
from trioproxy.apis.fields import UNREADABLE_FIELDS, FieldReader, RequestFields
from trioproxy.errors import Code, ProxyError

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

STEP: Final = 65536
"""Bytes that come out of one step at most: that takes 0.3 ms."""
RATIO_FLOOR: Final = 1 << 20
"""Bytes that a body may decode to whatever the ratio."""
_PIECE: Final = 16384
"""Bytes that go in at a time."""
_MEMBERS: Final = 256
"""Members (RFC 1952) or frames (RFC 8878) that a body may consist of: each takes microseconds however small it is."""
_WINDOW_LOG: Final = 23
"""8 MiB, the most that a sender may ask for (RFC 9659)."""
_GZIP: Final = 31
_ZLIB: Final = 15


class _Decoder(Protocol):
    """One member of gzip, or one frame of zstd."""

    @property
    def hungry(self) -> bool:
        """Whether nothing more comes out until something goes in."""
        ...

    @property
    def eof(self) -> bool:
        """Whether it has ended."""
        ...

    @property
    def unused_data(self) -> bytes:
        """What went in after its end."""
        ...

    def decode(self, data: bytes) -> bytes:
        """Put something in, or nothing while it is not hungry; what comes out, up to ``STEP`` bytes."""
        ...


@final
class _ZlibDecoder:
    __slots__ = ("_inner", "hungry")

    def __init__(self, wbits: int) -> None:
        self._inner = zlib.decompressobj(wbits)
        self.hungry = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decode(self, data: bytes) -> bytes:
        inner = self._inner
        decoded = inner.decompress(data or inner.unconsumed_tail, STEP)
        # What is still to come of a run that the step has cut comes with the next bytes: a checksum follows at least.
        self.hungry = not inner.unconsumed_tail
        return decoded


@final
class _ZstdDecoder:
    __slots__ = ("_inner",)

    def __init__(self) -> None:
        self._inner = ZstdDecompressor(options={DecompressionParameter.window_log_max: _WINDOW_LOG})

    @property
    def hungry(self) -> bool:
        return self._inner.needs_input

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decode(self, data: bytes) -> bytes:
        return self._inner.decompress(data, STEP)


_DECODERS: Final[dict[bytes, Callable[[], _Decoder]]] = {
    b"gzip": lambda: _ZlibDecoder(_GZIP),
    b"x-gzip": lambda: _ZlibDecoder(_GZIP),  # RFC 9110 8.4.1.3
    b"deflate": lambda: _ZlibDecoder(_ZLIB),
    b"zstd": _ZstdDecoder,
}


@final
class _Progress(enum.Enum):
    GOING = "going"
    DONE = "done"
    BROKEN = "broken"
    TOO_LARGE = "too large"


@final
class EncodedFieldReader:
    """Reads the fields of one encoded body, once all of it is there.

    :param fields: sees the decoded bytes.
    :param coding: the value of Content-Encoding.
    :param size_limit: bytes that the body may decode to.
    :param ratio_limit: how many times its own bytes that may be.
    """

    __slots__ = (
        "_at",
        "_decoder",
        "_fields",
        "_make",
        "_members",
        "_out",
        "_progress",
        "_ratio_limit",
        "_rest",
        "_size_limit",
        "edit",
    )

    def __init__(self, fields: FieldReader, coding: bytes, *, size_limit: int, ratio_limit: int) -> None:
        self._fields = fields
        self._make = _DECODERS.get(coding.strip().lower())
        self._progress = _Progress.GOING
        self._decoder: _Decoder | None = None
        """Of the member at hand; None between two."""
        self._members = 0
        self._size_limit = size_limit
        self._ratio_limit = ratio_limit
        self._at = 0
        """Bytes of the body that have gone in."""
        self._rest = b""
        """Those of them that the last member left."""
        self._out = 0
        self.edit: Edit | None = None
        """Never one: nothing is changed in an encoded body."""

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Does nothing: what comes in is decoded when all of it is there, so that others get their turn meanwhile."""

    def step(self, body: memoryview) -> bool:
        """Decode some more of the whole body, the same each time; whether there is more to do. Never raises."""
        make = self._make
        if make is None:
            self._progress = _Progress.BROKEN
        if make is None or self._progress is not _Progress.GOING:
            return False
        decoder = self._decoder
        if decoder is None:
            if self._at == len(body) and not self._rest:
                self._progress = _Progress.DONE
                return False
            decoder = self._decoder = make()
            self._members += 1
        data = self._take(body) if decoder.hungry else b""
        try:
            decoded = decoder.decode(data) if data or not decoder.hungry else None
        except (zlib.error, ZstdError):
            decoded = None
        if decoded is None or self._members > _MEMBERS:
            self._progress = _Progress.BROKEN
            return False
        self._out += len(decoded)
        if self._out > min(self._size_limit, max(RATIO_FLOOR, self._ratio_limit * len(body))):
            self._progress = _Progress.TOO_LARGE
            return False
        if decoded:
            self._fields.feed(decoded)
        if decoder.eof:
            self._rest = decoder.unused_data
            self._decoder = None
        return True

    def _take(self, body: memoryview) -> bytes:
        """The next bytes to decode; empty at the end."""
        data, self._rest = self._rest, b""
        if not data:
            with body[self._at : self._at + _PIECE] as piece:
                data = bytes(piece)
            self._at += len(data)
        return data

    def finish(self) -> RequestFields:
        """What the body asks for, once :meth:`step` has said that there is no more.

        :raises ProxyError: ``BODY_TOO_LARGE`` if it decodes to more than it may; and as :meth:`FieldReader.finish`.
        """
        if self._progress is _Progress.TOO_LARGE:
            raise ProxyError(
                Code.BODY_TOO_LARGE,
                f"the request body decodes to more than {self._size_limit} bytes, or to more than {self._ratio_limit} "
                "times its own size: send it with less, or without Content-Encoding",
            )
        return self._fields.finish() if self._progress is _Progress.DONE else UNREADABLE_FIELDS
