"""Asking an endpoint how it does.

Lives here: one probe. Does not live here: when to probe, and what follows from it.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from ..errors import Fault, ProxyError
from ..http1 import HeadLimits, HeadParser, HeadReader, read_response_head, request_head
from ..transport import Transport, send_all
from .pool import Pool

_NAME: Final = b"trioproxy"


async def probe(pool: Pool, path: str, parser: HeadParser, limits: HeadLimits) -> str | None:
    """Send one GET on a connection of its own; None if the answer is below 500, else what is wrong.

    An endpoint that does not have the path (404) is alive. Cancelled, it leaves nothing open.
    """
    transport: Transport | None = None
    try:
        transport = await pool.open()
        await send_all(transport, [_request(pool, path)], stall=math.inf)
        status = await _status(transport, parser, limits)
    except ProxyError as error:
        return error.detail or error.message
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return "it closed the connection"
    finally:
        if transport is not None:
            transport.reset()
    return None if status < 500 else f"it answered with status {status}"


def _request(pool: Pool, path: str) -> bytes:
    endpoint = pool.endpoint
    host = endpoint.url.partition("://")[2] or "localhost"
    fields = [(b"host", host.encode()), (b"user-agent", _NAME), (b"connection", b"close")]
    return request_head(b"GET", path.encode(), fields)


async def _status(transport: Transport, parser: HeadParser, limits: HeadLimits) -> int:
    reader = HeadReader(limits, fault=Fault.UPSTREAM)
    while True:  # noqa: ASYNC913 - the transport yields
        data = await transport.receive()
        if not data:
            raise trio.BrokenResourceError
        raw = reader.feed(data)
        while raw is not None:
            head = read_response_head(raw, parser, limits, request_method=b"GET")
            if head.status >= 200:
                return head.status
            raw = reader.feed(reader.take_rest())
