"""Finding a few top-level fields of one JSON object while its bytes pass by.

Lives here: a sans-I/O scanner that is fed pieces of a body, copies out the raw text of the wanted fields and keeps
nothing else, so that a prompt of any size is looked at without being decoded and without being held.
Does not live here: what a field means (``openai``), nor the grammar of JSON beyond what finding a field takes.

It is fast whatever the input because each thing done per byte or per token is one call into C per piece:

1. Escapes that hide a quote are overwritten by two neutral bytes. Every quote left delimits a string, and offsets
   still fit the piece as it came.
2. ``split`` at the quotes gives what is outside strings and what is inside, in turn.
3. Of the outside only brackets are kept. Counting them gives the depth at the end of the piece; where a count cannot
   tell whether the object ended on the way, a table takes eight brackets a step.
4. A wanted key is a string equal to its name. Only where there is one are the depths in between looked at.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, final

from trioproxy.apis.brackets import brackets_outside, stays_between, structure_of

STEP: Final = 65536
"""Bytes looked at in one go. More is cut into steps: the lists that ``split`` makes can take 16 times as much."""

DEPTH_LIMIT: Final = 256
"""Deeper is unreadable. pydantic's JSON parser stops at 200 and Python's near 1,000, so no server is asked less."""

OCCURRENCE_LIMIT: Final = 8
"""How many occurrences of one key are collected: enough to see that it is repeated, too few to fill memory."""

TOO_LONG: Final = b""
"""Stands for a value that is there but over the limit. No JSON text is empty."""

_SPACE: Final = b" \t\n\r"
_COLON, _QUOTE = b':"'
_AFTER_KEY: Final = frozenset({b":", b" ", b"\t", b"\n", b"\r", b""})
_ANY_DEPTH: Final = 1 << 62
_WINDOW: Final = 256
_NEUTRAL: Final = b"\x01"

_SPACES: Final = re.compile(rb"[ \t\n\r]*+")
_SCALAR: Final = re.compile(rb'[^",:\[\]{} \t\n\r]*+')
_TO_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:"[^"]*+"[^"\[\]{}]*+)*+([\[\]{}])')
_KEYS: Final = re.compile(rb"[ !#-\[\]-~]*+")


def _end_of(pattern: re.Pattern[bytes], text: bytes, begin: int) -> int:
    """Where a run of what the pattern matches ends."""
    match = pattern.match(text, begin)
    return begin if match is None else match.end()


def _unescape(strings: list[bytes]) -> list[bytes]:
    """Undo the escapes that a key may be spelled with (\\u0000 to \\u00ff); the others become something that is no key.

    For all strings at once, since a body may be made of nothing but escaped keys. Python's own escapes serve: each
    ``\\u00`` becomes ``\\x``, after all that Python might take for an escape, and the quote that joins, is gone.
    """
    joined = b'"'.join(strings).replace(b"\x02", _NEUTRAL).replace(b"\\u0022", _NEUTRAL)
    escaped = joined.replace(b"\\u00", b"\x02").replace(b"\\", _NEUTRAL).replace(b"\x02", b"\\x")
    return escaped.decode("unicode_escape", "replace").encode("latin-1", "replace").split(b'"')


@final
class ScanState(enum.Enum):
    """What the bytes as a whole are."""

    OBJECT = "object"
    """One JSON object with nothing but white space around it, as far as the scan can tell: strings and brackets
    pair up in number. What stands between them is not checked."""
    UNREADABLE = "unreadable"
    """Anything else: empty, truncated, not an object, a byte order mark, UTF-16, too deep, something after the end."""


@final
@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan found."""

    state: ScanState
    values: dict[str, list[bytes]]
    """For each wanted key that occurs, the JSON text of its values, in order: copies of their own, ``TOO_LONG`` for
    one over the limit, the first ``OCCURRENCE_LIMIT`` of them. Empty if the body is unreadable."""
    offsets: dict[str, list[int]]
    """Where each of them begins: bytes from the start of the body."""
    opening: int
    """Where the object itself does."""


