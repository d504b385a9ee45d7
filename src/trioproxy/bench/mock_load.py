"""How busy the mock model server is, as a page of Prometheus metrics under vLLM's names.

Lives here: counts that only grow, a gauge, and the page, so that dashboards, autoscalers and ``bench cancel
--engine-metrics`` can be tried on the mock. Does not live here: the account of single requests (mock_record.py).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, final

MEDIA_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


@final
class EngineLoad:
    """What a model server counts; nothing here is ever reset."""

    __slots__ = ("finished", "generation_tokens", "prompt_tokens", "running")

    def __init__(self) -> None:
        self.running = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0}
        """By reason. As in vLLM, aborted ones are counted nowhere: theirs stays 0."""

    @contextmanager
    def request(self, finish_reason: str | None) -> Generator[None]:
        """A request is being worked at; it counts as finished if the block is not left early.

        :param finish_reason: None for one that does not end by itself.
        """
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
        if finish_reason is not None:
            self.finished[finish_reason] += 1

    def page(self, model: str) -> bytes:
        """The page in Prometheus's text format, version 0.0.4."""
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'engine="0",model_name="{escaped}"'
        lines: list[str] = []
        for name, kind, text, values in (
            ("num_requests_running", "gauge", "Requests in prefill or generation.", {labels: self.running}),
            ("num_requests_waiting", "gauge", "Requests in a queue: none, the mock has no limit.", {labels: 0}),
            ("prompt_tokens_total", "counter", "Prefill tokens.", {labels: self.prompt_tokens}),
            ("generation_tokens_total", "counter", "Generation tokens.", {labels: self.generation_tokens}),
            (
                "request_success_total",
                "counter",
                "Requests that came to their end.",
                {f'{labels},finished_reason="{reason}"': count for reason, count in self.finished.items()},
            ),
        ):
            lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]
            lines += [f"vllm:{name}{{{label}}} {value}.0" for label, value in values.items()]
        return "\n".join([*lines, ""]).encode()
