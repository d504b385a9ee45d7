"""Where in a TOML file each key and each element stands.

Lives here: the lines, and keys that are given twice. Does not live here: values, and what TOML is: ``tomllib`` reads
those and judges the file, but tells no positions. This walks over the same text, and takes for granted that it is TOML;
where it is not, it stops. A test holds the paths that it finds against what ``tomllib`` makes of the same text.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from bisect import bisect_left
from typing import Final, NamedTuple, final

from .mistakes import Path

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_STRING: Final = re.compile(
    r'"""(?:\\.|"{1,2}(?!")|[^"\\])*"{3,5}'
    r"|'''(?:'{1,2}(?!')|[^'])*'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_PLAIN: Final = re.compile(r"[^,\]}#\n]+")
_DOT: Final = re.compile(r"[ \t]*\.[ \t]*")
_EQUALS: Final = re.compile(r"[ \t]*=[ \t]*")


class Twice(NamedTuple):
    """A key or a table that is given again."""

    path: Path
    line: int
    first: int


class _StuckError(Exception):
    """This is no TOML."""


@final
class Locations:
    """The lines of everything in a text.

    ``lines`` has each key, table and element by its path; ``twice`` what is there again; ``last`` is the last path that
    was begun, which is where a text that is no TOML stops being it.
    """

    def __init__(self, text: str) -> None:
        self.lines: dict[Path, int] = {}
        self.twice: list[Twice] = []
        self.last: Path = ()
        self._text = text
        self._at = 0
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._given: dict[Path, int] = {}
        """Keys with a value, and tables with a header: what may come only once."""
        self._elements: dict[Path, int] = {}
        """How many tables each array of tables has so far."""
        with contextlib.suppress(_StuckError):
            self._document()

    def line(self, path: Path) -> int:
        """The line of what is at the path, or of the nearest thing around it; 0 if there is none."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def _document(self) -> None:
        table: Path = ()
        while self._skip(_BLANK) < len(self._text):
            if self._next("[["):
                table = self._header("]]")
            elif self._next("["):
                table = self._header("]")
            else:
                self._assignment(table)

    def _header(self, end: str) -> Path:
        self._skip(_BLANK)
        line = self._line()
        parts = self._key()
        self._skip(_BLANK)
        if not self._next(end):
            raise _StuckError
        path: Path = ()
        for number, part in enumerate(parts):
            path = (*path, part)
            self.lines.setdefault(path, line)
            if number + 1 < len(parts) and path in self._elements:
                path = (*path, self._elements[path] - 1)
        self.last = path
        if end == "]]":
            count = self._elements.get(path, 0)
            self._elements[path] = count + 1
            path = (*path, count)
            self.lines[path] = line
        else:
            self._give(path, line)
        return path

    def _assignment(self, table: Path) -> None:
        line = self._line()
        path = table
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self.last = path
        self._give(path, line)
        self._match(_EQUALS)
        self._value(path)

    def _give(self, path: Path, line: int) -> None:
        if path in self._given:
            self.twice.append(Twice(path, line, self._given[path]))
        self._given.setdefault(path, line)

    def _value(self, path: Path) -> None:
        if self._next("["):
            count = 0
            while self._skip(_BLANK) < len(self._text) and not self._next("]"):
                self.lines[*path, count] = self._line()
                self._value((*path, count))
                count += 1
                self._skip(_BLANK)
                self._next(",")
        elif self._next("{"):
            while self._skip(_BLANK) < len(self._text) and not self._next("}"):
                self._assignment(path)
                self._skip(_BLANK)
                self._next(",")
        elif self._text[self._at : self._at + 1] in ('"', "'"):
            self._match(_STRING)
        else:
            self._match(_PLAIN)

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            if self._text[self._at : self._at + 1] in ('"', "'"):
                parts.append(_unquoted(self._match(_STRING)))
            else:
                parts.append(self._match(_BARE))
            if _DOT.match(self._text, self._at) is None:
                return parts
            self._skip(_DOT)

    def _line(self) -> int:
        return bisect_left(self._newlines, self._at) + 1

    def _next(self, what: str) -> bool:
        """Whether this comes next; it is behind us then."""
        if not self._text.startswith(what, self._at):
            return False
        self._at += len(what)
        return True

    def _skip(self, pattern: re.Pattern[str]) -> int:
        self._match(pattern)
        return self._at

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise _StuckError
        self._at = found.end()
        return found[0]


def _unquoted(text: str) -> str:
    try:
        value: object = tomllib.loads(f"key = {text}")["key"]
    except tomllib.TOMLDecodeError:
        raise _StuckError from None
    return str(value)
