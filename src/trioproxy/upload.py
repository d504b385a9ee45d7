"""Sending one request to an upstream, beside the wait for its response.

Lives here: how head and body reach the upstream's socket, buffered or streamed, and how far that got. Does not live
here: the response, or what follows when the upload fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import trio

from .body import BufferedBody, StreamedBody
from .errors import Code, ProxyError
from .http1 import LAST_CHUNK, chunk_prefix
from .transport import Buffer, Transport, send_all

_HOLDER: Final = "forwarding"
_AT_ONCE: Final = 1 << 20
"""Bytes sent without yielding, at most: 0.3 ms."""


@final
class Upload:
    """One request on its way up.

    :param stall: seconds that the upstream may take nothing at all.
    """

    __slots__ = ("_body", "_head", "_stall", "_transport", "broken", "complete", "failure", "sent")

    def __init__(self, transport: Transport, head: bytes, body: BufferedBody | StreamedBody, *, stall: float) -> None:
        self._transport = transport
        self._head = head
        self._body = body
        self._stall = stall
        self.sent = 0
        """Bytes handed to the kernel so far, the head included."""
        self.complete = False
        self.broken = False
        """The upstream takes no more; it may have answered before."""
        self.failure: ProxyError | None = None
        """Why the request cannot be completed, where waiting for an answer makes no sense."""

    def start_nowait(self) -> None:
        """Hand over what can be without waiting, up to a bound: nearly always all of a buffered request."""
        body = self._body
        try:
            if isinstance(body, StreamedBody):
                self.sent = self._transport.send_nowait([self._head])
            elif len(body):
                with body.lease(_HOLDER) as lease:
                    self.sent = self._transport.send_nowait([self._head, lease.view])
                    self._go_on_nowait(lease.view)
                self.complete = self.sent == len(self._head) + len(body)
            else:
                self.sent = self._transport.send_nowait([self._head])
                self.complete = self.sent == len(self._head)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.broken = True

    def _go_on_nowait(self, view: memoryview) -> None:
        """One call sends a bounded piece; a second task for the rest would cost more than a few more calls."""
        done = self.sent - len(self._head)
        while 0 <= done < len(view) and self.sent < _AT_ONCE:
            with view[done:] as rest:
                count = self._transport.send_nowait([rest])
            if not count:
                return
            done += count
            self.sent += count

    async def run(self) -> None:
        """Send the rest. Never raises: how it ended is in ``complete``, ``broken`` and ``failure``."""
        try:
            if self.sent < len(self._head):
                await self._send([self._head[self.sent :]])
            if isinstance(self._body, StreamedBody):
                await self._send_streamed(self._body)
            else:
                await self._send_buffered(self._body)
            self.complete = True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.broken = True
        except trio.TooSlowError:
            self.failure = ProxyError(
                Code.SEND_TIMEOUT, f"the upstream took nothing of the request for {self._stall:g} s"
            )
        except ProxyError as error:
            self.failure = error.with_traceback(None)

    async def _send_buffered(self, body: BufferedBody) -> None:
        done = self.sent - len(self._head)
        if done < len(body):
            with body.lease(_HOLDER) as lease:
                while done < len(body):
                    # A slice is a view of its own: it must have ended before the body is released.
                    with lease.view[done:] as rest, trio.fail_after(self._stall):
                        count = await self._transport.send_some([rest])
                    done += count
                    self.sent += count

    async def _send_streamed(self, body: StreamedBody) -> None:
        while pieces := await body.next_pieces():
            if body.expected is None:
                await self._send([chunk_prefix(sum(map(len, pieces))), *pieces, b"\r\n"])
            else:
                await self._send(pieces)
        if body.expected is None:
            await self._send([LAST_CHUNK])

    async def _send(self, buffers: Sequence[Buffer]) -> None:
        await send_all(self._transport, buffers, stall=self._stall)
        self.sent += sum(map(len, buffers))
