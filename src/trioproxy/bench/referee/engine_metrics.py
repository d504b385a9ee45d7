"""What an engine tells of itself: the names of its Prometheus metrics, and one page of them read.

Lives here: the table of engines that are known, and a page turned into a sample. Synchronous, on plain text. Does not
live here: fetching pages (engine_watch.py), or what samples mean (engine_judge.py).

Names and when they are updated: vllm/v1/metrics/loggers.py; docs.sglang.io, production metrics, and
srt/managers/scheduler_metrics_mixin.py; llama.cpp, tools/server/README.md, and the calls of ``on_prediction`` there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from prometheus_client.parser import text_string_to_metric_families


class EngineError(Exception):
    """The engine cannot be watched or used, with what is to be done about it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One kind of engine.

    :param live: whether ``tokens`` grows as tokens are made; else only when a request comes to its end.
    :param steps: grows with every step of work, whether or not a request comes to its end; None if nothing does.
    :param finished: counts requests that came to their end by themselves, by their ``finished_reason``.
    :param lazy: whether a gauge is missing until its first request.
    :param timely: whether a counter that grows while nothing of ours is there counts somebody else's work; not so where
        counters are brought up to date at leisure.
    :param update: when the gauges are brought up to date, for people.
    """

    name: str
    prefix: str
    running: str
    waiting: str
    tokens: str
    live: bool
    steps: str | None
    finished: str | None = None
    lazy: bool = False
    timely: bool = True
    update: str

    @property
    def names(self) -> list[str]:
        """Of all metrics that are read."""
        read = (self.running, self.waiting, self.tokens, self.steps, self.finished)
        return [name for name in read if name is not None]


FINISHED: Final = frozenset({"stop", "length"})

ENGINES: Final = (
    Engine(
        name="vLLM",
        prefix="vllm:",
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        tokens="vllm:generation_tokens_total",
        live=True,
        steps="vllm:prompt_tokens_total",
        finished="vllm:request_success_total",
        update="once per engine step; when all requests were aborted, in some versions only with the next request's",
    ),
    Engine(
        name="SGLang",
        prefix="sglang:",
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        tokens="sglang:generation_tokens_total",
        live=False,
        steps="sglang:realtime_tokens_total",
        lazy=True,
        timely=False,
        update="once per prefill and every 40 decoding steps; idle, in some versions only every 30 s",
    ),
    Engine(
        name="llama.cpp",
        prefix="llamacpp:",
        running="llamacpp:requests_processing",
        waiting="llamacpp:requests_deferred",
        tokens="llamacpp:tokens_predicted_total",
        live=False,
        steps="llamacpp:n_decode_total",
        update="when asked for, between two decoding steps",
    ),
)
"""Those that are known."""


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """One page. Its values were true at some time between ``asked`` and ``at``, both of the monotonic clock."""

    asked: float
    at: float
    running: float
    waiting: float
    tokens: float
    """Generated so far; see ``Engine.live``."""
    steps: float = 0.0
    """Something that grows with work, in no unit of ours."""
    finished: float | None = None
    """Requests that came to their end so far; None if the engine does not say."""

    @property
    def busy(self) -> float:
        """Requests that it has, in a queue or at work."""
        return self.running + self.waiting

    @property
    def work(self) -> tuple[float, float]:
        """Differs from that of an earlier sample if anything was done in between."""
        return self.tokens, self.steps


def detect(page: str) -> Engine:
    """Which engine wrote a page.

    :raises EngineError: none that is known, or one without its gauge of running requests.
    """
    names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}
    typed = {words[2] for words in map(str.split, page.splitlines()) if words[:2] == ["#", "TYPE"] and len(words) > 2}
    for engine in ENGINES:
        if any(name.startswith(engine.prefix) for name in names | typed):
            if engine.lazy or engine.running in names:
                return engine
            raise EngineError(f"this is {engine.name}'s page, but it has no {engine.running}: is that an old version?")
    known = ", ".join(f"{engine.name} ({engine.running})" for engine in ENGINES)
    hint = "SGLang and llama.cpp have them only if started with --enable-metrics or --metrics"
    raise EngineError(f"no metrics of an engine that is known: {known}; {hint}")


def read(engine: Engine, page: str, asked: float, at: float) -> Sample:
    """One page as a sample; over several models, ranks or replicas its values are sums.

    :raises EngineError: a line that is read is not in Prometheus's text format.
    """
    totals = dict.fromkeys(engine.names, 0.0)
    finishes = False
    # A page has hundreds of lines, of histograms mostly, and is read up to fifty times a second.
    wanted = tuple(engine.names)
    lines = [line for line in page.splitlines() if line.startswith(wanted)]
    try:
        for name, labels, value in _samples(lines):
            if name == engine.finished:
                finishes = True
                if labels.get("finished_reason") not in FINISHED:
                    continue
            if name in totals:
                totals[name] += value
    except ValueError as error:
        raise EngineError(f"not Prometheus's text format: {error}") from None
    return Sample(
        asked,
        at,
        totals[engine.running],
        totals[engine.waiting],
        totals[engine.tokens],
        0.0 if engine.steps is None else totals[engine.steps],
        totals[engine.finished] if finishes and engine.finished is not None else None,
    )


def _samples(lines: Iterable[str]) -> Iterable[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
