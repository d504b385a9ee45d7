"""Single values of a configuration file: how each kind is written.

Lives here: reading one value of TOML, and writing it. Does not live here: tables, lists, keys, and where a value
came from.

A kind of value is an object with a ``must`` (what a value must do, in words), a ``read`` and a ``write``. A field of
the model names its own by ``Annotated``; plain ``str``, ``int``, ``bool``, ``Path`` and ``Literal`` have theirs here.
"""

from __future__ import annotations

import difflib
import pathlib
from dataclasses import dataclass
from typing import Annotated, Final, Protocol, TypeVar, final

from ..topology import check_path
from ..units import Quantity
from ..upstream.endpoint import Endpoint
from .places import Place

TomlValue = str | int | float | bool


class Scalar(Protocol):
    """One kind of value."""

    @property
    def must(self) -> str:
        """What a value must do: ``be text``, for example. Is printed in place of a value that is not to be shown."""
        ...

    @property
    def example(self) -> TomlValue:
        """A value, as the file has it."""
        ...

    def read(self, value: object, base: pathlib.Path) -> object:
        """What the file's value means.

        :param base: the folder of the file.
        :raises ValueError: it is not of this kind; with what it must do.
        """
        ...

    def write(self, value: object) -> TomlValue:
        """How the file has it."""
        ...


_T = TypeVar("_T")


def _expect(value: object, kind: type[_T], must: str) -> _T:
    """The value, if TOML has it as this type."""
    if not isinstance(value, kind):
        raise ValueError(f"must {must}")  # noqa: TRY004 - it is the operator's value, not a caller's
    return value


@final
@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    must: str = "be text in quotes"
    example: str = "text"

    def read(self, value: object, base: pathlib.Path) -> str:
        """As it is."""
        return _expect(value, str, self.must)

    def write(self, value: object) -> str:
        """As it is."""
        return str(value)


@final
@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    must: str = "be true or false, without quotes"
    example: bool = True

    def read(self, value: object, base: pathlib.Path) -> bool:
        """As it is."""
        return _expect(value, bool, self.must)

    def write(self, value: object) -> bool:
        """As it is."""
        return bool(value)


@final
@dataclass(frozen=True, slots=True)
class Count:
    """A whole number of things."""

    must: str = "be a whole number above 0, without quotes"
    example: int = 1

    def read(self, value: object, base: pathlib.Path) -> int:
        """As it is."""
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"must {self.must}")
        return value

    def write(self, value: object) -> TomlValue:
        """As it is."""
        assert isinstance(value, int)
        return value


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def must(self) -> str:
        """Lists the words."""
        return "be " + " or ".join(f'"{word}"' for word in self.words)

    @property
    def example(self) -> str:
        """The first one."""
        return self.words[0]

    def read(self, value: object, base: pathlib.Path) -> str:
        """The word."""
        if value in self.words:
            return str(value)
        near = difflib.get_close_matches(str(value).lower(), self.words, 1)
        raise ValueError(f"must {self.must}" + (f"; did you mean '{near[0]}'?" if near else ""))

    def write(self, value: object) -> str:
        """The word."""
        return str(value)


@final
@dataclass(frozen=True, slots=True)
class FilePath:
    """The path of a file; a relative one counts from the folder of the configuration file."""

    must: str = "be the path of a file, in quotes"
    example: str = "/etc/trioproxy/file.pem"

    def read(self, value: object, base: pathlib.Path) -> pathlib.Path:
        """Resolved against the base."""
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(f"must {self.must}")
        return base / value

    def write(self, value: object) -> str:
        """As it is."""
        return str(value)


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """A duration or a size with its unit."""

    quantity: Quantity

    @property
    def must(self) -> str:
        """Lists the units."""
        return self.quantity.must

    @property
    def example(self) -> str:
        """With a unit."""
        return self.quantity.example

    def read(self, value: object, base: pathlib.Path) -> float:
        """Seconds or bytes."""
        return self.quantity.parse(_expect(value, str, self.must))

    def write(self, value: object) -> str:
        """With its unit."""
        assert isinstance(value, int | float)
        return self.quantity.write(value)


@final
@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    must: str = 'be an address to listen at, such as "127.0.0.1:8080", "unix:/run/trioproxy.sock" or "systemd"'
    example: str = "127.0.0.1:8080"

    def read(self, value: object, base: pathlib.Path) -> Place:
        """The place."""
        return Place.parse(_expect(value, str, self.must))

    def write(self, value: object) -> str:
        """As it is typed."""
        assert isinstance(value, Place)
        return value.shown


@final
@dataclass(frozen=True, slots=True)
class EndpointUrl:
    """The URL of a model server."""

    must: str = (
        "be the URL of a model server: http://HOST:PORT, https://HOST:PORT or unix:/PATH, without a path after it"
    )
    example: str = "http://127.0.0.1:8000"

    def read(self, value: object, base: pathlib.Path) -> str:
        """As it is."""
        url = _expect(value, str, self.must)
        Endpoint(url)
        return url

    def write(self, value: object) -> str:
        """As it is."""
        return str(value)


@final
@dataclass(frozen=True, slots=True)
class Pattern:
    """A path that clients ask for, or the beginning of several."""

    must: str = "be a path such as /v1/embeddings, or its beginning and a star: /v1/*"
    example: str = "/v1/audio/*"

    def read(self, value: object, base: pathlib.Path) -> str:
        """As it is."""
        return check_path(_expect(value, str, self.must))

    def write(self, value: object) -> str:
        """As it is."""
        return str(value)


@final
@dataclass(frozen=True, slots=True)
class RequestPath:
    """What is asked of an endpoint."""

    must: str = "be a path, such as /health"
    example: str = "/health"

    def read(self, value: object, base: pathlib.Path) -> str:
        """As it is."""
        return _expect(value, str, self.must)

    def write(self, value: object) -> str:
        """As it is."""
        return str(value)


@final
@dataclass(frozen=True, slots=True)
class Fraction:
    """A part of a whole."""

    must: str = "be a number from 0 to 1, without quotes"
    example: float = 0.5

    def read(self, value: object, base: pathlib.Path) -> float:
        """As it is."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"must {self.must}")
        return float(value)

    def write(self, value: object) -> TomlValue:
        """As it is."""
        assert isinstance(value, float)
        return value


PLAIN: Final[dict[object, Scalar]] = {
    str: Text(),
    bool: Flag(),
    int: Count(),
    pathlib.Path: FilePath(),
    Place: Address(),
}
"""The kinds of types that need no annotation."""

Url = Annotated[str, EndpointUrl()]
PathPattern = Annotated[str, Pattern()]
