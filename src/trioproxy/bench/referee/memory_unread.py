"""A client that does not read: how much of a long stream a proxy takes from the model server for it.

Lives here: one such stream. Does not live here: how its memory is sampled (memory_samples.py).
"""

from __future__ import annotations

from typing import Final

import trio

from .memory_lab import PATIENCE, Lab
from .memory_metrics import UnreadResult
from .play import CONTROL
from .records import Outcome

_TOKEN: Final = 64 * 1024
"""Bytes of a token's text."""


async def unread(lab: Lab, size: int, hold: float, body: int) -> UnreadResult:
    """Have ``size`` bytes sent to a client that reads nothing for ``hold`` seconds. Cancelled, it is closed.

    :param body: bytes of the request's body.
    :raises TargetError: the proxy ends.
    """
    idle = await lab.idle(body)
    tokens = max(1, size // _TOKEN)
    more: dict[str, object] = {"tokens": tokens, "token_bytes": _TOKEN, "interval": 0.0}
    request = lab.request(CONTROL, body, more)
    flowing: int | None = None
    try:
        lab.phase("unread stream")
        lab.sampler.peak = idle
        with lab.counted():
            await request.begin()
            await trio.sleep(hold)
            held = lab.sampler.peak - idle
            taken = _TOKEN * sum(record.tokens for record in lab.run.play.index.seen(request.id))
            lab.phase("read again")
            lab.sampler.peak = idle
            with trio.move_on_after(PATIENCE):
                await request.finish()
            flowing = lab.sampler.peak - idle
    except BaseException:
        request.close()
        raise
    record = request.record()
    lab.note([record])
    return UnreadResult(
        process=lab.number,
        size=tokens * _TOKEN,
        held=held,
        taken=taken,
        flowing=flowing,
        why=None if record.outcome is Outcome.WHOLE else record.why,
    )
