"""What the demo found, and how it is shown: as text for people, as JSON for programs.

Lives here: the results, the judgement over each, and their two forms. Does not live here: getting them, or printing.

The JSON is one object, and its names are stable; a name may be added, none changes its meaning:

==================  ================================================================================================
``ok``              whether all of it holds: the exit status is 0 if so, else 1
``seconds``         how long the demo took
``error``           why it could not be run or finished, else null
``scenarios``       a list, in the order in which they ran, of objects with:
``.name``           ``completed``, ``left_in_prefill``, ``left_mid_stream``, ``large_prompt``
``.title``          the same for people
``.ok``             whether all of this scenario holds
``.failures``       what does not, in words
``.prompt_bytes``   size of the request's body
``.client_saw``     ``status`` (null if no response came), ``tokens``, ``in_order``, ``complete`` (to the last byte)
``.left``           ``prefill`` or ``mid-stream``, null for a client that stayed
``.abort_seen_ms``  from the client's close to the model server's noticing; null if it saw no abort
``.tokens_wasted``  tokens that the model server made after the client had left
``.body_held``      while the upstream had sent nothing yet: ``allocated_bytes`` (by tracemalloc: what of the live
                    memory belongs to the body), ``other_bytes`` (by how much all other memory was above that of a
                    request with a prompt of 4 KiB), ``counter_bytes`` (the proxy's own count), ``pss_change_bytes``
                    (of the process; null where the system does not tell); null if it was not measured
==================  ================================================================================================
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import click
import msgspec

from .demo_memory import Held

ABORT_LIMIT: Final = 250.0
"""Milliseconds after which an abort was not seen in time: fifty times what an idle machine takes, since a busy one
must not make the demo fail; a proxy that notices at its next write is found out by the tokens wasted."""
_LABEL_WIDTH: Final = 18


@final
class Leave(enum.Enum):
    """When a client leaves."""

    PREFILL = "prefill"
    MID_STREAM = "mid-stream"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BodyHeld:
    """What was held for a request while the upstream had sent nothing yet, in bytes."""

    held: Held
    counter: int
    pss_change: int | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Saw:
    """What a client saw of its response."""

    status: int | None = None
    tokens: int = 0
    in_order: bool = True
    complete: bool = False
    broken: str | None = None


class Check(NamedTuple):
    """One line of a scenario: what was found, and why that is not what must be."""

    label: str
    value: str
    failure: str | None
    detail: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happened in one scenario.

    :param tokens_wanted: how many tokens the client was to see.
    :param abort_seen: milliseconds from the client's close to the model server's noticing.
    :param forwarded: bytes of the body that the model server read.
    """

    name: str
    title: str
    prompt_bytes: int
    left: Leave | None
    tokens_wanted: int
    saw: Saw
    abort_seen: float | None
    tokens_wasted: int
    forwarded: int
    body_held: BodyHeld | None

    def checks(self) -> tuple[Check, ...]:
        """All that is claimed, each with its judgement."""
        return (self._check_saw(), self._check_abort(), self._check_wasted(), self._check_held())

    def failures(self) -> list[str]:
        """What does not hold, in words."""
        return [f"{check.label}: {check.failure}" for check in self.checks() if check.failure is not None]

    def _check_saw(self) -> Check:
        saw = self.saw
        order = "in order" if saw.in_order else "not in order"
        if saw.status is None:
            value = "nothing yet" if self.left is Leave.PREFILL else "no response"
        else:
            value = f"{saw.status}, {saw.tokens} of {self.tokens_wanted} tokens {order}"
            value += ", then the end" if saw.complete else ""
        value += ", then it left" if self.left is not None else ""
        failure = None
        if saw.broken is not None:
            failure = f"the response broke: {saw.broken}"
        elif self.forwarded != self.prompt_bytes:
            failure = f"the model server got {self.forwarded:,} of {self.prompt_bytes:,} bytes of the body"
        elif self.left is Leave.PREFILL:
            failure = None if saw.status is None else "a response came while there was to be none yet"
        elif saw.status != 200:
            failure = "the status must be 200"
        elif saw.tokens != self.tokens_wanted or not saw.in_order:
            failure = f"it must see {self.tokens_wanted} tokens, none lost, doubled or reordered"
        elif self.left is None and not saw.complete:
            failure = "the response must end, and say so"
        return Check("client saw", value, failure)

    def _check_abort(self) -> Check:
        seen = self.abort_seen
        if self.left is None:
            failure = None if seen is None else "nobody left, but the model server saw a client leave"
            return Check("abort seen", "none: the client stayed" if seen is None else "one", failure)
        if seen is None:
            return Check("abort seen", "never", "the model server must see that the client has left")
        failure = f"it must be seen within {ABORT_LIMIT:g} ms" if seen > ABORT_LIMIT else None
        return Check("abort seen", f"after {seen:.2f} ms", failure)

    def _check_wasted(self) -> Check:
        failure = "no token may be made after the client has left" if self.tokens_wasted else None
        return Check("tokens wasted", str(self.tokens_wasted), failure)

    def _check_held(self) -> Check:
        if self.body_held is None:
            return Check("body still held", "not measured", "the response had begun before that was measured")
        held, counter = self.body_held.held, self.body_held.counter
        failure = None
        if held.allocated:
            failure = "memory of a body that has been forwarded must be free"
        elif counter:
            failure = f"the proxy itself counts {counter:,} B as held"
        pss = self.body_held.pss_change
        detail = f"own count {counter:,} B; bookkeeping {held.other:,} B more than for 4 KiB"
        detail += "" if pss is None else f"; PSS {pss // 1024:+,} KiB"
        return Check(
            "body still held", f"{held.allocated:,} B of {self.prompt_bytes:,} B, before any response", failure, detail
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole demo.

    :param error: why it could not be run or finished.
    """

    scenarios: Sequence[Scenario]
    seconds: float
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all of it holds."""
        return self.error is None and not any(scenario.failures() for scenario in self.scenarios)

    def as_json(self) -> str:
        """The structure that this module documents."""
        document = {
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "scenarios": [_as_object(scenario) for scenario in self.scenarios],
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _as_object(scenario: Scenario) -> dict[str, object]:
    failures = scenario.failures()
    saw, held = scenario.saw, scenario.body_held
    return {
        "name": scenario.name,
        "title": scenario.title,
        "ok": not failures,
        "failures": failures,
        "prompt_bytes": scenario.prompt_bytes,
        "client_saw": {
            "status": saw.status,
            "tokens": saw.tokens,
            "in_order": saw.in_order,
            "complete": saw.complete,
        },
        "left": None if scenario.left is None else scenario.left.value,
        "abort_seen_ms": None if scenario.abort_seen is None else round(scenario.abort_seen, 3),
        "tokens_wasted": scenario.tokens_wasted,
        "body_held": None
        if held is None
        else {
            "allocated_bytes": held.held.allocated,
            "other_bytes": held.held.other,
            "counter_bytes": held.counter,
            "pss_change_bytes": held.pss_change,
        },
    }


@final
class TextReport:
    """Writes a report for people, one part at a time.

    :param terminal: whether marks and colours are understood; without, the text is plain ASCII.
    """

    __slots__ = ("_count", "_terminal")

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._count = 0

    def opening(self, proxy: str, server: str) -> str:
        """The first line."""
        return self._style(f"A proxy on {proxy}, in front of a mock model server on {server}.", bold=True)

    def scenario(self, scenario: Scenario) -> str:
        """A title, and a line for each claim."""
        self._count += 1
        lines = ["", self._style(f"{self._count}. {scenario.title}", bold=True)]
        for check in scenario.checks():
            mark = self._mark(check.failure is None)
            lines.append(f"   {mark} {check.label:<{_LABEL_WIDTH}}{check.value}")
            indent = " " * (3 + (2 if self._terminal else 5) + _LABEL_WIDTH)
            if check.failure is not None:
                lines.append(indent + self._style(check.failure, fg="red"))
            if check.detail:
                lines.append(indent + self._style(check.detail, dim=True))
        return "\n".join(lines)

    def closing(self, report: Report) -> str:
        """The verdict."""
        if report.error is not None:
            return "\n" + self._style(f"The demo failed: {report.error}", fg="red")
        failed = sum(len(scenario.failures()) for scenario in report.scenarios)
        if failed:
            checks = sum(len(scenario.checks()) for scenario in report.scenarios)
            return "\n" + self._style(f"{failed} of {checks} checks failed, in {report.seconds:.1f} s.", fg="red")
        return "\n" + self._style(f"All of it holds. It took {report.seconds:.1f} s.", fg="green")

    def _mark(self, ok: bool) -> str:
        if not self._terminal:
            return "ok  " if ok else "FAIL"
        return click.style("✓", fg="green") if ok else click.style("✗", fg="red", bold=True)

    def _style(self, text: str, *, fg: str | None = None, bold: bool | None = None, dim: bool | None = None) -> str:
        return click.style(text, fg=fg, bold=bold, dim=dim) if self._terminal else text