@final
class _Stage(enum.Enum):
    """How far the scan has come, at the top level."""

    BEFORE = "before the object"
    INSIDE = "inside the object"
    AFTER = "after the object"
    DEAD = "not an object"


@final
class _Want(enum.Enum):
    """What the value that is being collected waits for."""

    NOTHING = "no value is being collected"
    COLON = "a colon, else the string was no key"
    VALUE = "the first byte of the value"
    STRING = "the closing quote"
    SCALAR = "what ends a number or a literal"
    CONTAINER = "the closing bracket"


@final
class TopLevelScanner:
    """An incremental scanner of one JSON object.

    :param wanted: the keys whose values are collected: printable ASCII without quote and backslash. Escaped
        spellings of them in the body count as well (RFC 8259 section 8.3).
    :param value_limit: bytes of JSON text above which a value is noted but not kept.
    :param scalars_only: keep no array or object either, and so save the walk to its end.
    :param depth_limit: brackets open at once above which the body is unreadable.
    :raises ValueError: for a key that this scanner cannot look for.
    """

    __slots__ = (
        "_base",
        "_begin",
        "_depth",
        "_depth_limit",
        "_escaped",
        "_in_string",
        "_key_limit",
        "_name",
        "_offsets",
        "_opening",
        "_partial",
        "_scalars_only",
        "_stage",
        "_value",
        "_value_depth",
        "_value_in_string",
        "_value_limit",
        "_values",
        "_want",
        "_wanted",
    )

    def __init__(
        self,
        wanted: frozenset[bytes],
        *,
        value_limit: int = 65536,
        depth_limit: int = DEPTH_LIMIT,
        scalars_only: bool = False,
    ) -> None:
        if not wanted.isdisjoint((b"",)) or not _KEYS.fullmatch(b"".join(wanted)):
            raise ValueError(f"a key that is empty, not printable ASCII, or has a quote or a backslash: {wanted!r}")
        self._wanted = set(wanted)
        self._value_limit = value_limit
        self._depth_limit = depth_limit
        self._scalars_only = scalars_only
        self._key_limit = 6 * max(map(len, wanted), default=0)

        self._stage = _Stage.BEFORE
        self._base: int = 0
        """Bytes of the body before the piece at hand."""
        self._opening: int = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._partial = b""
        """The beginning of a string that the last piece cut, as much of it as a key could need."""

        self._values: dict[str, list[bytes]] = {}
        self._want = _Want.NOTHING
        self._offsets: dict[str, list[int]] = {}
        self._name = b""
        self._begin: int = 0
        """Where the value at hand begins in the body."""
        self._value = bytearray()
        self._value_depth = 0
        self._value_in_string = False

    def __repr__(self) -> str:
        return f"<TopLevelScanner {self._stage.value}, depth {self._depth}>"

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Look at the next bytes of the body.

        Raises nothing for any content. Afterwards ``data`` may be freed, resized or overwritten. A piece of 64 KiB
        takes 3 µs inside a string, 20 to 150 µs of text, and under 1 ms for shapes made to be slow.
        """
        if self._stage is _Stage.DEAD:
            return
        if len(data) <= STEP:
            self._step(bytes(data))
            return
        with memoryview(data) as view:
            for begin in range(0, len(data), STEP):
                with view[begin : begin + STEP] as piece:
                    self._step(bytes(piece))

    def finish(self) -> ScanResult:
        """Say what was found, once all bytes have been fed."""
        if self._stage is _Stage.AFTER:
            return ScanResult(ScanState.OBJECT, self._values, self._offsets, self._opening)
        return ScanResult(ScanState.UNREADABLE, {}, {}, 0)

    def _step(self, raw: bytes) -> None:
        end = self._base + len(raw)
        if self._stage is _Stage.INSIDE:
            self._scan(raw)
        elif self._stage is _Stage.BEFORE:
            raw = raw.lstrip(_SPACE)
            if raw.startswith(b"{"):
                self._stage = _Stage.INSIDE
                self._depth = 1
                self._opening = end - len(raw)
                self._base = self._opening + 1
                self._scan(raw[1:])
            elif raw:
                self._die()
        elif self._stage is _Stage.AFTER and raw.strip(_SPACE):
            self._die()
        self._base = end

    def _die(self) -> None:
        self._stage = _Stage.DEAD
        self._want = _Want.NOTHING
        self._values = {}
        self._offsets = {}
        self._value = bytearray()
        self._partial = b""

    def _scan(self, raw: bytes) -> None:
        if not raw:
            return
        if self._in_string and b'"' not in raw:
            self._pass_inside_string(raw)
            return
        text = self._neutralise(raw)
        parts = text.split(b'"')
        ends_inside = self._in_string ^ (len(parts) & 1 == 0)
        brackets = brackets_outside(parts, self._in_string)
        closing = brackets.count(b"]")
        depth = self._depth + len(brackets) - 2 * closing
        if depth > 0:
            inside = stays_between(brackets, closing, self._depth, self._depth_limit)
        else:
            # The bracket that ends the object is the last byte but for white space, or something follows the end.
            inside = (
                depth == 0
                and not ends_inside
                and text.rstrip(_SPACE).endswith(b"}")
                and stays_between(brackets[:-1], closing - 1, self._depth, self._depth_limit)
            )
            self._stage = _Stage.AFTER
        if not inside:
            self._die()
            return

        if self._want is not _Want.NOTHING:
            self._collect(raw, text, 0)
        if len(parts) > 1 and (self._depth == 1 or not stays_between(brackets, closing, self._depth - 1, _ANY_DEPTH)):
            self._find_keys(raw, text, parts)
        if ends_inside:
            begun = self._partial if len(parts) == 1 else b""
            self._partial = begun + parts[-1][: self._key_limit + 1 - len(begun)]
        else:
            self._partial = b""
        self._in_string = ends_inside
        self._depth = depth

    def _pass_inside_string(self, raw: bytes) -> None:
        # The middle of a prompt: nothing to learn but whether a backslash is left open at its end.
        trailing = len(raw) - len(raw.rstrip(b"\\"))
        if trailing == len(raw):
            trailing += self._escaped
        self._escaped = trailing & 1 == 1
        if self._want is not _Want.NOTHING:
            self._collect(raw, raw, 0)
        self._partial += raw[: max(0, self._key_limit + 1 - len(self._partial))]

    def _neutralise(self, raw: bytes) -> bytes:
        """Overwrite escaped quotes and backslashes, keeping every offset."""
        text = raw
        if self._escaped and raw[0] in b'"\\':
            text = _NEUTRAL + raw[1:]
        if 0x5C in text:
            # In this order pairs are taken from the start of each run of backslashes, as a parser does.
            text = text.replace(b"\\\\", _NEUTRAL * 2).replace(b'\\"', _NEUTRAL * 2)
        self._escaped = text.endswith(b"\\")
        return text

    def _find_keys(self, raw: bytes, text: bytes, parts: list[bytes]) -> None:
        """Begin to collect the value of each wanted key at the top level of this piece."""
        first = 0 if self._in_string else 1
        strings = parts[first::2]
        unfinished = (len(parts) - first) & 1
        if unfinished:
            strings.pop()
        if not strings:
            return
        if self._in_string:
            begun = self._partial
            strings[0] = begun + strings[0] if len(begun) + len(strings[0]) <= self._key_limit else b""
        if text.find(b"\\u00") >= 0 or 0x5C in self._partial:
            strings = _unescape(strings)
        wanted = self._wanted
        if wanted.isdisjoint(strings):
            return
        hits = [i for i, s in enumerate(strings) if s in wanted and parts[2 * i + first + 1][:1] in _AFTER_KEY]
        marked = parts.copy()
        marked[first::2] = [b""] * (len(strings) + unfinished)
        for i in hits:
            marked[2 * i + first] = b'"'
        between = structure_of(marked).split(b'"')
        depths = accumulate([len(brackets) - 2 * brackets.count(b"]") for brackets in between], initial=self._depth)
        next(depths)
        for i in [i for i, depth in zip(hits, depths, strict=False) if depth == 1]:
            if strings[i] not in wanted:  # no longer: enough of it was collected
                continue
            part = 2 * i + first
            follows = parts[part + 1].lstrip(_SPACE)
            # If nothing follows in this piece, the next one will tell whether this was a key.
            if not follows.startswith(b":") and (follows or part + 2 < len(parts)):
                continue
            self._name = strings[i]
            self._want = _Want.COLON
            self._collect(raw, text, sum(map(len, parts[: part + 1])) + part + 1)

    def _collect(self, raw: bytes, text: bytes, begin: int) -> None:
        """Go on with the value at hand, from an offset in this piece."""
        if self._want is _Want.COLON:
            begin = _end_of(_SPACES, text, begin)
            if begin == len(text):
                return
            if text[begin] != _COLON:
                self._want = _Want.NOTHING
                return
            begin += 1
            self._want = _Want.VALUE
        end = begin
        if self._want is _Want.VALUE:
            begin = end = _end_of(_SPACES, text, begin)
            if begin == len(text):
                return
            self._begin = self._base + begin
            if text[begin] == _QUOTE:
                self._want = _Want.STRING
                end = begin + 1
            elif text[begin] in b"[{":
                if self._scalars_only:
                    self._record(TOO_LONG)
                    return
                self._want = _Want.CONTAINER
                self._value_depth = 1
                self._value_in_string = False
                end = begin + 1
            else:
                self._want = _Want.SCALAR
        if self._want is _Want.STRING:
            end = (text.find(b'"', end) + 1) or -1
        elif self._want is _Want.CONTAINER:
            end = self._end_of_container(text, end)
        else:
            end = _end_of(_SCALAR, text, end)
            if end == len(text):
                end = -1
        self._keep(raw, begin, end)

    def _end_of_container(self, text: bytes, at: int) -> int:
        """The offset after the bracket that closes the value at hand, -1 if it is not in what may be kept."""
        stop = min(len(text), at + self._value_limit - len(self._value))
        while at < stop:
            parts = text[at : min(at + _WINDOW, stop)].split(b'"')
            brackets = brackets_outside(parts, self._value_in_string)
            closing = brackets.count(b"]")
            if not stays_between(brackets, closing, self._value_depth, _ANY_DEPTH):
                return self._walk_to_end(text, at)
            self._value_depth += len(brackets) - 2 * closing
            self._value_in_string ^= len(parts) & 1 == 0
            at += _WINDOW
        return -1

    def _walk_to_end(self, text: bytes, at: int) -> int:
        """The same where it is known to be near."""
        if self._value_in_string:
            at = text.find(b'"', at) + 1
        while (match := _TO_BRACKET.match(text, at)) is not None:
            at = match.end()
            self._value_depth += 1 if match[1] in b"[{" else -1
            if self._value_depth == 0:
                break
        return at

    def _keep(self, raw: bytes, begin: int, end: int) -> None:
        """Take the next bytes of the value at hand: up to its end, or the whole piece if that is to come (-1)."""
        unfinished = end < 0
        if unfinished:
            end = len(raw)
        if len(self._value) + end - begin > self._value_limit:
            self._record(TOO_LONG)
            return
        self._value += raw[begin:end]
        if not unfinished:
            self._record(bytes(self._value))

    def _record(self, value: bytes) -> None:
        self._want = _Want.NOTHING
        self._value = bytearray()
        name = self._name.decode("ascii")
        values = self._values.setdefault(name, [])
        values.append(value)
        self._offsets.setdefault(name, []).append(self._begin)
        if len(values) == OCCURRENCE_LIMIT:
            self._wanted.discard(self._name)
