"""Which reader follows a response, told by its head.

Lives here: that choice. Does not live here: the readers (``sse`` for streams, ``usage`` for JSON).
"""

from __future__ import annotations

from typing import Final

from trioproxy.apis.fields import media_type
from trioproxy.apis.sse import SseUsageReader
from trioproxy.apis.usage import JsonUsageReader, UsageReader

_READERS: Final[dict[bytes, type[JsonUsageReader | SseUsageReader]]] = {
    b"application/json": JsonUsageReader,
    b"text/event-stream": SseUsageReader,
}
_PLAIN: Final = frozenset({None, b"", b"identity"})


def is_plain(content_encoding: bytes | None) -> bool:
    """Whether a body with this Content-Encoding is what it says, in no coding."""
    return content_encoding in _PLAIN or (content_encoding or b"").strip().lower() in _PLAIN


def usage_reader(content_type: bytes | None, content_encoding: bytes | None) -> UsageReader | None:
    """A reader for a response with these headers, None if its usage cannot be read: encoded, or of another type."""
    if content_type is None or not is_plain(content_encoding):
        return None
    reader = _READERS.get(content_type) or _READERS.get(media_type(content_type))
    return None if reader is None else reader()
