"""Kinds of arguments, and which keys of the configuration file they stand for.

Lives here: reading what is typed. Does not live here: what is done with it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from ..config import Deadlines, Limits
from ..configfile import KeyPath, Kind, Measured, Override, Overrides, Place, parse_address, table_kind
from ..topology import check_path
from ..upstream.endpoint import Endpoint

FILE: Final = click.Path(dir_okay=False, path_type=Path)
SETTINGS: Final[dict[str, type]] = {"deadline": Deadlines, "limit": Limits}
_EXAMPLES: Final = {"deadline": "idle=60 or idle=60s", "limit": "body_size=16MiB or body_size=1048576"}


_REPLACES_TOO: Final[dict[KeyPath, dict[KeyPath, object]]] = {
    ("upstreams",): {("pools",): {}, ("routes",): {}},
    ("tls", "cert"): {("tls", "key"): None},
    ("upstream_tls", "cert"): {("upstream_tls", "key"): None},
}
"""What makes no sense beside a value of the command line, if it comes from the file: another certificate's key."""


class PathType(click.ParamType[str]):
    """A path of requests, or the beginning of several."""

    name = "path"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read one, or fail with what is wrong."""
        try:
            return check_path(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class UrlType(click.ParamType[str]):
    """The URL of a model server."""

    name = "url"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read one URL, or fail with what is wrong."""
        try:
            Endpoint(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class PlaceType(click.ParamType[Place]):
    """``HOST:PORT``, ``unix:PATH`` or ``systemd``."""

    name = "address"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Read one place, or fail with what is wrong."""
        try:
            return value if isinstance(value, Place) else Place.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class HostPort(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT`` (every address of this machine)."""

    name = "host:port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Read one address, or fail with what is wrong."""
        try:
            return parse_address(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def overrides_of(
    values: Mapping[tuple[str, str], object], deadlines: Sequence[str], limits: Sequence[str]
) -> Overrides:
    """What was typed, by the keys of the file.

    :param values: by flag and key, ``("--tls-cert", "tls.cert")``; None or empty where the flag was not given.
    """
    found: dict[KeyPath, Override] = {
        tuple(key.split(".")): Override(flag, value) for (flag, key), value in values.items() if value not in (None, ())
    }
    for path, others in _REPLACES_TOO.items():
        if path in found:
            for other, value in others.items():
                found.setdefault(other, Override(found[path].flag, value))
    for kind, texts in (("deadline", deadlines), ("limit", limits)):
        for name, number in _assignments(kind, texts).items():
            found[f"{kind}s", name] = Override(f"--{kind}", number)
    return found


def _assignments(kind: str, values: Sequence[str]) -> dict[str, float]:
    keys = table_kind(SETTINGS[kind]).keys
    found: dict[str, float] = {}
    for text in values:
        name, _, amount = text.partition("=")
        if name not in keys:
            near = difflib.get_close_matches(name, keys, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(keys)}"
            raise click.BadParameter(f"{name!r} is not a {kind}{hint}", param_hint=f"--{kind}")
        try:
            found[name] = _amount(kind, amount, keys[name].kind)
        except ValueError:
            raise click.BadParameter(
                f"{text!r} is not NAME=NUMBER, such as {_EXAMPLES[kind]}", param_hint=f"--{kind}"
            ) from None
    return found


def _amount(kind: str, text: str, form: Kind) -> float:
    """A number, of seconds or bytes, or one with its unit."""
    try:
        number = float(text)
    except ValueError:
        if isinstance(form, Measured):
            return form.quantity.parse(text)
        raise
    if kind != "limit":
        return number
    if number % 1:
        raise click.UsageError(f"a limit must be a whole number, got {number:g}")
    return int(number)
