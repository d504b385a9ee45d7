"""What is other in one configuration than in another, by keys.

Lives here: comparing, and which of it takes a restart. Does not live here: values, which are not to be printed.
"""

from __future__ import annotations

from typing import NamedTuple, final

from .load import Loaded, named_files
from .mistakes import Path as KeyPath
from .mistakes import dotted
from .model import FileConfig
from .schema import TableKind, table_kind


@final
class Changes(NamedTuple):
    """Names of keys, such as ``deadlines.idle``."""

    applied: list[str]
    """What can be other while the proxy serves; files that have other contents too."""
    after_restart: list[str]


def changes(old: Loaded, new: Loaded) -> Changes:
    """What the new configuration says that the old one did not."""
    found = Changes([], [])
    _compare(table_kind(FileConfig), old.config, new.config, (), found)
    if (old.tls.server is None) != (new.tls.server is None):
        for name in [name for name in found.applied if name.startswith("tls.")]:
            found.applied.remove(name)
            found.after_restart.append(name)
    for path in sorted(named_files(old.config) & named_files(new.config)):
        if old.files[path] != new.files[path]:
            found.applied.append(f"the content of {path}")
    return found


def _compare(kind: TableKind, old: object, new: object, path: KeyPath, found: Changes) -> None:
    for name, key in kind.keys.items():
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(key.kind, TableKind):
            _compare(key.kind, before, after, (*path, name), found)
        elif before != after:
            (found.after_restart if key.restart else found.applied).append(dotted((*path, name)))
    for name, flat in kind.flat.items():
        _compare(flat, getattr(old, name), getattr(new, name), path, found)
