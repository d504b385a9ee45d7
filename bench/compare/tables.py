"""What a comparison has found, as Markdown.

Lives here: which figures stand beside each other, and the command below each table that has them again. Does not live
here: measuring (`measure`), pictures (`plots`).
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from bench.compare.measure import Plan, Result, cost, referee
from bench.peers.registry import PEERS
from trioproxy.bench.referee.report import Machine

NONE: Final = "–"


class Comparison(msgspec.Struct, kw_only=True):
    """One run."""

    machine: Machine
    plan: Plan
    results: list[Result]

    @property
    def names(self) -> list[str]:
        """Of the peers, in order."""
        return [result.name for result in self.results]


class Case(NamedTuple):
    """A stage and a way to leave."""

    stage: str
    way: str


class Seen(NamedTuple):
    """What became of all aborts of one case, over all rounds, one at a time."""

    outcomes: dict[str, int]
    p50_ms: float | None
    max_ms: float | None

    @property
    def aborted(self) -> int:
        """Requests whose client left at the stage."""
        return sum(count for name, count in self.outcomes.items() if name != "failed")

    @property
    def worst(self) -> str:
        """In one word: what an operator has to expect."""
        for name in ("missed", "false-abort", "late", "failed", "kept", "served", "seen", "never-reached", "completed"):
            if self.outcomes.get(name):
                return name
        return "none"


def cases(comparison: Comparison) -> list[Case]:
    """All that any peer was asked, in the order of a request's life."""
    found = [
        Case(case.stage, case.way)
        for result in comparison.results
        for report in result.cancel
        for case in report.cases
        if case.leg == "proxy" and case.load == "single" and case.way != "stay"
    ]
    return list(dict.fromkeys(found))


def seen(result: Result, case: Case) -> Seen | None:
    """None of a peer that was not asked."""
    found = [
        one
        for report in result.cancel
        for one in report.cases
        if (one.leg, one.load, one.stage, one.way) == ("proxy", "single", *case)
    ]
    if not found:
        return None
    outcomes = {name: sum(one.outcomes[name] for one in found) for name in found[0].outcomes}
    values = [value for one in found for value in one.samples_ms]
    return Seen(outcomes, statistics.median(values) if values else None, max(values, default=None))


def render(comparison: Comparison) -> str:
    """The whole page."""
    machine = comparison.machine
    parts = [
        "# trioproxy beside other proxies",
        f"{machine.date}, {machine.processors} processors ({machine.processor}), {machine.system}, Python"
        f" {machine.python}. Each proxy is one process with one worker, as `bench/peers/` starts it; client, proxy and"
        " model server share this machine, so that figures are noisy and the order of things is not. All of it again,"
        " in one go: `python -m bench.compare`.",
        "| proxy | version |\n|---|---|\n"
        + "\n".join(f"| {result.name} | {result.version} |" for result in comparison.results),
        "![](compare.png)",
        *_cancel(comparison),
        *_totals(comparison),
        *_memory(comparison),
        *_cost(comparison),
        *_failures(comparison),
    ]
    return "\n\n".join(parts) + "\n"


def _cancel(comparison: Comparison) -> list[str]:
    rows = [
        [case.stage, case.way, *(_cell(seen(result, case)) for result in comparison.results)]
        for case in cases(comparison)
    ]
    return [
        "## A client leaves: what the model server sees",
        "Milliseconds from the client's call to close until the model server sees the disconnect, one request at a"
        " time, median. **missed** m/n: of n aborts m were not seen while the model server went on for the time"
        " watched. late: seen, but after more than a quarter of a second; prefill and stalls last half a second here,"
        " so that 490 is a proxy that finds out by the next token, however long that takes. served: the proxy goes on"
        " for a client that has shut down its sending side only, which TCP allows. unsent: the request had not been"
        " passed on, so that nothing was wasted.",
        _table(["stage", "way", *comparison.names], rows, left=2),
        _again(comparison, "cancel", comparison.plan.cancel),
    ]


def _cell(found: Seen | None) -> str:
    if found is None or not sum(found.outcomes.values()):
        return NONE
    outcomes, count = found.outcomes, found.aborted
    match found.worst:
        case "missed":
            return f"**missed** {outcomes['missed']}/{count}"
        case "late":
            return f"late {found.max_ms:.0f}"
        case "false-abort":
            return f"cut {outcomes['false-abort']}"
        case "failed":
            return f"failed {outcomes['failed']}/{sum(outcomes.values())}"
        case "kept" | "served":
            return "served"
        case "never-reached":
            return "unsent"
        case "completed":
            return "done"
        case _:
            return NONE if found.p50_ms is None else f"{found.p50_ms:.1f}"


