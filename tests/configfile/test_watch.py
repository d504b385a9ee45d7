"""Files that change, as editors, ``mv`` and Kubernetes change them.

Real files: what the system tells of them is the point.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

import pytest
import trio

from trioproxy.configfile.watch import Digests, digests, watch_files


@final
class Watched:
    """Files that are watched, and how often they have been other."""

    def __init__(self, *files: Path) -> None:
        self.files: Digests = digests(set(files))
        self.count = 0
        self._changed = trio.Event()

    def note(self) -> None:
        """They are other than they were."""
        self.count += 1
        self._changed.set()

    def read(self) -> None:
        """Take them as they are now, as a reader that likes them does."""
        self.files = digests(set(self.files))
        self.note()

    async def change(self) -> None:
        """Wait for the next one."""
        with trio.fail_after(20):
            await self._changed.wait()
        self._changed = trio.Event()


@asynccontextmanager
async def watching(*files: Path) -> AsyncGenerator[Watched]:
    """Watch for the length of the block, which ends soon after it ends."""
    watched = Watched(*files)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, lambda: watched.files, watched.read)
        yield watched
        cancelled = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() < cancelled + 2  # and not the seconds that the thread waits for events


def in_place(file: Path, text: str) -> None:
    file.write_text(text)


def by_rename(file: Path, text: str) -> None:
    other = file.with_name("other.tmp")
    other.write_text(text)
    other.replace(file)


def by_unlinking(file: Path, text: str) -> None:
    file.unlink()
    file.write_text(text)


@pytest.mark.parametrize("change", [in_place, by_rename, by_unlinking])
async def test_a_file_that_is_replaced(change: Callable[[Path, str], None], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    async with watching(file) as watched:
        for text in ("two", "three"):
            change(file, text)
            await watched.change()
            while watched.files[file] != digests({file})[file]:
                await watched.change()
    assert file.read_text() == "three"


async def test_what_has_the_same_content_is_no_change(tmp_path: Path) -> None:
    file, beside = tmp_path / "file", tmp_path / "beside"
    file.write_text("one")
    async with watching(file) as watched:
        for _ in range(3):
            by_rename(file, "one")
            beside.write_text("another file")
            await trio.sleep(0.1)
        by_rename(file, "two")
        await watched.change()
        assert watched.count == 1


async def test_links_as_kubernetes_swaps_them(tmp_path: Path) -> None:
    """``file`` is a link to ``..data/file``, and ``..data`` one to a folder: that one is replaced."""
    for number in (1, 2, 3):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "file").write_text(f"content {number}")
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "file"
    file.symlink_to("..data/file")
    async with watching(file) as watched:
        for number in (2, 3):
            (tmp_path / "..tmp").symlink_to(f"..{number}")
            os.replace(tmp_path / "..tmp", tmp_path / "..data")
            await watched.change()
            assert file.read_text() == f"content {number}"
    assert watched.count == 2


async def test_a_link_to_a_file_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trioproxy.configfile.watch._LOOK", 600)  # what is noticed is noticed by an event
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "real").write_text("one")
    (tmp_path / "here").mkdir()
    file = tmp_path / "here" / "file"
    file.symlink_to(elsewhere / "real")
    async with watching(file) as watched:
        for number in range(8):  # those before the watch stands have no event
            by_rename(elsewhere / "real", f"again {number}")
            with trio.move_on_after(0.5):
                await watched.change()
        assert watched.count > 4


async def test_a_change_that_its_reader_refuses_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    watched = Watched(file)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, lambda: watched.files, watched.note)
        file.write_text("wrong")
        await watched.change()
        (tmp_path / "beside").write_text("an event")
        await trio.sleep(0.5)
        assert watched.count == 1
        file.write_text("right")
        await watched.change()
        nursery.cancel_scope.cancel()


async def test_a_file_that_was_changed_before_the_watch_began(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    watched = Watched(file)
    file.write_text("two")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, lambda: watched.files, watched.read)
        await watched.change()
        nursery.cancel_scope.cancel()


async def test_where_nothing_can_be_watched_it_is_said_once_and_looked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("OS file watch limit reached.")

    monkeypatch.setattr("trioproxy.configfile.watch._LOOK", 0.05)
    monkeypatch.setattr("watchfiles.main.RustNotify", refuse)
    file = tmp_path / "file"
    file.write_text("one")
    async with watching(file) as watched:
        await trio.sleep(0.2)
        file.write_text("two")
        await watched.change()
    assert caplog.text.count("cannot watch") == 1
