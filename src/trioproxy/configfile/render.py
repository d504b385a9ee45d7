"""A configuration as a commented file.

Lives here: writing every key that there is, with its docstring above it. Does not live here: what keys there are
(schema).
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Final, cast

from .mistakes import Path
from .model import FileConfig
from .scalars import Scalar, TomlValue
from .schema import Key, Kind, ListKind, MapKind, TableKind, table_kind

_WIDTH: Final = 100
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_HEADER: Final = """\
Every key of trioproxy's configuration, with what holds where the file does not say it; "#" stands before an example of
what has no default. Durations are "400ms", "5s", "2m", "1h" or "off", sizes "16MiB", "64KiB", "1GB"; either may be a
plain number, with the unit in the key: connect_ms = 400, body_size_mib = 16. In any text, ${NAME} and
${NAME:-default} are taken from the environment ("$${" is a plain "${"), and "file:PATH" is the content of a file. Paths
count from the folder of this file."""


def render(config: FileConfig) -> str:
    """The file that says this; reading it gives the same configuration."""
    return "\n".join([*_comment(_HEADER), *_table(table_kind(FileConfig), config, ())]) + "\n"


def _table(kind: TableKind, table: object, path: Path) -> Iterator[str]:
    """The keys of a table, then the tables in it: what stands after a header belongs to that."""
    values = _values(kind, table)
    keys = kind.all_keys().values()
    for key in keys:
        if not isinstance(key.kind, TableKind | MapKind):
            yield from _key(key, values[key.name])
    for key in keys:
        if isinstance(key.kind, TableKind):
            yield from ("", *_comment(key.doc), f"[{_dotted((*path, key.name))}]")
            yield from _table(key.kind, values[key.name], (*path, key.name))
        elif isinstance(key.kind, MapKind):
            yield from _map(key.kind, cast("Mapping[str, object]", values[key.name]), (*path, key.name))


def _map(kind: MapKind, tables: Mapping[str, object], path: Path) -> Iterator[str]:
    if not tables:
        yield from ("", *_comment(kind.item.doc), f"#[{_dotted((*path, 'default'))}]")
        for line in _table(kind.item, kind.item.make(), (*path, "default")):
            yield line if not line or line.startswith("#") else f"#{line}"
    for name, table in tables.items():
        yield from ("", *_comment(kind.item.doc), f"[{_dotted((*path, name))}]")
        yield from _table(kind.item, table, (*path, name))


def _values(kind: TableKind, table: object) -> dict[str, object]:
    found: dict[str, object] = {name: getattr(table, name) for name in kind.keys}
    for name, flat in kind.flat.items():
        found |= _values(flat, getattr(table, name))
    return found


def _key(key: Key, value: object) -> Iterator[str]:
    yield ""
    yield from _comment(key.doc)
    if value in (None, ()):
        yield f"#{key.name} = {_example(key.kind)}"
    else:
        yield f"{key.name} = {_written(key.kind, value)}"


def _example(kind: Kind) -> str:
    return f"[{_toml(kind.item.example)}]" if isinstance(kind, ListKind) else _toml(cast("Scalar", kind).example)


def _written(kind: Kind, value: object) -> str:
    if isinstance(kind, ListKind):
        return f"[{', '.join(_toml(kind.item.write(item)) for item in cast('tuple[object, ...]', value))}]"
    return _toml(cast("Scalar", kind).write(value))


def _toml(value: TomlValue) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    return _quoted(value.replace("${", "$${"))


def _quoted(text: str) -> str:
    # A JSON string is one of TOML's, but for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _dotted(path: Path) -> str:
    return ".".join(str(part) if _BARE.fullmatch(str(part)) else _quoted(str(part)) for part in path)


def _comment(text: str) -> Iterator[str]:
    for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
        yield f"# {line}"