_TOTALS: Final = (
    ("missed_aborts", "missed aborts", "{:.0f}", sum),
    ("late_aborts", "late aborts", "{:.0f}", sum),
    ("false_aborts", "false aborts", "{:.0f}", sum),
    ("failed_requests", "failed requests", "{:.0f}", sum),
    ("cross_delivered_bytes", "cross-delivered bytes", "{:.0f}", sum),
    ("tokens_for_nobody", "tokens made for nobody", "{:,.0f}", sum),
    ("slot_ms_for_nobody", "slot ms for nobody", "{:,.0f}", sum),
    ("crowd_propagation_p99_ms", "many at once: propagation p99, ms", "{:.0f}", max),
    ("loop_stall_ms", "many at once: longest probe, ms", "{:.0f}", max),
    ("lost_slots", "lost slots", "{:.0f}", max),
    ("drain_idle_ms", "SIGTERM to exit, idle, ms", "{:.0f}", max),
    ("drain_cut", "streams cut by SIGTERM", "{:.0f}", max),
)
"""Name, what it is called, how it is written, how rounds are put together."""


def _totals(comparison: Comparison) -> list[str]:
    rows = [
        [title, *(_over_rounds(result, name, form, join) for result in comparison.results)]
        for name, title, form, join in _TOTALS
    ]
    return ["## All aborts together", _table(["", *comparison.names], rows)]


def _over_rounds(result: Result, name: str, form: str, join: Callable[[Iterable[float]], float]) -> str:
    values = [value for report in result.cancel if (value := report.metrics.get(name)) is not None]
    return form.format(join(values)) if values else NONE


def _memory(comparison: Comparison) -> list[str]:
    found = [result.memory for result in comparison.results]
    rows: list[list[str]] = []
    for size in sorted({one.size for memory in found if memory is not None for one in memory.sizes}):
        row = [f"bytes held per stream, {_size(size)} prompt"]
        for memory in found:
            of_size = [] if memory is None else [one for one in memory.sizes if one.size == size]
            held = of_size[0].retained_per_stream if of_size else None
            row.append(NONE if held is None else f"{held:,.0f}")
        rows.append(row)
    for name, title, form in _HELD:
        values = [None if memory is None else memory.metrics.get(name) for memory in found]
        rows.append([title, *(NONE if value is None else form.format(value) for value in values)])
    return [
        "## What is held while answers stream",
        _table(["", *comparison.names], rows),
        _again(comparison, "memory", comparison.plan.memory),
    ]


_HELD: Final = (
    ("retained_slope", "… for each byte of the prompt", "{:.3f}"),
    ("upload_peak_copies", "peak while one is uploaded, bodies", "{:.1f}"),
    ("given_back_share", "given back afterwards", "{:.0%}"),
    ("leak_completed_bytes", "growth per 1,000 completed, bytes", "{:,.0f}"),
    ("leak_cancelled_bytes", "growth per 1,000 cancelled, bytes", "{:,.0f}"),
    ("unread_bytes_held", "held of a stream that its client does not read, bytes", "{:,.0f}"),
)
"""Name, what it is called, how it is written."""


def _cost(comparison: Comparison) -> list[str]:
    found = [(result.name, result.cost) for result in comparison.results if result.cost is not None]
    if not found:
        return []
    rows = [
        [
            name,
            f"{statistics.median(one.request):.0f}",
            f"{one.request_ratio:.1f}",
            f"{statistics.median(one.event):.0f}",
            f"{one.event_ratio:.1f}",
        ]
        for name, one in found
    ]
    command = shlex.join(["python", "-m", *cost([name for name, _ in found], comparison.plan.cost)])
    header = ["proxy", "CPU µs per small request", "× HAProxy", "CPU µs per streamed event", "× HAProxy"]
    return ["## CPU", _table(header, rows), f"```console\n{command}\n```"]


def _failures(comparison: Comparison) -> list[str]:
    found = [f"- {result.name}, {why}" for result in comparison.results for why in result.failed]
    return ["## Not measured", "\n".join(found)] if found else []


def _again(comparison: Comparison, kind: str, options: Sequence[str]) -> str:
    """The command of the first peer, for a reader to put another name in."""
    name = comparison.names[0]
    return f"For one proxy, here {name}:\n\n```console\n{shlex.join(referee(kind, PEERS[name], options))}\n```"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    ruler = ["---"] * left + ["---:"] * (len(header) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ruler, *rows])


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
