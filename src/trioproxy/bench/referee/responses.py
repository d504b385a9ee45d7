"""What comes back: a response read byte by byte, its tokens counted, each checked for whose it is.

Lives here: just enough of HTTP/1.1 to know where a response ends, and the marks that the mock puts into its tokens.
It shares no code with the proxy that it judges, and costs a fraction of h11, because thousands of streams are read
beside the model server that makes them. Does not live here: sockets.
"""

from __future__ import annotations

import array
import re
from typing import Final, final

_HEAD_LIMIT: Final = 128 * 1024
_TOKEN: Final = re.compile(rb"([a-z0-9-]{1,64})#([0-9]{8})")
_CARRY: Final = 96
"""Bytes kept of what was scanned, since a token's mark may be split: more than a mark can have."""
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")


class ResponseError(Exception):
    """The bytes are no HTTP/1.1 response."""


@final
class Response:
    """One response, as far as it has come.

    :param tag: what its own tokens carry; None for a server that marks none: then events with data are counted.
    :param keep: how many bytes of the body to keep.
    """

    __slots__ = (
        "_buffer",
        "_carry",
        "_chunked",
        "_left",
        "_next",
        "_state",
        "_tag",
        "body_bytes",
        "complete",
        "cross_delivered",
        "disordered",
        "done",
        "first_token",
        "gaps",
        "head_at",
        "keep_alive",
        "kept",
        "last_token",
        "room",
        "status",
        "tokens",
    )

    def __init__(self, tag: str | None, *, keep: int = 0) -> None:
        self._tag = None if tag is None else tag.encode()
        self._buffer = bytearray()
        self._state = "head"
        self._chunked = False
        self._left: int | None = None
        self._carry: bytes = b""
        self.status: int | None = None
        self.head_at: float | None = None
        """When its head was complete, a final one."""
        self.keep_alive = True
        self.body_bytes = 0
        self.tokens = 0
        self._next = 0
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.gaps = array.array("d")
        """Seconds between neighbouring tokens, as they arrived."""
        self.cross_delivered = 0
        """Bytes of tokens that are another request's."""
        self.disordered = 0
        """Tokens that did not follow the one before: lost, doubled or reordered ones."""
        self.done = False
        """The stream said that it was over."""
        self.complete = False
        """By HTTP's framing nothing is missing."""
        self.room = keep
        self.kept = bytearray()

    def feed(self, data: bytes, now: float) -> None:
        """Take what has arrived at ``now``; nothing means the end of the connection.

        :raises ResponseError: it cannot be a response.
        """
        if not data:
            if self._state == "to-the-end":
                self.complete = True
            self._state = "over"
            return
        if self._state == "over":
            raise ResponseError(f"{len(data)} bytes after the response's end")
        self._buffer += data
        while self._step(now):
            pass

    def _step(self, now: float) -> bool:
        """Use what is in the buffer; whether there may be more to use."""
        match self._state:
            case "head":
                return self._head(now)
            case "counted":
                assert self._left is not None
                self._left -= self._take(self._left, now)
                if self._left == 0:
                    self._end()
            case "to-the-end":
                self._take(len(self._buffer), now)
            case "size":
                return self._size()
            case "chunk":
                assert self._left is not None
                self._left -= self._take(self._left, now)
                if self._left == 0:
                    self._state = "chunk-end"
                    return True
            case "chunk-end":
                if len(self._buffer) >= 2:
                    if not self._buffer.startswith(b"\r\n"):
                        raise ResponseError("a chunk does not end where it should")
                    del self._buffer[:2]
                    self._state = "size"
                    return True
            case "trailers":
                return self._trailers()
            case _:
                if self._buffer:
                    raise ResponseError(f"{len(self._buffer)} bytes after the response's end")
        return False

    def _head(self, now: float) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_LIMIT:
                raise ResponseError("the head does not end")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        match = re.fullmatch(rb"HTTP/1\.([01]) ([0-9]{3})(?: .*)?", lines[0])
        if match is None:
            raise ResponseError(f"not a status line: {lines[0][:100]!r}")
        status = int(match[2])
        if 100 <= status < 200:
            return True
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        self.status = status
        self.head_at = now
        connection = fields.get(b"connection", b"").lower()
        self.keep_alive = b"close" not in connection and (match[1] == b"1" or b"keep-alive" in connection)
        if status in (204, 304):
            self._end()
        elif b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            self._state = "size"
        elif b"content-length" in fields:
            self._left = int(fields[b"content-length"])
            self._state = "counted"
            if self._left == 0:
                self._end()
        else:
            self._state = "to-the-end"
            self.keep_alive = False
        return True

    def _size(self) -> bool:
        match = _CHUNK_LINE.match(self._buffer)
        if match is None:
            if len(self._buffer) > 4096 or b"\n" in self._buffer:
                raise ResponseError(f"not a chunk's size: {bytes(self._buffer[:40])!r}")
            return False
        self._left = int(match[1], 16)
        del self._buffer[: match.end()]
        self._state = "chunk" if self._left else "trailers"
        return True

    def _trailers(self) -> bool:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return False
        del self._buffer[: end + 2]
        if end == 0:
            self._end()
        return True

    def _end(self) -> None:
        self.complete = True
        self._state = "over"

    def _take(self, most: int, now: float) -> int:
        """Use up to ``most`` bytes of the body; how many it were."""
        piece = bytes(self._buffer[:most])
        if not piece:
            return 0
        del self._buffer[:most]
        self.body_bytes += len(piece)
        if self.room > 0:
            self.kept += piece[: self.room]
            self.room -= len(piece)
        self._scan(piece, now)
        return len(piece)

    def _scan(self, piece: bytes, now: float) -> None:
        text = self._carry + piece
        used = 0
        if self._tag is None:
            pieces = text.split(b"\n")
            for line in pieces[:-1]:
                if line.startswith(b"data:") and not self._is_done(line):
                    self._token(now)
            self._carry = pieces[-1]
            return
        for match in _TOKEN.finditer(text):
            used = match.end()
            if match[1] != self._tag:
                self.cross_delivered += used - match.start()
                continue
            index = int(match[2])
            if index != self._next:
                self.disordered += 1
            self._next = index + 1
            self._token(now)
        if b"[DONE]" in text[used:]:
            self.done = True
        self._carry = text[max(used, len(text) - _CARRY) :]

    def _is_done(self, line: bytes) -> bool:
        done = b"[DONE]" in line
        self.done = self.done or done
        return done

    def _token(self, now: float) -> None:
        self.tokens += 1
        if self.last_token is None:
            self.first_token = now
        else:
            self.gaps.append(now - self.last_token)
        self.last_token = now
