"""Clients that leave, over real sockets, where TLS or a unix socket lies in between: the same stages, the same bounds.

The stages and the ways are those of test_cancellation.py, which has all of them over plain TCP.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from trioproxy import Settings

from .test_cancellation import (
    STREAMED,
    Bench,
    Client,
    Scheme,
    Way,
    bench,
    early_head,
    mid_stream,
    prefill,
    read_ahead_full,
    uploading_streamed,
)

STAGES: Final[dict[str, tuple[Callable[[Bench], Awaitable[Client]], Settings]]] = {
    "uploading, streamed": (uploading_streamed, STREAMED),
    "before the head": (prefill, Settings()),
    "after an early head": (early_head, Settings()),
    "mid-stream": (mid_stream, Settings()),
    "full read-ahead": (read_ahead_full, Settings()),
}
LINKS: Final[list[tuple[bool, Scheme]]] = [(True, "http"), (False, "https"), (False, "unix"), (True, "https")]


GOODBYE: Final = None
"""A way that only TLS has; a FIN by itself cuts it."""
LEAVING: Final = [
    pytest.param(tls, scheme, way, id=f"{'https' if tls else 'http'} to {scheme}, {way.value if way else 'goodbye'}")
    for tls, scheme in LINKS
    for way in (Way.FIN, Way.RST, *([GOODBYE] if tls else []))
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("tls", "scheme", "way"), LEAVING)
async def test_upstream_is_freed(tls: bool, scheme: Scheme, way: Way | None, stage: str) -> None:
    reach, settings = STAGES[stage]
    async with bench(settings, tls=tls, scheme=scheme) as scene:
        client = await reach(scene)
        assert scene.outcomes == {}
        if way is None:
            left = time.monotonic()
            await client.stream.aclose()
        else:
            left = await client.leave(way)
        record = await scene.abandoned()
        assert record.abandoned is not None
        assert 0 <= record.abandoned - left < 1
        await scene.settle()
        assert scene.outcomes == {"client_closed": 1}
        await scene.check_next_request()
