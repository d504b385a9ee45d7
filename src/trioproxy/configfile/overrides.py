"""What the command line says beside a file: it wins.

Lives here: putting values into a configuration by their paths. Does not live here: which flag stands for which key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast, final

from .mistakes import Path
from .model import FileConfig
from .schema import TableKind, table_kind


@final
class Override(NamedTuple):
    """A value, and the flag that it came with."""

    flag: str
    value: object


Overrides = Mapping[Path, Override]
"""By the paths that the keys have in the file, such as ``("deadlines", "idle")``."""


def overridden(config: FileConfig, overrides: Overrides) -> FileConfig:
    """The configuration with these values in place of its own.

    :raises SettingError: they do not go together with the others.
    """
    values = {path: override.value for path, override in overrides.items()}
    return cast("FileConfig", _replaced(table_kind(FileConfig), config, values))


def _replaced(kind: TableKind, table: object, values: Mapping[Path, object]) -> object:
    changes: dict[str, object] = {}
    for name, flat in kind.flat.items():
        changes[name] = _replaced(flat, getattr(table, name), values)
    for name, key in kind.keys.items():
        if (name,) in values:
            changes[name] = values[name,]
        elif isinstance(key.kind, TableKind):
            below = {path[1:]: value for path, value in values.items() if path[0] == name}
            changes[name] = _replaced(key.kind, getattr(table, name), below)
    return replace(cast("Any", table), **changes)
