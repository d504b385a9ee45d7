"""Noticing that the files of a configuration have other contents.

Lives here: which folders are watched, and when a change counts. Does not live here: what is done about one.

Folders are watched, not files: an editor, ``mv`` and Kubernetes put another file, or another symbolic link, in the
place of the old one. What counts is that contents are other than before: a folder has other files too, and one change
of a file makes several events.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Set
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

import trio

_logger: Final = logging.getLogger("trioproxy")
_SETTLE: Final = 200
"""Milliseconds in which events count as one."""
_LOOK: Final = 1.0
"""Seconds between looks without any event: network file systems send none, and what is before the watch has none."""
_MOST_LINKS: Final = 16

Digests = Mapping[Path, str]
"""What stands for the content of each file; empty for one that cannot be read."""


def digests(files: Set[Path]) -> Digests:
    """The digests of files, now."""
    return {path: _digest(path) for path in files}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


async def watch_files(files: Callable[[], Digests], changed: Callable[[], None]) -> None:
    """Call ``changed`` whenever files have other contents, until cancelled.

    :param files: those to watch, with what they were when they were read; asked again after each change.
    """
    seen = files()
    told = False

    def look() -> None:
        nonlocal seen
        now = digests(files().keys())
        if now not in (seen, files()):  # else nothing has changed, or somebody else has had it read
            changed()
        # What has changed while it was read is another change.
        seen = {path: now.get(path, digest) for path, digest in files().items()}

    while True:
        folders = _folders(seen)
        async with _events(folders) as events:
            try:
                async for _ in events:
                    look()
                    if _folders(seen) != folders:
                        break
            except (OSError, RuntimeError) as error:  # the latter is what watchfiles makes of some of the former
                if not told:
                    told = True
                    _logger.warning("cannot watch %s: %s; looking every %g s", _shown(folders), error, _LOOK)
                await trio.sleep(_LOOK)
                look()


@asynccontextmanager
async def _events(folders: Set[Path]) -> AsyncGenerator[AsyncIterator[object]]:
    """What happens in these folders, and something every few seconds."""
    from watchfiles import awatch  # only a proxy with a file needs it

    stop = trio.Event()

    async def stop_when_cancelled() -> None:
        # The thread that waits for events looks at this alone.
        try:
            await trio.sleep_forever()
        finally:
            stop.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_when_cancelled)
        events = awatch(
            *folders,
            watch_filter=None,
            debounce=_SETTLE,
            recursive=False,
            rust_timeout=round(1000 * _LOOK),
            yield_on_timeout=True,
            stop_event=stop,
        )
        async with aclosing(events):
            yield events
        nursery.cancel_scope.cancel()


def _folders(files: Iterable[Path]) -> set[Path]:
    """Where another file can come to stand for one of these: its own folder, and that of each link on the way."""
    return {hop.parent.resolve() for path in files for hop in _hops(path) if hop.parent.is_dir()}


def _hops(path: Path) -> Iterator[Path]:
    for _ in range(_MOST_LINKS):
        yield path
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()


def _shown(folders: Iterable[Path]) -> str:
    return ", ".join(sorted(map(str, folders)))
