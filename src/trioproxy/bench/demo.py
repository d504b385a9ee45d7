"""``trioproxy demo``: on loopback, in a few seconds, what the proxy does when clients leave and while they wait.

Lives here: the scenarios and the run. The parts: demo_client.py (a client on a real socket), demo_memory.py (what is
held, by allocation), demo_report.py (results, their judgement, text and JSON).

A mock model server and a proxy listen on free ports of one process; so the client's close and the server's noticing
are times of the same clock, and whatever keeps a body keeps it where it can be measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast, final

import click
import trio

from ..process import fix_mmap_threshold
from ..server import Proxy
from .demo_client import DemoClient
from .demo_memory import CONTROL_SIZE, Held, Live, Tracing, process_pss
from .demo_report import BodyHeld, Leave, Report, Saw, Scenario, TextReport
from .mock import MockServer, RequestRecord

TIME_LIMIT: Final = 14.0
"""Seconds that all of it may take; 5 are usual."""
_PREFILL: Final = 0.7
_INTERVAL: Final = 0.02
_SETTLE: Final = 0.05
"""Seconds from the body's last byte at the model server to the measurement: all that is to be let go of is gone."""
_ABORT_WAIT: Final = 2.0
"""Seconds after which an abort counts as never seen."""
_WATCH: Final = 5 * _INTERVAL
"""Seconds beyond the next token's time, to see whether it is made after all."""
_REQUEST_WAIT: Final = 5.0
"""Seconds that a request may take to be with the model server."""
_PATIENCE: Final = 0.1
"""Seconds that a client waits for a response before it leaves in prefill."""
MIB: Final = 1 << 20


class DemoError(Exception):
    """A scenario could not be played to its end, for a reason that people can read."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One scenario, before it has run.

    :param reads: after how many tokens the client leaves, if it leaves mid-stream.
    """

    name: str
    title: str
    size: int
    tokens: int = 16
    left: Leave | None = None
    reads: int | None = None


PLANS: Final = (
    Plan(name="completed", title="A streamed completion that ends well (prompt of 1 MiB)", size=MIB),
    Plan(
        name="left_in_prefill",
        title="A client that leaves during prefill (prompt of 1 MiB)",
        size=MIB,
        left=Leave.PREFILL,
        reads=0,
    ),
    Plan(
        name="left_mid_stream",
        title="A client that leaves mid-stream (prompt of 1 MiB)",
        size=MIB,
        tokens=500,
        left=Leave.MID_STREAM,
        reads=10,
    ),
    Plan(name="large_prompt", title="A request that waits in prefill with a prompt of 16 MiB", size=16 * MIB),
)


@final
class Demo:
    """A proxy in front of a mock model server, and clients that come and go.

    :param address: where the proxy listens.
    :param counter: the proxy's own count of the bytes of bodies that it holds.
    """

    __slots__ = ("_address", "_control", "_counter", "_server")

    def __init__(self, server: MockServer, address: tuple[str, int], counter: Callable[[], int]) -> None:
        self._server = server
        self._address = address
        self._counter = counter
        self._control: Live | None = None

    async def run(self, plan: Plan) -> Scenario:
        """Run one scenario.

        :raises OSError: the proxy does not listen.
        :raises DemoError: the request does not get through. Cancelled, nothing is left open.
        """
        if self._control is None:
            # Twice: the first one also fills what is kept for good, such as caches of imports and codecs.
            await self._measure_control()
            self._control = await self._measure_control()
        control = self._control
        async with await DemoClient.connect(self._address) as client:
            record, held = await self._until_prefill(client, plan, control)
            if plan.left is Leave.PREFILL:
                with trio.move_on_after(_PATIENCE):
                    await client.read(1)  # there is to be nothing
            else:
                await client.read(plan.reads)
            made = record.tokens
            seen: float | None = None
            if plan.left is not None:
                seen = await self._leave(client, record)
            saw = Saw(
                status=client.status,
                tokens=client.tokens,
                in_order=client.in_order,
                complete=client.complete and client.done,
                broken=client.broken,
            )
        return Scenario(
            name=plan.name,
            title=plan.title,
            prompt_bytes=plan.size,
            left=plan.left,
            tokens_wanted=plan.tokens if plan.reads is None else plan.reads,
            saw=saw,
            abort_seen=seen,
            tokens_wasted=record.tokens - made,
            forwarded=record.body_bytes,
            body_held=held,
        )

    async def _measure_control(self) -> Live:
        """What a request with a small body holds while it waits in prefill."""
        with Tracing() as tracing:
            async with await DemoClient.connect(self._address) as client:
                record = await self._ask(client, f"control-{len(self._server.records)}", CONTROL_SIZE, tokens=1)
                live = tracing.live()
        await self._wait_over(record)
        return live

    async def _until_prefill(
        self, client: DemoClient, plan: Plan, control: Live
    ) -> tuple[RequestRecord, BodyHeld | None]:
        """Send the request and see what is held for it while it waits."""
        # Tracing ends here: it must not slow down what is timed next.
        before = process_pss()
        with Tracing() as tracing:
            record = await self._ask(client, plan.name, plan.size, tokens=plan.tokens)
            if record.first_token is not None:
                return record, None
            # From here to the end nothing is awaited, so nothing can begin while it is measured.
            held = Held.between(control, tracing.live())
            counter = self._counter()
        after = process_pss()
        change = None if before is None or after is None else after - before
        return record, BodyHeld(held=held, counter=counter, pss_change=change)

    async def _ask(self, client: DemoClient, name: str, size: int, *, tokens: int) -> RequestRecord:
        await client.ask(name, size=size, prefill=_PREFILL, interval=_INTERVAL, tokens=tokens)
        with trio.move_on_after(_REQUEST_WAIT):
            record = await self._server.wait_record(lambda record: record.id == name and record.body_read is not None)
            await trio.sleep(_SETTLE)
            return record
        reason = f"within {_REQUEST_WAIT:g} s" if client.broken is None else f"whole: {client.broken}"
        raise DemoError(f"the request {name!r} did not reach the model server {reason}")

    async def _leave(self, client: DemoClient, record: RequestRecord) -> float | None:
        """Leave, and see what comes of it; returns when the model server saw it, in ms after the call to close."""
        left = client.leave()
        await self._wait_over(record)
        # Had it not been told, it would go on: wait for what it would have made.
        body_read = left if record.body_read is None else record.body_read
        await trio.sleep(max(0.0, body_read + _PREFILL - time.monotonic()) + _WATCH)
        return None if record.abandoned is None else (record.abandoned - left) * 1000

    async def _wait_over(self, record: RequestRecord) -> None:
        with trio.move_on_after(_ABORT_WAIT):
            await self._server.wait_record(lambda other: other is record and _is_over(record))


