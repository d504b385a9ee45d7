"""``trioproxy demo``: it passes as things are, and each thing that it claims fails it when that is broken."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final

import click
import pytest
import trio

from scenarios import holders
from trioproxy.bench import demo, demo_memory
from trioproxy.bench.demo import PLANS, Plan, run_demo
from trioproxy.bench.demo_client import DemoClient
from trioproxy.bench.demo_memory import LARGE_BLOCK, SMALL_BLOCKS, Held, Live, Tracing
from trioproxy.bench.demo_report import BodyHeld, Leave, Report, Saw, Scenario, TextReport
from trioproxy.bench.mock import MockServer
from trioproxy.exchange import Exchange
from trioproxy.record import Outcome

MIB: Final = 1 << 20
COMPLETED, LEFT_IN_PREFILL, LEFT_MID_STREAM, LARGE_PROMPT = PLANS

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the demo, or a part of it, and returns what it said as JSON and its exit status as ``status``."""

    def run_some(*plans: Plan) -> dict[str, Any]:
        monkeypatch.setattr(demo, "PLANS", plans)
        status = run_demo(as_json=True)
        captured = capsys.readouterr()
        assert captured.err == ""
        return {**json.loads(captured.out), "status": status}

    return run_some


@pytest.fixture(autouse=True)
def _forget_what_was_kept() -> Generator[None]:
    yield
    holders.kept.clear()


# As things are


def test_all_of_it_holds_and_the_json_is_what_is_documented(run: Run) -> None:
    found = run(*PLANS)
    assert found.keys() == {"ok", "seconds", "error", "scenarios", "status"}
    assert (found["status"], found["ok"], found["error"]) == (0, True, None)
    assert found["seconds"] < 15
    for scenario, plan in zip(found["scenarios"], PLANS, strict=True):
        held = scenario["body_held"]
        leaves = plan.left is not None
        assert scenario == {
            "name": plan.name,
            "title": plan.title,
            "ok": True,
            "failures": [],
            "prompt_bytes": plan.size,
            "client_saw": {
                "status": None if plan.left is Leave.PREFILL else 200,
                "tokens": plan.tokens if plan.reads is None else plan.reads,
                "in_order": True,
                "complete": not leaves,
            },
            "left": plan.left.value if plan.left is not None else None,
            "abort_seen_ms": scenario["abort_seen_ms"],
            "tokens_wasted": 0,
            "body_held": {
                "allocated_bytes": 0,
                "other_bytes": held["other_bytes"],
                "counter_bytes": 0,
                "pss_change_bytes": held["pss_change_bytes"],
            },
        }
        assert (scenario["abort_seen_ms"] is not None) == leaves
        assert 0 <= held["other_bytes"] < SMALL_BLOCKS


def test_text_comes_while_it_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "PLANS", (LEFT_IN_PREFILL,))
    assert run_demo(as_json=False) == 0
    text = capsys.readouterr().out
    assert text.isascii(), "a pipe may be read by anything"
    assert max(map(len, text.splitlines())) <= 100
    assert re.fullmatch(
        r"A proxy on http://127\.0\.0\.1:\d+, in front of a mock model server on http://127\.0\.0\.1:\d+\.\n\n"
        r"1\. A client that leaves during prefill \(prompt of 1 MiB\)\n"
        r"   ok   client saw        nothing yet, then it left\n"
        r"   ok   abort seen        after \d+\.\d\d ms\n"
        r"   ok   tokens wasted     0\n"
        r"   ok   body still held   0 B of 1,048,576 B, before any response\n"
        r" {26}own count 0 B; bookkeeping [\d,]+ B more than for 4 KiB(; PSS [-+][\d,]+ KiB)?\n\n"
        r"All of it holds\. It took \d+\.\d s\.\n",
        text,
    )


