"""TOML's values to the model's, with every mistake on the way.

Lives here: keys, lists, tables, and what is said of each that is wrong. Does not live here: single values (scalars),
the shape of the file (schema), and the syntax of TOML.
"""

from __future__ import annotations

import difflib
import json
import pathlib
from collections.abc import Mapping
from typing import Any, Final, cast, final

from ..config import SettingError
from .locate import Locations
from .mistakes import Mistake, Path, dotted
from .scalars import Count, FilePath, Flag, Measured, Scalar
from .schema import Key, Kind, ListKind, MapKind, TableKind
from .substitute import resolve

_SHOWN: Final = 60
_NAMES: Final[dict[type, str]] = {dict: "a table", list: "a list"}


@final
class _Failed:
    """In place of a value that is wrong; the mistake has been noted."""


_FAILED: Final = _Failed()
_Table = Mapping[str, object]


@final
class Decoder:
    """Reads one file.

    :param locations: of the text that it was.
    :param base: its folder.
    :param environ: the environment.
    """

    def __init__(self, locations: Locations, base: pathlib.Path, environ: Mapping[str, str]) -> None:
        self.mistakes: list[Mistake] = []
        self.hidden: dict[Path, str] = {}
        """What the file says where values came from elsewhere: those are not to be printed."""
        self.files: set[pathlib.Path] = set()
        """Files that values came from."""
        self._locations = locations
        self._base = base
        self._environ = environ
        self._root: TableKind | None = None

    def decode(self, kind: TableKind, data: _Table) -> object | None:
        """The object that the whole file describes; None if anything is wrong, which is in ``mistakes`` then."""
        self._root = kind
        value = self._table(kind, data, ())
        return None if self.mistakes else value

    def mistake(self, path: Path, what: str) -> None:
        """Note what is wrong at a path."""
        self.mistakes.append(Mistake(self._locations.line(path), path, what))

    def _value(self, kind: Kind, value: object, path: Path) -> object:
        if isinstance(kind, ListKind):
            return self._list(kind, value, path)
        if isinstance(kind, MapKind):
            return self._map(kind, value, path)
        if isinstance(kind, TableKind):
            return self._table(kind, value, path)
        return self._scalar(kind, value, path)

    def _scalar(self, kind: Scalar, raw: object, path: Path) -> object:
        hidden = False
        value = raw
        try:
            if isinstance(raw, str) and not isinstance(kind, Count | Flag):
                if isinstance(kind, FilePath) and raw.startswith("file:"):
                    raise ValueError(f'{raw!r}: this key is a path already; leave "file:" out')
                resolved = resolve(raw, self._environ, self._base)
                value, hidden = resolved.text, resolved.hidden
                if resolved.file is not None:
                    self.files.add(resolved.file)
            return self._read(kind, value, raw, path, hidden=hidden)
        except ValueError as error:
            self.mistake(path, str(error))
            return _FAILED

    def _read(self, kind: Scalar, value: object, raw: object, path: Path, *, hidden: bool) -> object:
        if hidden:
            self.hidden[path] = str(raw)
        try:
            return kind.read(value, self._base)
        except ValueError as error:
            if hidden:
                raise ValueError(f"must {kind.must}; its value comes from {raw!r} and is not shown") from None
            told = str(error)
            if isinstance(kind, Measured) and isinstance(value, int | float) and not isinstance(value, bool):
                told += _with_unit(kind, path, value)
            if "got" not in told and told.startswith("must "):
                must, semicolon, hint = told.partition("; ")
                told = f"{must}, got {_shown(value)}{semicolon}{hint}"
            raise ValueError(told) from None

    def _list(self, kind: ListKind, value: object, path: Path) -> object:
        if not isinstance(value, list):
            example = json.dumps(kind.item.example if isinstance(value, dict) else value, default=str)
            self.mistake(path, f"must be a list, in brackets: {path[-1]} = [{example}]")
            return _FAILED
        items = [
            self._scalar(kind.item, item, (*path, number)) for number, item in enumerate(cast("list[object]", value))
        ]
        return _FAILED if any(item is _FAILED for item in items) else tuple(items)

    def _map(self, kind: MapKind, value: object, path: Path) -> object:
        if not isinstance(value, dict):
            self.mistake(path, f"must be tables with names, such as [{dotted(path)}.default], got {_shown(value)}")
            return _FAILED
        tables = {
            name: self._table(kind.item, item, (*path, name)) for name, item in cast("dict[str, object]", value).items()
        }
        return _FAILED if any(table is _FAILED for table in tables.values()) else tables

    def _table(self, kind: TableKind, value: object, path: Path) -> object:
        if not isinstance(value, dict):
            self.mistake(path, f"must be a table: write [{dotted(path)}] and its keys below, got {_shown(value)}")
            return _FAILED
        before = len(self.mistakes)
        values = self._keys(kind.all_keys(), cast("dict[str, object]", value), path)
        failed = len(self.mistakes) > before
        return _FAILED if failed else self._made(kind, values, path)

    def _keys(self, keys: Mapping[str, Key], data: _Table, path: Path) -> dict[str, object]:
        spellings = {spelling: (key, unit) for key in keys.values() for spelling, unit in key.spellings.items()}
        values: dict[str, object] = {}
        names: dict[str, str] = {}
        """What the file calls each key."""
        for name, raw in data.items():
            here = (*path, name)
            unit = None
            if name in keys:
                key = keys[name]
            elif name in spellings:
                key, unit = spellings[name]
            else:
                self.mistake(here, f"unknown key; {self._nearest(name, [*keys, *spellings], path, keys)}")
                continue
            if key.name in names:
                other = names[key.name]
                line = self._locations.line((*path, other))
                self.mistake(here, f"the same as {other!r} in line {line}; keep one of them")
                continue
            names[key.name] = name
            values[key.name] = self._value(key.kind, raw, here) if unit is None else self._number(key, unit, raw, here)
        return values

    def _number(self, key: Key, unit: str, raw: object, path: Path) -> object:
        assert isinstance(key.kind, Measured)
        if not isinstance(raw, int | float) or isinstance(raw, bool):
            example = key.kind.example
            self.mistake(
                path, f'must be a plain number of {unit}, or be called {key.name} = "{example}", got {_shown(raw)}'
            )
            return _FAILED
        try:
            return key.kind.quantity.of_number(raw, unit)
        except ValueError as error:
            self.mistake(path, f"{error}, got {_shown(raw)}")
            return _FAILED

    def _made(self, kind: TableKind, values: dict[str, object], path: Path) -> object:
        """The object; what is wrong with its values together is told of the key that the object names."""
        arguments = {name: value for name, value in values.items() if name in kind.keys}
        for name, flat in kind.flat.items():
            made = self._made(flat, {key: value for key, value in values.items() if key in flat.all_keys()}, path)
            if made is _FAILED:
                return _FAILED
            arguments[name] = made
        make = cast("Any", kind.make)
        try:
            return make(**arguments)
        except SettingError as error:
            where = self._spelled(kind.keys[error.name], path)
            shown = "" if where in self.hidden else f", got {self._written(kind, error.name, values)}"
            self.mistake(where, f"must {error.must}{shown}")
            return _FAILED

    def _spelled(self, key: Key, path: Path) -> Path:
        for name in (key.name, *key.spellings):
            if (*path, name) in self._locations.lines:
                return (*path, name)
        return (*path, key.name)

    @staticmethod
    def _written(kind: TableKind, name: str, values: Mapping[str, object]) -> str:
        scalar = cast("Scalar", kind.keys[name].kind)
        return _shown(scalar.write(values[name])) if name in values else "its default"

    def _nearest(self, name: str, known: list[str], path: Path, keys: Mapping[str, Key]) -> str:
        plain = name.lower().replace("-", "_")
        assert self._root is not None
        elsewhere = [other for other in _tables_with(self._root, plain) if other != path]
        elsewhere = [other for other in elsewhere if len(other) == min(map(len, elsewhere))]
        if plain in known:
            return f"did you mean '{plain}'?"
        if elsewhere:
            where = " or ".join(_header(other) for other in elsewhere)
            return f"{plain!r} belongs {where}"
        near = difflib.get_close_matches(plain, known, 1)
        if near:
            return f"did you mean '{near[0]}'?"
        return f"there are: {', '.join(keys)}"


def _header(path: Path) -> str:
    return f"in [{dotted(path)}]" if path else "at the top, before the first [table]"


def _tables_with(kind: TableKind, name: str, path: Path = ()) -> list[Path]:
    """The tables that have a key of this name."""
    found: list[Path] = []
    for key in kind.all_keys().values():
        if name == key.name or name in key.spellings:
            found.append(path)
        if isinstance(key.kind, TableKind):
            found += _tables_with(key.kind, name, (*path, key.name))
        elif isinstance(key.kind, MapKind):
            found += _tables_with(key.kind.item, name, (*path, key.name, "default"))
    return found


def _with_unit(kind: Measured, path: Path, number: float) -> str:
    """What to write instead of a number without a unit."""
    unit, ending = next((unit, end) for unit, end in kind.quantity.endings.items() if kind.quantity.units[unit] == 1)
    return f'; write {path[-1]} = "{number}{unit}" or {path[-1]}_{ending} = {number}'


def _shown(value: object) -> str:
    for kind, name in _NAMES.items():
        if isinstance(value, kind):
            return name
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool | int | float) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
