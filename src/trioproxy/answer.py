"""Waiting for the head of a response.

Lives here: heads from an upstream's connection, the interim ones passed on, the final one returned. Does not live here:
the deadline of the wait, and what a failure means for the request.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

import trio

from .downstream import ResponseWriter
from .errors import Code, Fault, ProxyError
from .http1 import HeadReader, ResponseHead, read_response_head
from .runtime import Runtime
from .transport import Transport

_MAX_INTERIM: Final = 5


class Answer(NamedTuple):
    """The final head of a response, and what came after it in the same read."""

    head: ResponseHead
    rest: bytes


@final
class AnswerReader:
    """Reads the heads of the response to one request.

    :param writer: gets the interim responses.
    :param method: of the request.
    """

    __slots__ = ("_interim", "_method", "_reader", "_runtime", "_transport", "_why", "_writer", "silent")

    def __init__(self, runtime: Runtime, transport: Transport, writer: ResponseWriter, method: bytes) -> None:
        self._runtime = runtime
        self._transport = transport
        self._writer = writer
        self._method = method
        self._reader = HeadReader(runtime.head_limits, fault=Fault.UPSTREAM)
        self._interim = 0
        self._why: str | None = None
        self.silent = True
        """Whether not a byte has come yet."""

    async def receive(self) -> Answer:
        """Wait for the final head.

        :raises ProxyError: ``UPSTREAM_CLOSED``, ``UPSTREAM_VANISHED`` or ``BAD_RESPONSE``.
        :raises ClientGone: the client left while an interim response was passed on.
        :raises ClientStalled: it did not take that.
        """
        while True:  # noqa: ASYNC913 - the transport yields after a bounded amount of work
            answer = await self.take(await self.read())
            if answer is not None:
                return answer

    async def read(self) -> bytes:
        """The next bytes, empty at the end. Cancelled, it has taken nothing, and can be called again.

        :raises ProxyError: ``UPSTREAM_VANISHED``.
        """
        try:
            return await self._transport.receive()
        except trio.BrokenResourceError as error:
            self._why = str(error)
            if self._transport.vanished:
                raise ProxyError(
                    Code.UPSTREAM_VANISHED, "the upstream's host stopped answering before the upstream had"
                ) from None
            return b""

    async def take(self, data: bytes) -> Answer | None:
        """Go on with what :meth:`read` has returned; None as long as the final head is not complete.

        Raises as :meth:`receive` does. Cancelled, an interim response may have been sent in part.
        """
        if not data:
            raise ProxyError(
                Code.UPSTREAM_CLOSED, "the upstream closed the connection before it had answered", detail=self._why
            )
        self.silent = False
        reader, runtime = self._reader, self._runtime
        raw = reader.feed(data)
        while raw is not None:
            head = read_response_head(raw, runtime.parser, runtime.head_limits, request_method=self._method)
            rest = reader.take_rest()
            if head.status >= 200:
                return Answer(head, rest)
            self._count_interim(head)
            if head.status != 100:  # what it asks for, the client has been asked for already
                await self._writer.send_interim(head)
            raw = reader.feed(rest)
        return None

    def _count_interim(self, head: ResponseHead) -> None:
        self._interim += 1
        if head.status == 101:
            raise ProxyError(Code.BAD_RESPONSE, "the upstream switched protocols though nobody asked it to")
        if self._interim > _MAX_INTERIM:
            raise ProxyError(Code.BAD_RESPONSE, f"the upstream sent more than {_MAX_INTERIM} interim responses")
