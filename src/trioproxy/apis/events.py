"""What one event of a stream says: whether it carries tokens, of which choices, and the usage that it reports.

Lives here: the events of all APIs as one type, since each marks its own well enough, and telling them apart. Does not
live here: where an event begins and ends (``sse``), or what usage means (``usage``).

Tokens are text, reasoning, refusals and parts of tool calls. A role alone, an empty delta, an event that only ends
something or reports usage, ``[DONE]`` and pings carry none. One event may carry several tokens.

An event is decoded by type, in about a microsecond. One that does not decode (a lone surrogate, NaN, content that is a
list) is looked at by a regular expression: better to count a token that was none than to see a stream stand still.
"""

from __future__ import annotations

import re
from typing import Final, final

import msgspec

from trioproxy.apis.usage import Report, Tokens

_MANY: Final = 128
"""Choices that are counted one by one: a request for more has the rest counted with the last."""


class _Delta(msgspec.Struct, gc=False):
    """What is new: in chat of a choice's message, in messages of a content block."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    refusal: str | None = None
    function_call: dict[str, msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    token_ids: list[msgspec.Raw] | None = None


class Event(Report, gc=False):
    """An event of any API, as far as anything depends on it."""

    choices: list[_Choice] | None = None
    type: str | None = None
    delta: _Delta | str | None = None
    index: Tokens = None
    text: str | None = None
    content: str | None = None
    stop: bool | None = None


_decode: Final = msgspec.json.Decoder(Event).decode
_like_tokens: Final = re.compile(
    rb'"(?:content|reasoning|reasoning_content|text|delta|thinking|partial_json|refusal)"\s*+:\s*+(?:"[^"]|\[\s*+[^\]\s])'
    rb'|"(?:tool_calls|token_ids)"\s*+:\s*+\[\s*+[^\]\s]'
).search
_index: Final = re.compile(rb'"index"\s*+:\s*+(\d{1,4})').search


def read_event(data: bytes) -> Event | None:
    """An event from its data; None if it is malformed, or of a form that nobody knows."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


@final
class TokenCounter:
    """Counts the token events of one stream."""

    __slots__ = ("_first", "_generated", "_others", "events", "fed")

    def __init__(self) -> None:
        self.events = 0
        self.fed = 0
        """How many there were since whoever feeds has set this to 0."""
        self._first = 0
        """How many the choice with index 0 had, which in nearly all streams is the only one."""
        self._others: dict[int, int] = {}
        self._generated: dict[int, int] = {}
        """How many tokens each of SGLang's sequences had: its events repeat the text from the start."""

    @property
    def choices(self) -> dict[int, int]:
        """How many token events each choice had, by its index."""
        return {0: self._first, **self._others} if self._first else self._others.copy()

    def take(self, event: Event) -> None:
        """Count an event if it carries tokens."""
        choices = event.choices
        if choices is None:
            if not self._carries(event):
                return
            index = event.index
            if index is None or event.type is not None:
                self._first += 1
            else:
                self._count(index)
        else:
            carries = False
            for choice in choices:
                delta = choice.delta
                if (
                    choice.text or choice.token_ids
                    if delta is None
                    else delta.content
                    or delta.reasoning_content
                    or delta.reasoning
                    or delta.tool_calls
                    or delta.refusal
                    or delta.function_call
                ):
                    carries = True
                    if choice.index == 0:
                        self._first += 1
                    else:
                        self._count(choice.index)
            if not carries:
                return
        self.events += 1
        self.fed += 1

    def take_malformed(self, data: bytes) -> None:
        """Count an event that could not be decoded if it looks as if it carried tokens."""
        if _like_tokens(data) is not None:
            index = _index(data)
            self._count(0 if index is None else int(index[1]))
            self.events += 1
            self.fed += 1

    def _carries(self, event: Event) -> bool:
        """Whether an event without choices carries tokens."""
        if event.type is not None:
            delta = event.delta
            if isinstance(delta, _Delta):  # of Anthropic; signatures and citations are no tokens
                return bool(delta.text or delta.thinking or delta.partial_json)
            return bool(delta) and event.type.endswith(".delta")
        if event.meta_info is not None:
            generated = event.meta_info.completion_tokens
            if generated is None:
                return bool(event.text)
            index = min(event.index or 0, _MANY)
            if generated <= self._generated.get(index, 0):
                return False
            self._generated[index] = generated
            return True
        return event.stop is not None and bool(event.content)

    def _count(self, index: int) -> None:
        if index == 0:
            self._first += 1
            return
        others = self._others
        if index not in others and len(others) >= _MANY:
            index = _MANY
        others[index] = others.get(index, 0) + 1
