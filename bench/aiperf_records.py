"""What AIPerf and the mock model server have recorded of the same requests, and whether they agree.

Lives here: AIPerf's files, as far as they are read, and the comparison request by request. Does not live here: how
either side is started (`aiperf.py`).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, final

import msgspec

from bench.report import Check
from trioproxy.bench.mock import RequestRecord

RECORDS: Final = "profile_export.jsonl"
SUMMARY: Final = "profile_export_aiperf.json"


@final
class Outcome(enum.Enum):
    """How a request ended, as one side tells it."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The client left before the end: it says so, or the server saw it leave."""
    FAILED = "failed"
    IN_FLIGHT = "in flight"
    NEVER_SEEN = "never seen"


class End(NamedTuple):
    """One side's account of one request."""

    outcome: Outcome
    tokens: int
    """Of its answer. AIPerf drops what it received of one that it cancelled: 0 then."""


class _Metadata(msgspec.Struct):
    x_request_id: str
    was_cancelled: bool


class _Value(msgspec.Struct):
    value: int


class _Metrics(msgspec.Struct):
    output_sequence_length: _Value = msgspec.field(default_factory=lambda: _Value(0))


class _Record(msgspec.Struct):
    metadata: _Metadata
    metrics: _Metrics = msgspec.field(default_factory=_Metrics)
    error: dict[str, object] | None = None

    def end(self) -> End:
        if self.metadata.was_cancelled:
            return End(Outcome.CANCELLED, 0)
        tokens = self.metrics.output_sequence_length.value
        return End(Outcome.COMPLETED if self.error is None else Outcome.FAILED, tokens)


class _Total(msgspec.Struct):
    avg: float = 0


class Summary(msgspec.Struct):
    """The totals in AIPerf's summary; those that are not in it are 0."""

    request_count: _Total = msgspec.field(default_factory=_Total)
    error_request_count: _Total = msgspec.field(default_factory=_Total)
    total_osl: _Total = msgspec.field(default_factory=_Total)


def read_records(artifacts: Path) -> list[tuple[str, End]]:
    """Request ids and ends, from AIPerf's records."""
    records = msgspec.json.Decoder(_Record).decode_lines((artifacts / RECORDS).read_bytes())
    return [(record.metadata.x_request_id, record.end()) for record in records]


def read_summary(artifacts: Path) -> Summary | None:
    """AIPerf's summary; None if it wrote none, as when every request was cancelled."""
    path = artifacts / SUMMARY
    return msgspec.json.decode(path.read_bytes(), type=Summary) if path.exists() else None


def served(record: RequestRecord) -> End:
    """The mock's account of a request."""
    if record.abandoned is not None:
        return End(Outcome.CANCELLED, record.tokens)
    if record.finished is None:
        return End(Outcome.IN_FLIGHT, record.tokens)
    return End(Outcome.COMPLETED if record.status == 200 else Outcome.FAILED, record.tokens)


@final
class Joined:
    """The requests of both sides, joined by their ids.

    :param sent: AIPerf's ids and ends.
    :param seen: the mock's records.
    """

    __slots__ = ("_client", "_once", "_server", "_tokens_after_abort")

    def __init__(self, sent: list[tuple[str, End]], seen: list[RequestRecord]) -> None:
        self._client = dict(sent)
        self._server = {record.id: served(record) for record in seen}
        self._once = len(self._client) == len(sent) and len(self._server) == len(seen)
        self._tokens_after_abort = sum(record.tokens_after_abandon for record in seen)

    def pairs(self) -> Counter[tuple[Outcome, Outcome]]:
        """How many of AIPerf's requests ended so on its side and so on the mock's."""
        return Counter((end.outcome, self._on_server(name).outcome) for name, end in self._client.items())

    def rows(self) -> list[tuple[str, str, str]]:
        """Counts: of what, AIPerf's, the mock's; – for what AIPerf cannot know."""
        client, server = self._client.values(), self._server.values()
        done, left = Outcome.COMPLETED, Outcome.CANCELLED
        return [
            ("requests", str(len(client)), str(len(server))),
            *((kind.value, str(_count(client, kind)), str(_count(server, kind))) for kind in Outcome),
            ("tokens of completed answers", str(_tokens(client, done)), str(_tokens(server, done))),
            ("tokens of cancelled answers", "–", str(_tokens(server, left))),
            ("of these, made after the abort", "–", str(self._tokens_after_abort)),
        ]

    def checks(self, requests: int, summary: Summary | None, *, at_once: bool) -> list[Check]:
        """What has to hold.

        :param requests: so many were asked for.
        :param summary: AIPerf's, which need not be there if no request was completed.
        :param at_once: requests were cancelled as soon as they were sent, so that some need not have reached the mock.
        """
        agreed = {(Outcome.COMPLETED, Outcome.COMPLETED), (Outcome.CANCELLED, Outcome.CANCELLED)}
        if at_once:
            agreed.add((Outcome.CANCELLED, Outcome.NEVER_SEEN))
        done = {name: end for name, end in self._client.items() if end.outcome is Outcome.COMPLETED}
        totals = (len(done), len(self._client) - len(done), _tokens(done.values(), Outcome.COMPLETED))
        return [
            Check(f"AIPerf has records of {requests} requests", len(self._client) == requests),
            Check("no request came to the mock twice", self._once),
            Check("nothing came to the mock but AIPerf's requests", self._server.keys() <= self._client.keys()),
            Check("both sides tell the same end of every request", self.pairs().keys() <= agreed),
            Check(
                "both sides count the same tokens in each completed answer",
                all(end.tokens == self._on_server(name).tokens for name, end in done.items()),
            ),
            Check("no token was made after the mock had seen its client leave", self._tokens_after_abort == 0),
            Check(
                "AIPerf's summary has the totals of its records",
                not done if summary is None else _told(summary) == totals,
            ),
        ]

    def _on_server(self, name: str) -> End:
        return self._server.get(name, End(Outcome.NEVER_SEEN, 0))


def _count(ends: Iterable[End], outcome: Outcome) -> int:
    return sum(end.outcome is outcome for end in ends)


def _tokens(ends: Iterable[End], outcome: Outcome) -> int:
    return sum(end.tokens for end in ends if end.outcome is outcome)


def _told(summary: Summary) -> tuple[float, float, float]:
    return summary.request_count.avg, summary.error_request_count.avg, summary.total_osl.avg
