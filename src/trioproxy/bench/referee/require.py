"""Conditions on figures: ``missed_aborts==0``.

Lives here: reading and checking them. Does not live here: what the figures are (metrics.py, memory.py).
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION: Final = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(==|!=|<=|>=|<|>)\s*([0-9.eE+-]+)\s*")


class Requirement(NamedTuple):
    """A condition that has to hold for a run to succeed."""

    text: str
    name: str
    comparison: str
    bound: float

    @classmethod
    def parse(cls, text: str, names: Collection[str]) -> Requirement:
        """Read one.

        :param names: of the figures that there are.
        :raises ValueError: it is none, with what is wrong.
        """
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not NAME==NUMBER (or !=, <=, >=, <, >), such as missed_aborts==0")
        name, comparison, number = match.groups()
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names)}"
            raise ValueError(f"{name!r} is not a figure{hint}")
        try:
            return cls(text.strip(), name, comparison, float(number))
        except ValueError:
            raise ValueError(f"{number!r} is not a number") from None

    def check(self, metrics: Mapping[str, float | None]) -> Finding:
        """Whether it holds. A figure that was not measured makes no condition hold."""
        value = metrics.get(self.name)
        return Finding(self.text, value, value is not None and _OPERATORS[self.comparison](value, self.bound))


class Finding(NamedTuple):
    """A condition, the figure and whether it holds."""

    text: str
    value: float | None
    holds: bool
