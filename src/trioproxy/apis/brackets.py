"""How deep brackets nest, told by calls into C however dense they are.

Lives here: what ``json_scan`` asks about the brackets of a piece of JSON. Does not live here: strings, keys, state.
"""

from __future__ import annotations

from typing import Final

_NOT_STRUCTURE: Final = bytes(c for c in range(256) if c not in b'[]{}"')
_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_AS_BITS: Final = bytes.maketrans(b"[]", b"10")
_OPENING: Final = b"["[0]


def _excursions() -> tuple[list[int], list[int], list[int]]:
    """For eight brackets as one byte, 1 for an opening one: how far depth moves, falls and rises on the way."""
    moves: list[int] = []
    falls: list[int] = []
    rises: list[int] = []
    for byte in range(256):
        depth, low, high = 0, 0, 0
        for bit in range(7, -1, -1):
            depth += 1 if byte >> bit & 1 else -1
            low, high = min(low, depth), max(high, depth)
        moves.append(depth)
        falls.append(-low)
        rises.append(high)
    return moves, falls, rises


_MOVES, _FALLS, _RISES = _excursions()


def structure_of(parts: list[bytes]) -> bytes:
    """The brackets and quotes of these parts in one string, braces as brackets."""
    return b"".join(parts).translate(_AS_BRACKETS, _NOT_STRUCTURE)


def brackets_outside(parts: list[bytes], starts_inside: bool) -> bytes:
    """The brackets outside strings, braces as brackets, of a text that was split at its quotes."""
    return structure_of(parts[starts_inside::2])


def stays_between(brackets: bytes, closing: int, depth: int, limit: int) -> bool:
    """Whether from this depth on it stays above 0 and within the limit at each bracket; ``closing`` of them close."""
    if closing < depth and depth + len(brackets) - closing <= limit:
        return True
    odd = len(brackets) & 7
    for bracket in brackets[:odd]:
        depth += 1 if bracket == _OPENING else -1
        if not 0 < depth <= limit:
            return False
    if odd == len(brackets):
        return True
    bits = int(brackets[odd:].translate(_AS_BITS), 2).to_bytes(len(brackets) >> 3, "big")
    moves, falls, rises = _MOVES, _FALLS, _RISES
    for eight in bits:
        if not falls[eight] < depth <= limit - rises[eight]:
            return False
        depth += moves[eight]
    return True
