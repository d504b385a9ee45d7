"""The shape of a configuration file, taken from the types of its model.

Lives here: which keys a table has, of which kind each is, and what its docstring says. Does not live here: values.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Final, Literal, Union, final, get_args, get_origin, get_type_hints

from ..config import SHARE, TARGET
from ..units import Quantity
from .scalars import PLAIN, Choice, Fraction, Measured, RequestPath, Scalar

FLAT: Final = "flat"
"""Annotates a field whose keys stand in the table around it."""
RESTART: Final = "restart"
"""Annotates a field that a running proxy cannot change."""


_MARKED: Final[Mapping[object, Scalar]] = {SHARE: Fraction(), TARGET: RequestPath()}


@final
@dataclass(frozen=True, slots=True)
class ListKind:
    """A list of values of one kind."""

    item: Scalar


@final
@dataclass(frozen=True, slots=True)
class MapKind:
    """Tables that have names."""

    item: TableKind


@final
@dataclass(frozen=True, slots=True)
class TableKind:
    """A table, which becomes an object of a dataclass."""

    make: type
    keys: Mapping[str, Key]
    flat: Mapping[str, TableKind]
    """Fields of the dataclass whose keys are this table's."""
    doc: str

    def all_keys(self) -> dict[str, Key]:
        """Its keys by name, with those of flat fields."""
        found = dict(self.keys)
        for kind in self.flat.values():
            found |= kind.all_keys()
        return found


Kind = Scalar | ListKind | MapKind | TableKind


@final
@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table."""

    name: str
    kind: Kind
    doc: str
    restart: bool
    """Whether a change takes a restart."""

    @property
    def spellings(self) -> dict[str, str]:
        """The names that it has with a unit at their end, with that unit: ``idle_ms``."""
        if not isinstance(self.kind, Measured):
            return {}
        return {f"{self.name}_{ending}": unit for unit, ending in self.kind.quantity.endings.items()}


@functools.cache
def table_kind(make: type) -> TableKind:
    """The table that is read into a dataclass."""
    hints = get_type_hints(make, include_extras=True)
    docs = field_docs(make)
    keys: dict[str, Key] = {}
    flat: dict[str, TableKind] = {}
    for item in fields(make):
        hint: object = hints[item.name]
        kind = _kind(hint)
        if isinstance(kind, TableKind) and FLAT in get_args(hint):
            flat[item.name] = kind
        else:
            doc = docs.get(item.name) or (kind.doc if isinstance(kind, TableKind) else "")
            keys[item.name] = Key(item.name, kind, doc, restart=RESTART in get_args(hint))
        if item.default is MISSING and item.default_factory is MISSING:
            raise TypeError(f"{make.__name__}.{item.name} needs a default")
    return TableKind(make, keys, flat, _one_line(inspect.cleandoc(make.__doc__ or "").partition("\n\n")[0]))


def _kind(hint: object) -> Kind:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for note in args[1:]:
            if isinstance(note, Quantity):
                return Measured(note)
            if note in _MARKED:
                return _MARKED[note]
            if note not in (FLAT, RESTART):
                assert not isinstance(note, str)
                scalar: Scalar = note
                return scalar
        return _kind(args[0])
    if origin in (Union, types.UnionType) and args[1:] == (type(None),):
        return _kind(args[0])
    if origin is Literal:
        return Choice(tuple(str(word) for word in args))
    if origin is tuple and args[1:] == (Ellipsis,):
        item = _kind(args[0])
        if not isinstance(item, ListKind | MapKind | TableKind):
            return ListKind(item)
    if origin is Mapping and args[0] is str:
        table = _kind(args[1])
        if isinstance(table, TableKind):
            return MapKind(table)
    if isinstance(hint, type) and is_dataclass(hint):
        return table_kind(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    raise TypeError(f"a configuration file cannot hold {hint!r}")


def field_docs(make: type) -> dict[str, str]:
    """The docstring below each field of a class, as one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(make)))
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            doc: object = ast.literal_eval(after.value)
            found[field.target.id] = _one_line(str(doc))
    return found


def _one_line(doc: str) -> str:
    return " ".join(doc.replace("``", "`").split())
