"""Durations and sizes, as people write them.

Lives here: the units, reading ``"400ms"`` or ``"16MiB"`` into a number, and writing a number so. Does not live here:
which setting is which.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from operator import itemgetter
from typing import Annotated, Final, final

_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,40})?) ?([A-Za-z]+)")
_MOST: Final = 10**15
_OFF: Final = ("off", "inf")


@final
@dataclass(frozen=True, slots=True, eq=False)  # by identity, since hints that have it must be hashable
class Quantity:
    """A number that has a unit.

    :param noun: what it is, for messages.
    :param example: one, as it is written.
    :param units: what each unit is worth, the smallest first.
    :param endings: what a key ends with whose value is a plain number, for each of the units.
    :param whole: whether it must be a whole number of at least 1; else it is at least 0, and may be infinite.
    """

    noun: str
    example: str
    units: Mapping[str, Decimal]
    endings: Mapping[str, str]
    whole: bool

    @property
    def must(self) -> str:
        """What a value must do to be one."""
        off = "" if self.whole else ', or "off"'
        return f'be a {self.noun} such as "{self.example}" ({", ".join(self.units)}){off}'

    def parse(self, text: str) -> float:
        """Read text such as ``16MiB``.

        :raises ValueError: it is not such text, with what it must be.
        """
        if text in _OFF and not self.whole:
            return math.inf
        found = _AMOUNT.fullmatch(text)
        if found is None or found[2] not in self.units:
            raise ValueError(f"must {self.must}")
        return self._checked(Decimal(found[1]) * self.units[found[2]])

    def of_number(self, number: float, unit: str) -> float:
        """Read a plain number of this unit.

        :raises ValueError: it cannot be one.
        """
        if number == math.inf and not self.whole:
            return math.inf
        if not 0 <= number < _MOST:
            raise ValueError(f"must be a number of {unit} {'above 0' if self.whole else 'that is at least 0'}")
        return self._checked(Decimal(repr(number)) * self.units[unit])

    def _checked(self, amount: Decimal) -> float:
        if not self.whole:
            return float(amount)
        if amount < 1 or amount % 1:
            raise ValueError("must be a whole number of bytes above 0")
        return int(amount)

    def write(self, number: float) -> str:
        """The text for a number, in the largest unit that it is a whole number of."""
        if math.isinf(number):
            return _OFF[0]
        amount = Decimal(repr(number))
        for unit, worth in sorted(self.units.items(), key=itemgetter(1), reverse=True):
            if amount >= worth and Fraction(amount) % Fraction(worth) == 0:
                return f"{Fraction(amount) / Fraction(worth)}{unit}"
        unit, worth = next(iter(self.units.items()))
        return f"{amount / worth:f}{unit}"


DURATION: Final = Quantity(
    noun="duration",
    example="30s",
    units={"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)},
    endings={"ms": "ms", "s": "s", "m": "m", "h": "h"},
    whole=False,
)
SIZE: Final = Quantity(
    noun="size",
    example="16MiB",
    units={
        "B": Decimal(1),
        "kB": Decimal(10**3),
        "KiB": Decimal(2**10),
        "MB": Decimal(10**6),
        "MiB": Decimal(2**20),
        "GB": Decimal(10**9),
        "GiB": Decimal(2**30),
    },
    endings={"B": "bytes", "kB": "kb", "KiB": "kib", "MB": "mb", "MiB": "mib", "GB": "gb", "GiB": "gib"},
    whole=True,
)

Seconds = Annotated[float, DURATION]
Bytes = Annotated[int, SIZE]
