"""The report of ``trioproxy bench memory`` as a document.

Lives here: which tables, plots and sentences its figures become. Does not live here: the forms (text.py, html.py, …).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .document import PLAIN, Check, Document, Lines, Plot, Section, Series, Table, figures, own
from .document import document as common
from .memory_metrics import MEMORY, LeakResult, SizeResult, UnreadResult
from .memory_report import MemoryReport
from .memory_samples import Sample
from .words import NONE, number, size

_COPIES_FROM: Final = 64 * 1024
"""Bytes of a body below which its copies cannot be told from everything else that a request takes."""
_LEAST: Final = 1.0
"""Byte: what a logarithmic axis shows of a proxy that holds less than when it was idle."""
_POINTS: Final = 1500
"""Of a line at most, the highest of neighbours: a peak is not lost."""

_RUNNING: Final = (
    "one process that ran already was measured for all sizes: what it kept from before hides growth, so the figures are"
    " lower bounds; --proxy-cmd gives each size a fresh one"
)


def document(report: MemoryReport) -> Document:
    """The document of a report, which may be of a run that came to nothing."""
    measured = report.sizes or report.leaks or report.unread
    sections = [_streams(report), _kept(report), _time_line(report), figures(MEMORY, report)] if measured else []
    return common(
        report,
        title="What a proxy holds while answers stream",
        verdict=_verdict(report),
        sections=sections,
        checks=[*map(_size_check, report.sizes), *map(_leak_check, report.leaks), *_unread_checks(report.unread)],
    )


def _verdict(report: MemoryReport) -> str:
    metrics = report.metrics
    said: list[str] = []
    if metrics["retained_bytes_per_stream"] is not None:
        said.append(f"{_bytes(metrics['retained_bytes_per_stream'])} a stream while answers stream")
    if metrics["retained_slope"] is not None:
        said.append(f"{number(metrics['retained_slope'], 3)} bytes retained for each byte of the body")
    if metrics["unread_bytes_held"] is not None:
        said.append(f"{_bytes(metrics['unread_bytes_held'])} of a stream that its client does not read")
    if not said:
        return "Nothing was measured." if not report.leaks else f"{report.label or report.target}."
    return f"{report.label or report.target}: {'; '.join(said)}."


def _bytes(value: float | None) -> str:
    return NONE if value is None else size(value)


# ---- streams


def _streams(report: MemoryReport) -> Section:
    header = ["body", "streams", "idle", "peak of one upload", "copies", "waiting", "streaming", "given back", "kept"]
    rows = [
        [
            size(one.size),
            str(one.streams) + (f" (+{one.failed} FAILED)" if one.failed else ""),
            _bytes(one.idle_bytes),
            _bytes(one.upload_peak_bytes),
            number(one.upload_copies) if one.size >= _COPIES_FROM else NONE,
            _bytes(one.waiting_per_stream),
            _bytes(one.retained_per_stream),
            NONE if one.given_back is None else f"{one.given_back:.0%}",
            _bytes(one.kept_bytes),
        ]
        for one in report.sizes
    ]
    notes = [
        "all above the idle process tree; waiting, streaming: of each stream, before the model server has sent",
        "anything, and after its first token; given back: of the growth at its peak; kept: after the streams",
    ]
    if rows and not all(one.peak_exact for one in report.sizes):
        notes.append("the kernel's peak could not be reset: the peak of one upload is the highest sample only")
    if not report.fresh:
        notes.append(_RUNNING)
    return Section(
        title="Streams",
        tables=[Table(header=header, rows=rows)],
        lines=[f"{count} × {why}" for one in report.sizes for why, count in one.why.items()],
        notes=notes if rows else (),
        plots=_size_plots(report.sizes),
    )


def _size_plots(sizes: Sequence[SizeResult]) -> list[Plot]:
    if len(sizes) < 2:
        return []
    ordered = sorted(sizes, key=lambda one: one.size)
    waiting = _points((one.size, one.waiting_per_stream) for one in ordered)
    retained = _points((one.size, one.retained_per_stream) for one in ordered)
    whole = [(float(one.size), float(one.size)) for one in ordered]
    return [
        Lines(
            title="Bytes of a stream over its body's size",
            x="bytes of the body",
            y="bytes of a stream",
            series=[
                Series("after the first token", retained, "a"),
                Series("before the answer", waiting, "c"),
                Series("one whole body held", whole, "bad"),
            ],
            log=True,
        )
    ]


def _points(pairs: Iterable[tuple[int, float | None]]) -> list[tuple[float, float]]:
    return [(float(x), max(y, _LEAST)) for x, y in pairs if y is not None]


# ---- leaks, and the client that does not read


def _kept(report: MemoryReport) -> Section:
    lines = [*map(_leak, report.leaks)]
    if report.unread is not None:
        lines.append(_unread(report.unread))
    lines.append(f"the tool: {own(report)}")
    series = [
        Series(leak.kind, [(float(requests), held / 2**20) for requests, held in leak.rounds], tone)
        for leak, tone in zip(report.leaks, PLAIN, strict=False)
    ]
    plot = Lines(title="Memory over requests", x="requests after warming up", y="MiB", series=series)
    return Section(title="What stays, and what is not read", lines=lines, plots=[plot] if series else [])


def _leak(leak: LeakResult) -> str:
    line = leak.line
    if line is None:
        return f"leak: too few rounds of {leak.kind} requests"
    error = "" if line.error is None else f" (± {_bytes(1000 * line.error)})"
    text = f"leak: {_bytes(1000 * line.slope)}{error} for each 1,000 requests {leak.kind}"
    if leak.failed:
        text += f"; {leak.failed} FAILED: {'; '.join(f'{count} × {why}' for why, count in leak.why.items())}"
    if leak.missed:
        text += f"; {leak.missed} leavings were never told to the model server"
    return text


def _unread(unread: UnreadResult) -> str:
    text = (
        f"unread: of {size(unread.size)} that a client does not read, {_bytes(unread.held)} held"
        f" ({_bytes(unread.taken)} taken from the model server); {_bytes(unread.flowing)} once it reads"
    )
    return text if unread.why is None else f"{text}; FAILED: {unread.why}"


# ---- the time line


def _time_line(report: MemoryReport) -> Section:
    samples = _thinned(report.samples)
    marks: list[tuple[float, str]] = []
    process = 0
    for sample in report.samples:
        if sample.process != process:
            process = sample.process
            marks.append((sample.at, f"process {process}"))
    memory = Lines(
        title="Memory of the proxy's processes",
        x="seconds since the run began",
        y="MiB",
        series=[Series("memory", [(one.at, one.held / 2**20) for one in samples], "a")],
        marks=marks,
    )
    streams = Lines(
        title="Requests in flight",
        x="seconds since the run began",
        y="requests",
        series=[Series("requests", [(one.at, float(one.streams)) for one in samples], "b", step=True)],
        marks=marks,
    )
    return Section(title="Time line", plots=[memory, streams], terminal=False)


def _thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    step = max(1, -(-len(samples) // _POINTS))
    return [max(samples[start : start + step], key=_held) for start in range(0, len(samples), step)]


def _held(sample: Sample) -> int:
    return sample.held


# ---- checks


def _size_check(one: SizeResult) -> Check:
    return Check(group="memory.streams", name=size(one.size), failure=_failure(one.failed, one.why))


def _leak_check(leak: LeakResult) -> Check:
    return Check(group="memory.leaks", name=leak.kind, failure=_failure(leak.failed, leak.why))


def _unread_checks(unread: UnreadResult | None) -> list[Check]:
    return [] if unread is None else [Check(group="memory.unread", name="unread stream", failure=unread.why)]


def _failure(failed: int, why: dict[str, int]) -> str | None:
    return "\n".join(f"{count} × {text}" for text, count in why.items()) if failed else None
