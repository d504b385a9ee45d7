"""Tasks that outlive their request, in a proxy that runs in this process.

Lives here: a trio Instrument that knows the tasks below one task, and the count of those that a request has left.
Does not live here: starting the proxy (library.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Final, final

import trio

from .report import TasksAlive

_LOOKS: Final = (0.0, 0.01, 0.1)
"""Seconds after a request's end."""
WATCHED: Final = _LOOKS[-1]


@final
class TaskWatch(trio.abc.Instrument):
    """The tasks below ``root``, wherever they were spawned; to be given to ``trio.lowlevel.add_instrument``.

    A task belongs to a request if it was spawned after the request began. So requests are to be played one after the
    other, and what a pool starts for a connection that it keeps counts too, unless it was there before.
    """

    __slots__ = ("_alive", "_most", "_names", "_root")

    def __init__(self) -> None:
        self._root: trio.lowlevel.Task | None = None
        self._alive: set[trio.lowlevel.Task] = set()
        self._most = [0] * len(_LOOKS)
        self._names: Counter[str] = Counter()

    def watch_below(self, root: trio.lowlevel.Task) -> None:
        """Watch what is spawned below this task from now on."""
        self._root = root

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Trio tells of a new task."""
        nursery = task.parent_nursery
        if nursery is not None and (nursery.parent_task is self._root or nursery.parent_task in self._alive):
            self._alive.add(task)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        """Trio tells of a task's end."""
        self._alive.discard(task)

    def alive(self) -> Set[trio.lowlevel.Task]:
        """Those that run now."""
        return frozenset(self._alive)

    async def request_ended(self, before: Set[trio.lowlevel.Task]) -> None:
        """Look 0, 10 and 100 ms after a request's end, which is now; returns after the last look.

        :param before: the tasks that ran when the request began.
        """
        ended = trio.current_time()
        left: Set[trio.lowlevel.Task] = frozenset()
        for number, after in enumerate(_LOOKS):
            await trio.sleep_until(ended + after)
            left = self._alive - before
            self._most[number] = max(self._most[number], len(left))
        self._names.update(task.name for task in left)

    def result(self) -> TasksAlive:
        """So far."""
        return TasksAlive(
            after_0_ms=self._most[0],
            after_10_ms=self._most[1],
            after_100_ms=self._most[2],
            names=dict(self._names),
        )
