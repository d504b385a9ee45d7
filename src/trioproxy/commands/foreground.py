"""A server in the foreground: what it prints, and the signals that end it.

Lives here: printing, listening with a message that says where, SIGINT, SIGTERM and SIGHUP. Does not live here:
arguments.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, TypeVar, final

import click
import trio

from ..configfile import Place
from ..net import Listener

_T = TypeVar("_T")
_HANGUPS: Final = tuple(number for number in signal.Signals if number.name == "SIGHUP")
"""The signal that asks to read files again; none on Windows."""
_UNWINDING: Final = 5.0
"""Seconds that stopping may take beyond the grace before the process ends itself: a thread cannot be cancelled."""


def say(message: str, *, err: bool = False, nl: bool = True) -> None:
    """Print, if anybody listens: a log collector that went away must not end the proxy."""
    with contextlib.suppress(OSError):
        click.echo(message, err=err, nl=nl)


@final
class Announce(trio.TaskStatus[_T]):
    """Prints that a server has started."""

    def __init__(self, announce: Callable[[_T], None]) -> None:
        self._announce = announce

    def started(self, value: _T | None = None) -> None:
        """Called by the server once it listens."""
        if value is not None:
            self._announce(value)


async def open_listeners(places: Sequence[Place]) -> list[Listener]:
    """Listen at all of the places, or at none."""
    found: list[Listener] = []
    for place in places:
        try:
            with listening(place.shown):
                found += await place.listeners()
        except BaseException:
            for listener in found:
                listener.close()
            raise
    return found


class _CannotListenError(Exception):
    """Says where, and why."""


@contextlib.contextmanager
def listening(where: str) -> Generator[None]:
    """Say where, if what is done in here cannot listen there."""
    try:
        yield
    except OSError as error:
        raise _CannotListenError(f"cannot listen on {where}: {error.strerror or error}") from None
    except UnicodeError:
        raise _CannotListenError(f"cannot listen on {where}: that is not a host name") from None


def run_until_signal(
    run: Callable[[], Awaitable[None]],
    stop: Callable[[], tuple[str, float]] | None,
    reload: Callable[[], None] | None,
) -> None:
    """Run a server until it ends, or a signal ends it.

    :param stop: asks the server to end and returns what to print and the seconds that it may take; None for a server
        that the first signal cancels.
    :param reload: reads again what can be read again, on SIGHUP; None leaves that signal alone.
    """
    failure: _CannotListenError | None = None

    async def run_beside_signals() -> None:
        nonlocal failure
        async with trio.open_nursery() as nursery:
            await nursery.start(_watch_signals, nursery.cancel_scope, stop)
            if reload is not None and _HANGUPS:
                await nursery.start(_watch_hangups, reload)
            try:
                await run()
            except _CannotListenError as error:
                failure = error
            nursery.cancel_scope.cancel()

    # What comes before the receiver stands, or after it is gone, must not end the process half-way.
    for number in (signal.SIGINT, signal.SIGTERM, *(_HANGUPS if reload is not None else ())):
        signal.signal(number, signal.SIG_IGN)
    trio.run(run_beside_signals)
    if failure is not None:
        raise click.ClickException(str(failure))


async def _watch_signals(  # noqa: ASYNC114 - no block uses it as a context
    scope: trio.CancelScope,
    stop: Callable[[], tuple[str, float]] | None,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    # Not by KeyboardInterrupt, which can land inside any synchronous update.
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop is None:
                _exit_after(_UNWINDING)
                scope.cancel()
            else:
                message, seconds = stop()
                say(message)
                _exit_after(seconds + _UNWINDING)
                stop = None


async def _watch_hangups(reload: Callable[[], None], *, task_status: trio.TaskStatus[None]) -> None:  # noqa: ASYNC114
    with trio.open_signal_receiver(*_HANGUPS) as signals:
        task_status.started()
        async for _ in signals:
            reload()


def _exit_after(seconds: float) -> None:
    """End the process by force if it has not ended by then; never, if that is infinite."""
    if seconds > threading.TIMEOUT_MAX:
        return

    def give_up() -> None:
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        say(f"gave up waiting for threads that do not return: {names}", err=True)
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