# As things must not be


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill that is just long enough to measure in."""
    monkeypatch.setattr(demo, "_PREFILL", 0.35)


@pytest.mark.parametrize(
    ("holder", "plan"),
    [
        pytest.param("slice", LARGE_PROMPT, id="a_slice_pins_it"),
        pytest.param("copy", LARGE_PROMPT, id="a_copy"),
        pytest.param("parts", COMPLETED, id="many_small_parts"),
    ],
)
@pytest.mark.usefixtures("hurried")
def test_a_body_that_is_kept_fails_it(monkeypatch: pytest.MonkeyPatch, run: Run, holder: str, plan: Plan) -> None:
    monkeypatch.setattr(*holders.HOLDERS[holder])
    found = run(plan)
    (scenario,) = found["scenarios"]
    assert (found["status"], found["ok"], scenario["ok"]) == (1, False, False)
    assert scenario["failures"] == ["body still held: memory of a body that has been forwarded must be free"]
    assert scenario["body_held"]["allocated_bytes"] >= plan.size
    assert scenario["body_held"]["counter_bytes"] == 0, "and the proxy's own count does not know"


def _heedless(self: Exchange, cause: Outcome) -> None:
    """The reader sees the client leave, and the upstream is not told."""


@pytest.mark.parametrize("plan", [LEFT_IN_PREFILL, LEFT_MID_STREAM], ids=lambda plan: plan.name)
@pytest.mark.usefixtures("hurried")
def test_a_proxy_that_notices_at_its_next_write_fails_it(monkeypatch: pytest.MonkeyPatch, run: Run, plan: Plan) -> None:
    monkeypatch.setattr(Exchange, "abort", _heedless)
    found = run(plan)
    (scenario,) = found["scenarios"]
    assert found["status"] == 1
    assert scenario["tokens_wasted"] >= 1
    assert "tokens wasted: no token may be made after the client has left" in scenario["failures"]


def test_time_is_limited(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(demo, "TIME_LIMIT", 0.3)
    found = run(COMPLETED, LARGE_PROMPT)
    assert (found["status"], found["ok"], found["scenarios"]) == (1, False, [])
    assert found["error"] == "it may take 0.3 s, and the scenario 'completed' was not over by then"


def test_a_request_that_does_not_get_through_ends_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(demo, "_REQUEST_WAIT", 0.3)
    too_large = dataclasses.replace(COMPLETED, name="too_large", size=65 * MIB)
    found = run(too_large)
    assert found["status"] == 1
    assert re.match(r"the request 'too_large' did not reach the model server ", found["error"])


async def _taken(  # noqa: ASYNC114, ASYNC128 - stands in for a method, and fails
    self: MockServer, *, task_status: trio.TaskStatus[object]
) -> None:
    await trio.lowlevel.checkpoint()
    raise OSError(errno.EADDRINUSE, "Address already in use")


async def _interrupted(  # noqa: ASYNC114, ASYNC128 - stands in for a method, and fails
    self: MockServer, *, task_status: trio.TaskStatus[object]
) -> None:
    await trio.lowlevel.checkpoint()
    raise KeyboardInterrupt


@pytest.mark.parametrize("as_json", [False, True])
def test_what_the_system_refuses_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    monkeypatch.setattr(MockServer, "serve", _taken)
    assert run_demo(as_json=as_json) == 1
    text, complaint = capsys.readouterr()
    reason = "the system refuses what the demo needs: [Errno 98] Address already in use"
    reason = reason.replace("98", str(errno.EADDRINUSE))
    assert complaint == ""
    if as_json:
        assert json.loads(text)["error"] == reason
        assert not json.loads(text)["ok"]
    else:
        assert text == f"\nThe demo failed: {reason}\n"


def test_an_interrupt_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MockServer, "serve", _interrupted)
    assert run_demo(as_json=False) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


# The judgement

GOOD: Final = Scenario(
    name="left_mid_stream",
    title="A client that leaves mid-stream",
    prompt_bytes=MIB,
    left=Leave.MID_STREAM,
    tokens_wanted=10,
    saw=Saw(status=200, tokens=10),
    abort_seen=0.5,
    tokens_wasted=0,
    forwarded=MIB,
    body_held=BodyHeld(held=Held(0, 900), counter=0, pss_change=None),
)
STAYED: Final = dataclasses.replace(
    GOOD, left=None, abort_seen=None, saw=Saw(status=200, tokens=10, complete=True), tokens_wanted=10
)
IN_PREFILL: Final = dataclasses.replace(GOOD, left=Leave.PREFILL, saw=Saw(), tokens_wanted=0)

BROKEN: Final = {
    "token_lost": ("client saw", dataclasses.replace(GOOD, saw=Saw(status=200, tokens=9))),
    "out_of_order": ("client saw", dataclasses.replace(GOOD, saw=Saw(status=200, tokens=10, in_order=False))),
    "error_status": ("client saw", dataclasses.replace(GOOD, saw=Saw(status=502, tokens=10))),
    "no_response": ("client saw", dataclasses.replace(STAYED, saw=Saw())),
    "no_end": ("client saw", dataclasses.replace(STAYED, saw=Saw(status=200, tokens=10))),
    "broken": ("client saw", dataclasses.replace(GOOD, saw=Saw(status=200, tokens=10, broken="reset"))),
    "response_in_prefill": ("client saw", dataclasses.replace(IN_PREFILL, saw=Saw(status=503))),
    "body_cut": ("client saw", dataclasses.replace(GOOD, forwarded=MIB - 1)),
    "abort_unseen": ("abort seen", dataclasses.replace(GOOD, abort_seen=None)),
    "abort_seen_late": ("abort seen", dataclasses.replace(GOOD, abort_seen=251.0)),
    "abort_of_nobody": ("abort seen", dataclasses.replace(STAYED, abort_seen=1.0)),
    "token_wasted": ("tokens wasted", dataclasses.replace(GOOD, tokens_wasted=1)),
    "not_measured": ("body still held", dataclasses.replace(GOOD, body_held=None)),
    "allocated": (
        "body still held",
        dataclasses.replace(GOOD, body_held=BodyHeld(held=Held(1, 0), counter=0, pss_change=None)),
    ),
    "counted": (
        "body still held",
        dataclasses.replace(GOOD, body_held=BodyHeld(held=Held(0, 0), counter=1, pss_change=None)),
    ),
}


@pytest.mark.parametrize("scenario", [GOOD, STAYED, IN_PREFILL], ids=["mid_stream", "stayed", "prefill"])
def test_what_is_right_is_right(scenario: Scenario) -> None:
    report = Report(scenarios=[scenario], seconds=1)
    assert report.ok
    assert scenario.failures() == []
    assert TextReport(terminal=False).closing(report) == "\nAll of it holds. It took 1.0 s."


@pytest.mark.parametrize(("label", "scenario"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("terminal", [False, True])
def test_each_thing_that_is_wrong_fails_its_own_line(label: str, scenario: Scenario, terminal: bool) -> None:
    report = Report(scenarios=[GOOD, scenario], seconds=1)
    assert not report.ok
    (failure,) = scenario.failures()
    assert failure.startswith(f"{label}: ")
    text = TextReport(terminal=terminal)
    lines = click.unstyle(text.scenario(scenario)).splitlines()
    (failed,) = [number for number, line in enumerate(lines) if line[3:7].strip().startswith(("FAIL", "✗"))]
    assert label in lines[failed]
    assert lines[failed + 1].strip() == failure.removeprefix(f"{label}: ")
    assert click.unstyle(text.closing(report)) == "\n1 of 8 checks failed, in 1.0 s."
    document = json.loads(report.as_json())
    assert [entry["failures"] for entry in document["scenarios"]] == [[], [failure]]


@pytest.mark.parametrize("scenario", [GOOD, *(scenario for _, scenario in BROKEN.values())])
def test_lines_are_aligned_and_fit(scenario: Scenario) -> None:
    plain = TextReport(terminal=False).scenario(scenario)
    coloured = TextReport(terminal=True).scenario(scenario)
    assert "\x1b" in coloured
    assert "\x1b" not in plain
    assert plain.isascii()
    for text, column in ((plain, 26), (click.unstyle(coloured), 23)):
        _, _, *lines = text.splitlines()
        assert max(map(len, lines)) <= 100
        for line in lines:
            assert line[column - 1] == " "
            assert line[column] != " "


# The measure


def test_a_large_block_counts_whole_and_only_beyond_the_control() -> None:
    block = demo_memory.Block("body.py", 1, LARGE_BLOCK)
    control = Live(Counter({block: 1}), 1000)
    assert Held.between(control, control) == Held(0, 0)
    assert Held.between(control, Live(Counter({block: 3}), 900)) == Held(2 * LARGE_BLOCK, 0)
    assert Held.between(control, Live(Counter(), 1000)) == Held(0, 0)


def test_small_blocks_count_from_when_they_are_too_many() -> None:
    control = Live(Counter(), 1000)
    assert Held.between(control, Live(Counter(), 1000 + SMALL_BLOCKS)) == Held(0, SMALL_BLOCKS)
    assert Held.between(control, Live(Counter(), 1001 + SMALL_BLOCKS)) == Held(SMALL_BLOCKS + 1, SMALL_BLOCKS + 1)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_tracing_sees_what_lives_and_not_what_has_gone(kind: type[bytes | bytearray]) -> None:
    with Tracing() as tracing:
        kept = kind(MIB)
        gone = bytearray(MIB)
        gone.clear()
        live = tracing.live()
        assert MIB <= sum(block.size * count for block, count in live.large.items()) < MIB + 100
        del kept
        assert tracing.live().large == Counter()


# The client, against servers that are wrong

_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunks(*events: str) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(event) + 8, f"data: {event}\n\n".encode()) for event in events)


def _token(number: int) -> str:
    return json.dumps({"choices": [{"delta": {"content": f"{number:04d} "}}]})


async def _seen(answer: bytes) -> DemoClient:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(65536)
            await stream.send_all(answer)

    start: Callable[..., Awaitable[Any]] = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(start)
            async with await DemoClient.connect(listener.socket.getsockname()) as client:
                await client.ask("name", size=500, prefill=0, interval=0, tokens=2)
                await client.read()
            nursery.cancel_scope.cancel()
    return client


async def test_the_client_knows_a_whole_response() -> None:
    client = await _seen(_HEAD + _chunks(_token(0), _token(1), "[DONE]") + b"0\r\n\r\n")
    assert (client.status, client.tokens, client.in_order, client.done, client.complete) == (200, 2, True, True, True)
    assert client.broken is None


@pytest.mark.parametrize("tokens", [(1,), (0, 2), (0, 0), (1, 0)], ids=["first_lost", "one_lost", "doubled", "swapped"])
async def test_the_client_knows_tokens_that_are_not_in_order(tokens: tuple[int, ...]) -> None:
    client = await _seen(_HEAD + _chunks(*map(_token, tokens), "[DONE]") + b"0\r\n\r\n")
    assert not client.in_order


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(_HEAD, id="head_only"),
        pytest.param(_HEAD + _chunks(_token(0)), id="cut"),
        pytest.param(_HEAD + b"zz\r\n", id="no_chunk"),
        pytest.param(_HEAD + _chunks("{", "[DONE]") + b"0\r\n\r\n", id="no_json"),
    ],
)
async def test_the_client_knows_a_broken_response(answer: bytes) -> None:
    client = await _seen(answer)
    assert client.broken is not None
    assert not client.complete
