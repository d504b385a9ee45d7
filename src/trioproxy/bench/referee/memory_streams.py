"""Streams that stand still: what a proxy holds of each, with bodies of one size.

Lives here: the steps of such a measurement, each with its level of memory. Does not live here: what follows from
several sizes (memory_metrics.py).

The model server holds all streams back by its gate, so each level is of all of them at the same place, for as long as
memory takes to come to rest. The first body is uploaded alone, with the kernel's own peak read around it: how many
copies of a body a proxy makes shows best on one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio

from .memory_lab import PATIENCE, SHORT, Lab, failed, failures
from .memory_metrics import SizeResult
from .memory_samples import HighWater
from .play import CONTROL, Request

_AT_ONCE: Final = 16
_BYTES_AT_ONCE: Final = 32 * 2**20
"""Uploads under way at a time: so many, or so many bytes."""
_FIRST_TOKEN: Final = 3.0
"""Seconds for the clients to have a token that the model server has sent. A proxy that holds it back is measured all
the same: the model server's side decides where a stream stands."""
_POLL: Final = 0.01


class _Levels(NamedTuple):
    """Bytes, the idle proxy's among them."""

    upload_peak: int
    peak_exact: bool
    waiting: int
    retained: int
    standing: int
    """Streams that stood where they should when ``retained`` was read."""


async def hold_streams(lab: Lab, size: int, warm_size: int, streams: int) -> SizeResult:
    """Measure ``streams`` streams with bodies of ``size`` bytes. Cancelled, every connection is closed.

    :raises TargetError: the proxy ends, or forwards nothing.
    """
    idle = await lab.idle(warm_size)
    lab.sampler.peak = idle
    requests = [lab.request(CONTROL, size, SHORT) for _ in range(streams)]
    try:
        levels = await _hold(lab, requests, idle)
    finally:
        lab.run.gate.open()
        records = [request.record() for request in requests if request.times is not None or request.failed]
        lab.note(records)
    peak = lab.sampler.peak
    lab.phase("ended")
    kept = await lab.level(lab.run.after)
    return SizeResult(
        size=size,
        process=lab.number,
        streams=levels.standing,
        failed=sum(map(failed, records)),
        why=failures(records),
        idle_bytes=idle,
        upload_peak_bytes=levels.upload_peak - idle,
        peak_exact=levels.peak_exact,
        peak_bytes=max(peak, levels.upload_peak) - idle,
        waiting_bytes=levels.waiting - idle,
        retained_bytes=levels.retained - idle,
        kept_bytes=kept - idle,
    )


async def _hold(lab: Lab, requests: Sequence[Request], idle: int) -> _Levels:
    gate = lab.run.gate
    gate.hold(0)
    async with trio.open_nursery() as readers:
        lab.phase("uploading one body")
        upload_peak, exact = await _upload_alone(lab, requests[0], readers, idle)
        lab.phase("uploading")
        await _upload(lab, requests[1:], readers)
        lab.phase("waiting")
        waiting = await lab.level()
        gate.hold(1)
        lab.phase("streaming")
        with trio.move_on_after(_FIRST_TOKEN):
            await _until(lambda: all(_has_token(request) for request in requests if not _over(request)))
        retained = await lab.level()
        standing = sum(_stands(lab, request) for request in requests)
        lab.phase("ending")
        gate.open()
        readers.cancel_scope.deadline = trio.current_time() + PATIENCE
    return _Levels(upload_peak, exact, waiting, retained, standing)


async def _upload_alone(lab: Lab, request: Request, readers: trio.Nursery, idle: int) -> tuple[int, bool]:
    """Upload one body; the peak meanwhile, and whether it is the kernel's."""
    assert lab.target.pid is not None
    high = HighWater(lab.target.pid)
    readers.start_soon(_play, lab, request)
    await _arrived(lab, request)
    lab.sampler.take()
    growth = high.growth()
    if growth is None:
        return lab.sampler.peak, False
    return max(lab.sampler.peak, idle + growth), True


async def _upload(lab: Lab, requests: Sequence[Request], readers: trio.Nursery) -> None:
    """Upload bodies, some at a time; returns when the model server has them."""
    if not requests:
        return
    at_once = max(1, min(_AT_ONCE, _BYTES_AT_ONCE // requests[0].payload.length))
    limit = trio.CapacityLimiter(at_once)

    async def one(request: Request) -> None:
        async with limit:
            readers.start_soon(_play, lab, request)
            await _arrived(lab, request)

    with trio.move_on_after(PATIENCE):
        async with trio.open_nursery() as uploads:
            for request in requests:
                uploads.start_soon(one, request)


async def _play(lab: Lab, request: Request) -> None:
    with lab.counted():
        await request.begin()
        await request.finish()


async def _arrived(lab: Lab, request: Request) -> None:
    """Wait until the model server has the request, or nobody waits for its answer any more."""
    with trio.move_on_after(PATIENCE):
        await _until(lambda: _over(request) or _is_there(lab, request))


def _is_there(lab: Lab, request: Request) -> bool:
    return any(record.body_read is not None for record in lab.run.play.index.seen(request.id))


def _over(request: Request) -> bool:
    return request.failed or (request.client is not None and request.client.over)


def _has_token(request: Request) -> bool:
    return request.response.tokens > 0


def _stands(lab: Lab, request: Request) -> bool:
    """Whether the model server has sent it a token and more will come."""
    return not _over(request) and any(record.tokens > 0 for record in lab.run.play.index.seen(request.id))


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - both sides' facts change without an event
        await trio.sleep(_POLL)
