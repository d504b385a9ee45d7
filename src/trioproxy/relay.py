"""The relay: from an upstream's response to the client, until its end, an error, or an abort.

Lives here: the one function through which every response body goes. Does not live here: deadlines, outcomes, or
what follows from them.

``feed`` decides without waiting what a read becomes on the client's connection; ``run`` does the reading and
the writing around it. Each read reaches the client's socket before the next read is awaited, so that nothing piles
up behind a client that does not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, final

import trio

from .downstream import ResponseWriter
from .errors import Code, ProxyError
from .http1 import BodyDecoder
from .transport import Buffer, Transport

_MANY: Final = 64
"""Chunks in one read after which others get their turn: decoding one costs a microsecond, whatever its size."""


class Pace(Protocol):
    """Whoever watches over the deadlines of a relay."""

    def progress(self) -> None:
        """A piece of the body was passed on."""
        ...

    def blocked(self) -> None:
        """The client does not take what is there for it; the relay waits for it now."""
        ...

    def resumed(self) -> None:
        """The client has taken it; the relay goes on."""
        ...


class Observer(Protocol):
    """Whoever follows a response body."""

    def feed(self, data: bytes) -> None:
        """See the next bytes. Never raises."""
        ...


class Transformer(Protocol):
    """Whoever changes a response body on its way."""

    def take(self, pieces: list[bytes], *, last: bool) -> list[bytes]:
        """The bytes to pass on for these, and for the end of the body if they are the last. Never raises."""
        ...


@final
class Relay:
    """One response body on its way.

    :param source: the upstream's connection.
    :param observer: sees each piece after it was sent, as it came; None for nobody.
    :param transformer: decides what becomes of each before; None passes it on as it came.
    """

    __slots__ = ("_decoder", "_observer", "_pace", "_pieces", "_source", "_transformer", "_writer", "clean")

    def __init__(
        self,
        source: Transport,
        decoder: BodyDecoder,
        writer: ResponseWriter,
        observer: Observer | None,
        pace: Pace,
        transformer: Transformer | None = None,
    ) -> None:
        self._source = source
        self._decoder = decoder
        self._writer = writer
        self._observer = observer
        self._pace = pace
        self._transformer = transformer
        self._pieces: Sequence[bytes] = ()
        self.clean = True
        """Whether the body ended by its own framing and not a byte came after it."""

    def feed(self, data: bytes) -> list[Buffer]:
        """What ``data`` from the upstream becomes for the client; empty data is the end of its connection.

        :raises ProxyError: ``BAD_RESPONSE``: the framing is broken; ``UPSTREAM_CLOSED``: the body was cut short.
        """
        decoder = self._decoder
        if not data:
            decoder.end_of_file()
            self.clean = False
            return self._frame([], last=True)
        pieces, consumed = decoder.decode(data)
        self._pieces = pieces
        if consumed < len(data):
            self.clean = False
        return self._frame(pieces, last=decoder.done)

    def _frame(self, pieces: list[bytes], *, last: bool) -> list[Buffer]:
        if self._transformer is not None:
            pieces = self._transformer.take(pieces, last=last)
        return self._writer.frame(pieces, last=last)

    async def run(self, head: bytes, rest: bytes) -> None:
        """Send the head and what came with it, then the body until it ends.

        :raises ProxyError: the upstream failed in the middle.
        :raises ClientGone: so did the client.
        :raises ClientStalled: the client takes nothing.
        """
        decoder, writer, observer = self._decoder, self._writer, self._observer
        try:
            buffers: list[Buffer] = [head, *(self.feed(rest) if rest else writer.frame([], last=decoder.done))]
        except ProxyError:
            writer.withdraw()
            raise
        while True:
            unsent = writer.send_nowait(buffers)
            if unsent:
                self._pace.blocked()
                await writer.send(unsent)
                self._pace.resumed()
            pieces, self._pieces = self._pieces, ()
            if observer is not None and pieces:
                # After the send, so that no observer can delay it; one step for a read, however many chunks it had.
                observer.feed(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if pieces:
                self._pace.progress()
            if decoder.done:
                writer.complete = True
                return
            if len(pieces) >= _MANY:
                await trio.lowlevel.checkpoint()
            try:
                data = await self._source.receive()
            except trio.BrokenResourceError as error:
                code = Code.UPSTREAM_VANISHED if self._source.vanished else Code.UPSTREAM_CLOSED
                raise ProxyError(code, f"the upstream broke off its response: {error}") from None
            buffers = self.feed(data)
