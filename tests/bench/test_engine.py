"""``bench cancel --engine-metrics`` from end to end: gateways and engines, good and bad, on real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

import engine_fakes
from trioproxy.bench.cli import bench
from trioproxy.bench.mock import MockServer, MockSettings
from trioproxy.bench.referee import engine_rest, engine_watch
from trioproxy.bench.referee.cases import Case, Stage, Way
from trioproxy.bench.referee.client import Address
from trioproxy.bench.referee.engine import EnginePlan, EngineRun
from trioproxy.bench.referee.engine_document import document
from trioproxy.bench.referee.engine_report import EngineReport
from trioproxy.bench.referee.require import Requirement
from trioproxy.bench.referee.text import render

MID_FIN = Case(Stage.MID_STREAM, Way.FIN)
SETTINGS = MockSettings(prefill=0.1, interval=0.01, tokens=100_000)
COUNT = 3


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_rest, "FIRST_LOOK", 0.2)
    monkeypatch.setattr(engine_watch, "GRACE", 0.4)


class Setup:
    """An engine, a gateway before it, and where its metrics are."""

    def __init__(self, server: MockServer, engine: tuple[str, int], gateway: tuple[str, int], page: str) -> None:
        self.server = server
        self.engine = Address(host=engine[0], port=engine[1])
        self.gateway = Address(host=gateway[0], port=gateway[1])
        self.page = page
        self.engine_scope = trio.CancelScope()

    def plan(self, *cases: Case, **more: Any) -> EnginePlan:
        given: dict[str, Any] = {"count": COUNT, "watch": 0.8, "poll": 0.02, "direct": self.engine, **more}
        return EnginePlan(cases=cases or [MID_FIN], metrics_url=self.page, proxy=self.gateway, **given)

    async def stream(self, tokens: int) -> None:
        """What somebody else asks the engine for."""
        body = json.dumps({"model": "m", "stream": True, "max_tokens": tokens}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        async with await trio.open_tcp_stream(self.engine.host, self.engine.port) as stream:
            await stream.send_all(head.encode() + body)
            async for _ in stream:
                pass


@asynccontextmanager
async def setup(
    propagates: bool = True, page: Callable[[MockServer], Callable[[], str]] | None = None
) -> AsyncGenerator[Setup]:
    server = MockServer(SETTINGS)
    async with trio.open_nursery() as nursery:
        engine_scope = trio.CancelScope()

        async def serve(*, task_status: trio.TaskStatus[tuple[str, int]]) -> None:  # noqa: ASYNC128 - by the server
            with engine_scope:
                await server.serve(task_status=task_status)

        engine = await nursery.start(serve)
        gateway = await nursery.start(engine_fakes.gateway, engine, propagates)
        where = engine if page is None else await nursery.start(engine_fakes.pages, page(server))
        made = Setup(server, engine, gateway, f"http://{where[0]}:{where[1]}/metrics")
        made.engine_scope = engine_scope
        yield made
        nursery.cancel_scope.cancel()


async def play(plan: EnginePlan) -> EngineReport:
    run = EngineRun(plan, lambda _: None)
    with trio.fail_after(50):
        await run.run()
    return run.report({})


def outcomes(report: EngineReport, leg: str = "proxy") -> list[dict[str, int]]:
    """Those that occurred, of each group."""
    return [
        {name: count for name, count in case.outcomes.items() if count}
        for case in report.cases
        if case.leg == leg and case.way != "stay"
    ]


async def test_a_gateway_that_propagates_frees_the_engine_at_every_stage(tmp_path: Path) -> None:
    stages = (Stage.UPLOADING, Stage.BEFORE_HEAD, Stage.EARLY_HEAD, Stage.MID_STREAM, Stage.WHOLE)
    cases = [
        Case(stage, way, fraction=0.5 if stage is Stage.UPLOADING else 1) for stage in stages for way in (Way.RST,)
    ]
    records = tmp_path / "records.jsonl"
    async with setup() as made:
        report = await play(made.plan(*cases, records=records, upload_size=100_000))
    assert report.error is None
    assert outcomes(report) == outcomes(report, "direct") == [{"never-started": COUNT}, *[{"freed": COUNT}] * 4]
    assert report.engine is not None
    assert (report.engine.name, report.engine.model) == ("vLLM", "mock-model")
    for metrics in (report.metrics, report.direct):
        assert (metrics["missed_aborts"], metrics["false_aborts"], metrics["failed_requests"]) == (0, 0, 0)
        assert metrics["aborted"] == 5 * COUNT
        freed = metrics["freed_max_ms"]
        assert freed is not None
        assert freed < 400
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(lines) == report.metrics["requests"] + report.direct["requests"]  # type: ignore[operator]
    assert {line["received"] for line in lines if line["stage"] == "uploading"} == {None}
    assert all(line["tokens"] >= 5 for line in lines if line["stage"] == "mid-stream")
    assert "none missed" in render(document(report))


async def test_one_that_never_does_is_caught_and_what_it_wastes_is_counted() -> None:
    whole = Case(Stage.WHOLE, Way.FIN)
    async with setup(propagates=False) as made:
        report = await play(made.plan(MID_FIN, whole))
        made_in_all = sum(record.tokens for record in made.server.records)
    assert outcomes(report) == [{"missed": COUNT}] * 2
    assert outcomes(report, "direct") == [{"freed": COUNT}] * 2
    assert report.metrics["missed_aborts"] == 2 * COUNT
    seconds, tokens = report.metrics["engine_seconds_for_nobody"], report.metrics["tokens_for_nobody"]
    assert seconds is not None
    assert tokens is not None
    assert 2 * COUNT * 0.7 < seconds < 2 * COUNT * 0.95, "as long as it was watched"
    assert 2 * COUNT * 50 < tokens <= made_in_all
    direct = report.direct["tokens_for_nobody"]
    assert direct is not None
    assert direct < tokens / 4
    assert Requirement.parse("missed_aborts==0", report.metrics).check(report.metrics).holds is False


async def test_one_that_ends_answers_for_nobody_is_caught_although_the_gauge_falls_in_time() -> None:
    async with setup(propagates=False) as made:
        report = await play(made.plan(tokens=30))
    assert outcomes(report) == [{"missed": COUNT}]


async def test_half_closes_that_are_served_are_not_missed() -> None:
    async with setup(propagates=False) as made:
        report = await play(made.plan(Case(Stage.MID_STREAM, Way.HALF_CLOSE), direct=None))
    async with setup(propagates=False) as made:
        served = await play(made.plan(Case(Stage.MID_STREAM, Way.HALF_CLOSE), direct=None, tokens=30))
    assert outcomes(report) == [{"kept": COUNT}]
    assert outcomes(served) == [{"served": COUNT}]
    assert (report.metrics["missed_aborts"], report.metrics["tokens_for_nobody"]) == (0, 0)
    assert report.direct == {}
    assert any("no direct leg" in note for note in report.notes)


@pytest.mark.parametrize("propagates", [True, False])
async def test_llama_which_counts_tokens_at_the_end(propagates: bool) -> None:
    async with setup(propagates, lambda server: partial(engine_fakes.llama_page, server)) as made:
        report = await play(made.plan(tokens=60))
    assert report.engine is not None
    assert report.engine.name == "llama.cpp"
    assert outcomes(report) == [{"freed" if propagates else "missed": COUNT}]
    tokens = report.metrics["tokens_for_nobody"]
    assert tokens is not None
    assert (tokens == 0) if propagates else (COUNT * 45 < tokens < COUNT * 60)


async def test_gauges_that_stand_still_are_made_to_move() -> None:
    async with setup(page=engine_fakes.StalePage) as made:
        report = await play(made.plan(watch=3))
    assert outcomes(report) == [{"freed": COUNT}]
    assert report.metrics["refreshed_gauges"] == 1
    seconds = report.metrics["engine_seconds_for_nobody"]
    assert seconds is not None
    assert seconds < COUNT * 0.3, "not until the gauge fell, after more than half a second"


async def test_an_engine_with_other_traffic_is_refused() -> None:
    async with setup() as made, trio.open_nursery() as nursery:
        nursery.start_soon(made.stream, 10_000)
        await trio.sleep(0.3)
        report = await play(made.plan())
        shared = await play(made.plan(shared=True))
        nursery.cancel_scope.cancel()
    assert report.error is not None
    assert "the engine has other traffic: 1 requests running" in report.error
    assert "--shared" in report.error
    assert (report.status, outcomes(report)) == (3, [])
    assert shared.error is None
    assert outcomes(shared) == [{"freed": COUNT}]
    tokens = shared.metrics["tokens_for_nobody"]
    assert tokens is not None
    assert tokens < 40, "but for the other's, of which there were many more"


async def test_traffic_that_begins_later_ends_the_run_with_its_records_kept(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    async with setup() as made, trio.open_nursery() as nursery:

        async def come_later() -> None:
            while not records.exists() or records.read_text().count('"mid-stream"') < COUNT:  # noqa: ASYNC110 - a file
                await trio.sleep(0.02)
            await made.stream(10_000)

        nursery.start_soon(come_later)
        report = await play(made.plan(*[MID_FIN] * 20, records=records))
        nursery.cancel_scope.cancel()
    assert report.error is not None
    assert "other traffic" in report.error
    assert outcomes(report, "direct")
    assert records.read_text().count('"mid-stream"') >= COUNT


async def test_an_engine_that_dies_ends_the_run_with_its_records_kept(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    async with setup() as made, trio.open_nursery() as nursery:

        async def die() -> None:
            while not records.exists() or records.read_text().count('"mid-stream"') < COUNT:  # noqa: ASYNC110 - a file
                await trio.sleep(0.02)
            made.engine_scope.cancel()

        nursery.start_soon(die)
        report = await play(made.plan(*[MID_FIN] * 20, records=records))
    assert report.error is not None
    assert "metrics have been failing" in report.error or "no whole answer" in report.error
    assert report.status == 3
    assert records.read_text().count('"mid-stream"') >= COUNT


@pytest.mark.parametrize(
    ("page", "said"),
    [("http_requests_total 3\n", "no metrics of an engine that is known"), ("vllm:x 1\n", "vllm:num_requests_running")],
)
async def test_pages_that_are_no_engine(page: str, said: str) -> None:
    async with setup(page=lambda _: lambda: page) as made:
        report = await play(made.plan())
    assert report.error is not None
    assert said in report.error
    assert (report.engine, report.cases, report.status) == (None, [], 3)
    assert report.metrics["missed_aborts"] == 0


async def test_nobody_there() -> None:
    async with setup() as made:
        report = await play(
            EnginePlan(cases=[MID_FIN], metrics_url="http://127.0.0.1:1/", direct=None, proxy=made.gateway)
        )
        assert report.error is not None
        assert report.error.startswith("http://127.0.0.1:1/: ")
        gone = EnginePlan(cases=[MID_FIN], metrics_url=made.page, direct=None, proxy=Address(host="127.0.0.1", port=1))
        report = await play(gone)
    assert report.error is not None
    assert "nothing listens on 127.0.0.1:1" in report.error


async def test_a_gateway_that_refuses_is_told_with_what_it_says() -> None:
    refusal = b'HTTP/1.1 401 Unauthorized\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{"no": "key"}'[:-1]

    async def refuse(client: trio.SocketStream) -> None:
        async with client:
            await client.receive_some(65536)
            await client.send_all(refusal)

    async with setup() as made, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, refuse, [listener]))
        port = listener.socket.getsockname()[1]
        plan = EnginePlan(
            cases=[MID_FIN], metrics_url=made.page, direct=None, proxy=Address(host="127.0.0.1", port=port), model="m"
        )
        report = await play(plan)
        nursery.cancel_scope.cancel()
    assert report.error is not None
    assert "status 401" in report.error
    assert '{"no": "key"' in report.error
    assert report.metrics["false_aborts"] == 1


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(bench, ["cancel", *words])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--proxy", "http://127.0.0.1:1", "--engine-metrics", "here"], "'here' is not a URL such as"),
        (
            ["--proxy", "http://127.0.0.1:1", "--engine-metrics", "http://127.0.0.1:1/metrics", "--stage", "stall"],
            "a real engine cannot be brought to 'stall'",
        ),
        (["--engine-metrics", "http://127.0.0.1:1/metrics"], "one of --proxy and --proxy-cmd is needed"),
        (
            ["--proxy", "http://h:1", "--engine-metrics", "http://127.0.0.1:1/", "--require", "propagation_p50_ms<1"],
            "'propagation_p50_ms' is not a figure",
        ),
        (["--proxy", "http://127.0.0.1:1", "--engine-metrics", "http://127.0.0.1:1/", "--engine", "x"], "--engine"),
    ],
)
def test_wrong_arguments(words: Sequence[str], said: str) -> None:
    status, output = invoke(*words)
    assert status == 2
    assert said in " ".join(output.split())


def test_the_command_writes_its_report_if_nothing_is_there(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    url = "http://127.0.0.1:1/metrics"
    status, output = invoke("--proxy", "http://127.0.0.1:1", "--engine-metrics", url, "--json", str(file))
    assert status == 3
    assert url in output
    found = json.loads(file.read_text())
    assert (found["kind"], found["cases"], found["metrics"]["aborted"]) == ("engine", [], 0)
    assert found["error"].startswith(url)
