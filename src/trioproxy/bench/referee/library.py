"""``measure``: the referee inside a Trio program, for a proxy that runs in the same process.

Lives here: the one function for those who embed a proxy. Does not live here: the measurement (cancel.py), the count of
tasks (tasks.py).
"""

from __future__ import annotations

from .cancel import CancelPlan, CancelRun, Progress, ServeProxy
from .report import CancelReport

__all__ = ["CancelPlan", "CancelReport", "ServeProxy", "measure"]


def _silent(text: str) -> None:
    """Tell nobody."""


async def measure(serve: ServeProxy, plan: CancelPlan, *, progress: Progress = _silent) -> CancelReport:
    """Judge a proxy that runs in this process.

    Client, model server and proxy share one event loop, so times include each other's work; outcomes do not. What only
    this can tell is ``tasks_alive_*``: requests are played one after the other, and the tasks that each leaves behind
    are counted 0, 10 and 100 ms after its end. There is no drain, and no CPU share.

    :param serve: ``async def serve(upstream, *, task_status)``: run a proxy in front of the model server at
        ``upstream`` (host, port), call ``task_status.started((host, port))`` when it listens, go on until cancelled.
    :param plan: as for the command line; its ``proxy`` and ``command`` are not used.
    :raises BaseExceptionGroup: ``serve`` has failed.

    Everything is ended when this returns or is cancelled.
    """
    run = CancelRun(plan, progress, serve=serve)
    await run.run()
    return run.report({"command": "trioproxy.bench.referee.library.measure"})
