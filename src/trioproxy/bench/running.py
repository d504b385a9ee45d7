"""Running a measurement from the command line: its progress, and what a signal does to it.

Lives here: the only handling of signals in ``trioproxy bench``, and what all commands do once they have a plan. Does
not live here: measuring (referee/).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar, final

import click
import trio

from .outputs import Outputs, emit, options
from .referee.report import EXIT_INTERRUPTED, Report

if TYPE_CHECKING:
    from .referee.document import Document
    from .referee.require import Requirement

Found = TypeVar("Found", bound=Report)
FoundBy = TypeVar("FoundBy", bound=Report, covariant=True)


class Measurement(Protocol[FoundBy]):
    """What is run, and has a report at any time, after a failure too."""

    async def run(self) -> None: ...

    def interrupted(self, by: str) -> None: ...

    def report(self, options: dict[str, object], label: str = "") -> FoundBy: ...


@final
class Progress:
    """One line on a terminal, written over again and again; nothing elsewhere. It has no colours."""

    __slots__ = ("_shown",)

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[K{text[:98]}", err=True, nl=False)

    def end(self) -> None:
        """Take the line away."""
        self("")


def conclude(
    measurement: Measurement[Found],
    document: Callable[[Found], Document],
    required: list[Requirement],
    outputs: Outputs,
    progress: Progress,
) -> NoReturn:
    """Run a measurement, write what it has found, and exit."""
    signal_ = run(measurement.run)
    progress.end()
    if signal_ is not None:
        measurement.interrupted(signal_)
    report = measurement.report(options(), outputs.label)
    report.requirements = [one.check(report.metrics) for one in required]
    emit(report, document(report), outputs)
    sys.exit(EXIT_INTERRUPTED if signal_ is not None else report.status)


def run(main: Callable[[], Awaitable[None]]) -> str | None:
    """Run to the end, or until SIGINT or SIGTERM cancel it; returns the name of that signal.

    A second signal does not wait for what is being stopped.
    """
    caught: list[str] = []
    try:
        trio.run(partial(_guarded, main, caught))
    except* KeyboardInterrupt:
        caught.append(signal.SIGINT.name)
    return caught[0] if caught else None


async def _guarded(main: Callable[[], Awaitable[None]], caught: list[str]) -> None:
    async with trio.open_nursery() as nursery:

        async def watch(*, task_status: trio.TaskStatus[None]) -> None:  # noqa: ASYNC114 - started right below
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                task_status.started()
                async for number in signals:
                    caught.append(signal.Signals(number).name)
                    nursery.cancel_scope.cancel()
                    break

        await nursery.start(watch)
        await main()
        nursery.cancel_scope.cancel()
