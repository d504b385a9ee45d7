"""The client of the demo: one streamed completion over one real socket.

Lives here: asking with a prompt of any size, reading tokens, leaving. It shares no HTTP with the proxy that it looks
at (h11 frames and parses), and holds one piece of the prompt, however large that is. Does not live here: what is
asked, when the client leaves, or what follows from it.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, final

import h11
import msgspec
import trio

PATH: Final = "/v1/chat/completions"
_PIECE: Final = b"All work and no play makes a prompt. " * 1772
"""What the prompt is made of, just under 64 KiB: the same bytes again and again."""
_RECEIVE: Final = 65536


class _Delta(msgspec.Struct, frozen=True, gc=False):
    content: str = ""


class _Choice(msgspec.Struct, frozen=True, gc=False):
    delta: _Delta = _Delta()


class _Chunk(msgspec.Struct, frozen=True, gc=False):
    choices: list[_Choice] = []


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


@final
class DemoClient:
    """A client with one request; as an ``async with`` block it closes its connection at the end.

    :param stream: connected to the proxy.
    """

    __slots__ = ("_events", "_http", "_stream", "broken", "complete", "done", "in_order", "status", "tokens")

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._events = b""
        self.status: int | None = None
        self.tokens = 0
        self.in_order = True
        """Whether each token was the one after the token before: none lost, doubled or reordered."""
        self.done = False
        """The stream said that it was over."""
        self.complete = False
        """HTTP's framing says that not a byte is missing."""
        self.broken: str | None = None
        """Why nothing more can be read, if the connection or the response broke."""

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> DemoClient:
        """Open a connection.

        :raises OSError: nobody listens there. Cancelled, nothing is left open.
        """
        return cls(await trio.open_tcp_stream(*address))

    async def ask(self, name: str, *, size: int, prefill: float, interval: float, tokens: int) -> None:
        """Send the request. Never raises: see ``broken``.

        :param name: the id under which the model server keeps its record.
        :param size: bytes of the body, exactly.
        :param prefill: seconds from the last byte of the body to the first token.
        :param interval: seconds from one token to the next.
        """
        metadata = {"prefill": prefill, "interval": interval, "tokens": tokens}
        start = msgspec.json.encode({"model": "demo", "stream": True, "metadata": metadata, "messages": []})
        start = start.removesuffix(b"]}") + b'{"role":"user","content":"'
        end = b'"}]}'
        missing = size - len(start) - len(end)
        headers = [
            ("host", "demo"),
            ("content-type", "application/json"),
            ("content-length", str(size)),
            ("x-request-id", name),
        ]
        pending = self._http.send(h11.Request(method="POST", target=PATH, headers=headers))
        pending += self._http.send(h11.Data(data=start))
        try:
            while missing > len(_PIECE):
                await self._stream.send_all(pending + self._http.send(h11.Data(data=_PIECE)))
                missing -= len(_PIECE)
                pending = b""
            last = self._http.send(h11.Data(data=_PIECE[:missing] + end)) + self._http.send(h11.EndOfMessage())
            await self._stream.send_all(pending + last)
        except trio.BrokenResourceError as error:
            self.broken = f"the connection broke under the request ({error})"

    async def read(self, tokens: int | None = None) -> None:
        """Read until that many tokens have come in all; None reads to the end. Never raises: see ``broken``.

        :param tokens: fewer come if the response ends or breaks before.
        """
        try:
            while not self.complete and (tokens is None or self.tokens < tokens):
                event = self._http.next_event()
                match event:
                    case h11.NEED_DATA:
                        self._http.receive_data(await self._stream.receive_some(_RECEIVE))
                    case h11.Response():
                        self.status = event.status_code
                    case h11.Data():
                        self._take(bytes(event.data))
                    case h11.EndOfMessage():
                        self.complete = True
                    case h11.ConnectionClosed() | h11.PAUSED:
                        self.broken = "the connection ended without a response"
                        return
                    case _:
                        pass
        except (trio.BrokenResourceError, h11.RemoteProtocolError, msgspec.MsgspecError) as error:
            self.broken = f"the connection broke under the response ({error})"

    def _take(self, data: bytes) -> None:
        *events, self._events = (self._events + data).split(b"\n\n")
        for event in events:
            payload = event.removeprefix(b"data: ")
            if payload == b"[DONE]":
                self.done = True
                continue
            for choice in _CHUNK.decode(payload).choices:
                if choice.delta.content:
                    # The mock's tokens are their numbers.
                    self.in_order = self.in_order and choice.delta.content.strip() == f"{self.tokens:04d}"
                    self.tokens += 1

    def leave(self) -> float:
        """Close the connection now; returns the time of the call, in seconds on the system's monotonic clock."""
        now = time.monotonic()
        self._stream.socket.close()
        return now

    async def __aenter__(self) -> DemoClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.leave()