async def run_scenarios(
    plans: Sequence[Plan], listening: Callable[[str, str], None], ended: Callable[[Scenario], None]
) -> None:
    """Start a model server and a proxy, and run scenarios one after the other.

    :param listening: called once with the addresses of both, the proxy's first.
    :param ended: called with each scenario when it is over.
    :raises ExceptionGroup: with an OSError, if a port or a connection cannot be had, or with a DemoError, if a request
        does not get through. Cancelled, it leaves nothing open.
    """
    server = MockServer()
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(server.serve)
        proxy = Proxy([f"http://{host}:{port}"])
        addresses: list[tuple[str, int]] = await nursery.start(proxy.serve)
        listening(_show(addresses[0]), _show((host, port)))
        demo = Demo(server, addresses[0], lambda: proxy.statistics().body_bytes_held)
        for plan in plans:
            ended(await demo.run(plan))
        nursery.cancel_scope.cancel()


def _is_over(record: RequestRecord) -> bool:
    return record.abandoned is not None or record.finished is not None


def _show(address: tuple[str, int]) -> str:
    return f"http://{address[0]}:{address[1]}"


def run_demo(*, as_json: bool) -> int:
    """Run the demo and print what it finds: as text while it runs, or as JSON at the end.

    :returns: the exit status: 0 if all of it holds, else 1; 130 when interrupted.
    """
    fix_mmap_threshold()
    text = TextReport(terminal=_terminal())
    scenarios: list[Scenario] = []

    def listening(proxy: str, server: str) -> None:
        if not as_json:
            click.echo(text.opening(proxy, server))

    def ended(scenario: Scenario) -> None:
        scenarios.append(scenario)
        if not as_json:
            click.echo(text.scenario(scenario))

    async def bounded() -> bool:
        with trio.move_on_after(TIME_LIMIT) as scope:
            await run_scenarios(PLANS, listening, ended)
        return not scope.cancelled_caught

    started = time.monotonic()
    error: str | None = None
    interrupted = False
    try:
        if not trio.run(bounded):
            missing = f"the scenario {PLANS[len(scenarios)].name!r}" if len(scenarios) < len(PLANS) else "the end"
            error = f"it may take {TIME_LIMIT:g} s, and {missing} was not over by then"
    except* DemoError as group:
        error = str(_first(group))
    except* OSError as group:
        error = f"the system refuses what the demo needs: {_first(group)}"
    except* KeyboardInterrupt:
        interrupted = True
    if interrupted:
        click.echo("interrupted", err=True)
        return 130
    report = Report(scenarios=scenarios, seconds=time.monotonic() - started, error=error)
    click.echo(report.as_json() if as_json else text.closing(report))
    return 0 if report.ok else 1


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error that is not a group itself."""
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", first))
    return first


def _terminal() -> bool:
    """Whether the output is a terminal that can show the marks."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return sys.stdout.isatty() and encoding.startswith("utf")
