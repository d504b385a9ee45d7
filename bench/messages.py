"""What the probe says, encoded once, and how it reads what it hears.

Lives here: request and response bytes, numbered events, the reader of HTTP/1.1 messages. No sockets.
The reader is strict where a proxy could go wrong (framing, bytes too many, trailers nobody sent) and ignores the
rest: it knows that the other end of the conversation is itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, final

from bench.wire import ProbeError

_CONTENT_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_MAX_HEAD: Final = 65536

STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
    b"cache-control: no-cache\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK: Final = b"0\r\n\r\n"


def chat_body(size: int, *, stream: bool, user: int = 0) -> bytes:
    """A chat completion request of exactly `size` bytes, whose prompt differs at every position."""
    start = b'{"model":"bench","stream":%s,"max_tokens":256,"user":"%08d","messages":[{"role":"user","content":"' % (
        b"true" if stream else b"false",
        user,
    )
    end = b'"}]}'
    room = size - len(start) - len(end)
    if room < 0:
        raise ValueError(f"a chat completion request takes at least {size - room} bytes")
    return start + b"".join(b"%07d " % n for n in range(room // 8 + 1))[:room] + end


def user_of(body: bytes) -> int:
    """The user's number in a body made by `chat_body`."""
    found = re.search(rb'"user":"([0-9]{8})"', body)
    if found is None:
        raise ProbeError(f"the request's body was changed on its way: {body[:200]!r}")
    return int(found[1])


def post(body: bytes) -> bytes:
    """The request that carries `body`: what an OpenAI client sends, with fewer fields of its own."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench.test\r\nAccept: application/json\r\n"
        b"Accept-Encoding: identity\r\nUser-Agent: bench/1\r\nAuthorization: Bearer sk-bench\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


def completion(size: int) -> bytes:
    """A chat completion of exactly `size` bytes."""
    start = b'{"id":"chatcmpl-0","object":"chat.completion","model":"bench","choices":[{"index":0,"message":'
    start += b'{"role":"assistant","content":"'
    end = b'"},"finish_reason":"stop"}]}'
    return start + b"x" * (size - len(start) - len(end)) + end


def json_response(body: bytes) -> bytes:
    """The response that carries `body`."""
    return (
        b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
        b"content-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (len(body), body)
    )


def chunk(data: bytes) -> bytes:
    """`data` as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@final
class Events:
    """The events of one stream: all of one length, each with its stream's number and its own.

    They are valid JSON, as a model server's are: a proxy may read them, and what is malformed takes it longer.
    """

    __slots__ = ("_end", "_stream", "size")

    def __init__(self, stream: int, size: int) -> None:
        self._stream = stream
        end = b'"}}]}\n\n'
        self._end = b"x" * (size - len(self._start(0)) - len(end)) + end
        self.size = size

    def _start(self, number: int) -> bytes:
        return b'data: {"id":"chatcmpl-%08d","seq":"%010d","choices":[{"index":0,"delta":{"content":"' % (
            self._stream,
            number,
        )

    def __getitem__(self, number: int) -> bytes:
        return self._start(number) + self._end


@final
class EventReader:
    """Checks that a stream's events arrive complete, in order and once, however their bytes are cut."""

    __slots__ = ("_buffer", "_events", "count")

    def __init__(self, events: Events) -> None:
        self._events = events
        self._buffer = b""
        self.count = 0
        """Events received."""

    def feed(self, data: bytes) -> int:
        """Take bytes of the stream; how many events they completed.

        :raises ProbeError: an event is not the one that has to come next.
        """
        buffer = self._buffer + data
        size = self._events.size
        at = 0
        while len(buffer) - at >= size:
            if buffer[at : at + size] != self._events[self.count]:
                raise ProbeError(f"event {self.count} lost, changed or out of order: {buffer[at : at + 100]!r}")
            at += size
            self.count += 1
        self._buffer = buffer[at:]
        return at // size

    def end(self, sent: int) -> None:
        """The stream is over, after `sent` events: :raises ProbeError: unless all of them have arrived."""
        if self._buffer or self.count != sent:
            raise ProbeError(f"{self.count} events and {len(self._buffer)} bytes arrived of {sent} events sent")


@final
class MessageReader:
    """Reads one message after the other, none of which may begin before its predecessor has been answered.

    :param on_body: called with each piece of a body, in order; pieces are cut anywhere.
    """

    __slots__ = ("_after_data", "_buffer", "_chunked", "_in_body", "_last", "_left", "_on_body", "head")

    def __init__(self, on_body: Callable[[bytes], object]) -> None:
        self._on_body = on_body
        self._buffer: bytes = b""
        self.head: bytes = b""
        """The last head read, with its empty line; empty until there is one."""
        self._in_body = False
        self._chunked = False
        self._left = 0
        """Bytes still to come of the body, or of the chunk."""
        self._after_data = False
        """A chunk's data, or the last chunk's size, has been read: an empty line has to follow."""
        self._last = False

    def feed(self, data: bytes) -> bool:
        """Take bytes; whether they ended a message.

        :raises ProbeError: framing that a correct proxy would not send, or bytes beyond the end.
        """
        if not self._in_body:
            data = self._buffer + data
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                if len(data) > _MAX_HEAD:
                    raise ProbeError(f"no end of head in {len(data)} bytes")
                self._buffer = data
                return False
            self._buffer = b""
            self._begin_body(data[:end])
            data = data[end:]
        if self._chunked:
            return self._feed_chunks(data)
        if len(data) > self._left:
            raise ProbeError(f"bytes after the end of a message: {data[self._left :][:100]!r}")
        if data:
            self._left -= len(data)
            self._on_body(data)
        if self._left == 0:
            self._in_body = False
        return not self._in_body

    def _begin_body(self, head: bytes) -> None:
        self.head = head
        length = _CONTENT_LENGTH.search(head)
        self._chunked = length is None and _CHUNKED.search(head) is not None
        self._left = int(length[1]) if length is not None else 0
        self._after_data = self._last = False
        self._in_body = True

    def _feed_chunks(self, data: bytes) -> bool:
        data = self._buffer + data
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._after_data = self._left == 0
                self._on_body(piece)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            line = data[at:end]
            at = end + 2
            if not self._after_data:
                self._left = _chunk_size(line)
                self._after_data = self._last = self._left == 0
            elif line:
                raise ProbeError(f"a chunk does not end where it should: {line[:100]!r}")
            elif self._last:
                if at < len(data):
                    raise ProbeError(f"bytes after the last chunk: {data[at:][:100]!r}")
                self._buffer = b""
                self._in_body = False
                return True
            else:
                self._after_data = False
        self._buffer = data[at:]
        return False


def _chunk_size(line: bytes) -> int:
    if not re.fullmatch(rb"[0-9a-fA-F]{1,16}", line):
        raise ProbeError(f"not a chunk's size: {line[:100]!r}")
    return int(line, 16)
