"""Mistakes in a configuration file, as the operator reads them.

Lives here: the form of a message. Does not live here: finding mistakes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, final

Path = tuple[str | int, ...]
"""The way to a value: ``("pools", "default", "endpoints", 0)``."""


def dotted(path: Path) -> str:
    """A path as people write it: ``pools.default.endpoints[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@final
class Mistake(NamedTuple):
    """One thing that is wrong with a file.

    :param line: from 1; 0 for what is missing, or for the file as a whole.
    :param flag: of the command line, if that is where the value came from.
    """

    line: int
    path: Path
    what: str
    flag: str = ""

    def told(self, file: str) -> str:
        """The line to print."""
        if self.flag:
            return f"{self.flag}: {self.what}"
        where = f"{file}:{self.line}" if self.line else file
        return f"{where}: {dotted(self.path)}: {self.what}" if self.path else f"{where}: {self.what}"


@final
class ConfigError(Exception):
    """A file, with what the command line adds, is no configuration: says everything that is wrong, a line each."""

    def __init__(self, file: str, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: mistake.line))
        super().__init__("\n".join(mistake.told(file) for mistake in self.mistakes))
