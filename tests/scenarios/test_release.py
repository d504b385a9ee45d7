"""The prompt is let go of when it has been forwarded, before any byte of the response.

Measured twice: by allocation in this process, and by the memory of a fresh process that runs ``trioproxy serve``. Both
compare requests that wait in prefill with controls at the same place, whose bodies are next to nothing. Each check is
one function, and each must fail when a holder of the body is planted (``holders.py``).
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import pytest
import trio
import trio.testing

from trioproxy import Proxy, Settings, Statistics
from trioproxy.bench.demo_client import DemoClient
from trioproxy.bench.demo_memory import Tracing
from trioproxy.bench.mock import MockServer, RequestRecord
from trioproxy.body import READ_AHEAD
from trioproxy.config import BodyMode

from . import holders
from .serving import Serving, serving

KIB: Final = 1 << 10
MIB: Final = 1 << 20
CONTROL: Final = 256
"""Bytes of a control's body: about as small as one that the mock understands."""
ROUNDS: Final = 3
PREFILL: Final = 5.0
WAIT: Final = 20.0
"""Seconds until a test gives up."""
SETTLE: Final = 0.05
"""Seconds that another process gets to do what it does at once."""

Plant = Callable[[str], None]

needs_proc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the memory of another process is read from Linux's /proc"
)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Generator[Plant]:
    """Plants a holder in this process, by its name."""

    def plant_one(name: str) -> None:
        monkeypatch.setattr(*holders.HOLDERS[name])

    yield plant_one
    holders.kept.clear()


# By allocation, in this process


@dataclass(frozen=True)
class Live:
    """A request at the time when it waited in prefill."""

    bytes: int
    """Of all that had been allocated since just before the request, what was live."""
    peak: int
    """The most that was live between its first byte and then."""
    statistics: Statistics


@dataclass(frozen=True)
class Place:
    """A proxy in front of a mock, in this process."""

    server: MockServer
    proxy: Proxy
    address: tuple[str, int]

    async def live_in_prefill(self, size: int) -> Live:
        """What is live for a request with a body of ``size`` bytes."""
        name = f"request {len(self.server.records)}"
        with Tracing() as tracing:
            async with await DemoClient.connect(self.address) as client:
                await client.ask(name, size=size, prefill=PREFILL, interval=0, tokens=1)
                record = await self.server.wait_record(_is_read(name))
                await trio.testing.wait_all_tasks_blocked()
                _, peak = tracemalloc.get_traced_memory()
                live = Live(tracing.live().total, peak, self.proxy.statistics())
            assert record.first_token is None
            assert record.body_bytes == size
        await self.server.wait_record(_is_abandoned(name))
        await trio.testing.wait_all_tasks_blocked()
        return live


@asynccontextmanager
async def place(body: BodyMode) -> AsyncGenerator[Place]:
    server = MockServer()
    with trio.fail_after(WAIT):
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(server.serve)
            proxy = Proxy([f"http://{host}:{port}"], settings=Settings(body=body))
            addresses = await nursery.start(proxy.serve)
            yield Place(server, proxy, addresses[0])
            nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class Excess:
    """A request in prefill beside its control, in bytes."""

    live: float
    peak: float
    statistics: Statistics


async def measure(size: int, *, earlier: int | None = None, body: BodyMode = "buffer") -> Excess:
    """Compare a request in prefill with a control.

    Of several comparisons the middle one counts: a body that is kept shows in each, a list that grows does once.

    :param earlier: bytes of a body that comes and goes before.
    """
    async with place(body) as here:
        for warm_up in (CONTROL, 256 * KIB):  # caches fill, and stay
            await here.live_in_prefill(warm_up)
        if earlier is not None:
            await here.live_in_prefill(earlier)
        pairs = [(await here.live_in_prefill(CONTROL), await here.live_in_prefill(size)) for _ in range(ROUNDS)]
    return Excess(
        median([live.bytes - control.bytes for control, live in pairs]),
        median([live.peak - control.peak for control, live in pairs]),
        pairs[-1][1].statistics,
    )


def check_released(size: int, found: Excess) -> None:
    """The body's memory is free: what else grew is less than half of 4 KiB and 1/32 of 16 MiB.

    That much because each send has a deadline, and Trio removes those that are over a thousand at a time, of 300 bytes.
    """
    assert found.live < max(2 * KIB, size // 32)
    assert found.statistics.body_bytes_held == 0
    assert found.statistics.body_violations == 0
    assert sum(found.statistics.in_flight.values()) == 1


@pytest.mark.parametrize(
    ("size", "earlier"),
    [
        pytest.param(4 * KIB, None, id="4_KiB"),
        pytest.param(4 * KIB, 16 * MIB, id="4_KiB_after_16_MiB"),
        pytest.param(16 * MIB, None, id="16_MiB_again_and_again"),
    ],
)
async def test_nothing_of_a_buffered_body_is_allocated(size: int, earlier: int | None) -> None:
    check_released(size, await measure(size, earlier=earlier))


@pytest.mark.parametrize(
    ("holder", "size"),
    [
        pytest.param("slice", 4 * KIB, id="slice_of_4_KiB"),
        pytest.param("slice", 16 * MIB, id="slice_of_16_MiB"),
        pytest.param("copy", 4 * KIB, id="copy_of_4_KiB"),
        pytest.param("copy", 16 * MIB, id="copy_of_16_MiB"),
        pytest.param("parts", MIB, id="many_small_parts_of_1_MiB"),
    ],
)
async def test_a_planted_holder_of_a_buffered_body_is_found(plant: Plant, size: int, holder: str) -> None:
    plant(holder)
    found = await measure(size)
    assert found.live > size - max(KIB, size // 10)
    with pytest.raises(AssertionError):
        check_released(size, found)


async def test_a_view_that_escaped_its_lease_is_counted(plant: Plant) -> None:
    plant("slice")
    async with place("buffer") as here:
        for requests in (1, 2):
            statistics = (await here.live_in_prefill(4 * KIB)).statistics
            assert statistics.body_violations == requests
            assert statistics.body_bytes_held == 0


async def test_a_copy_is_nothing_that_the_proxy_could_count(plant: Plant) -> None:
    """Which is why its own counter alone proves nothing."""
    plant("copy")
    async with place("buffer") as here:
        statistics = (await here.live_in_prefill(4 * KIB)).statistics
        assert statistics.body_violations == 0
        assert statistics.body_bytes_held == 0


@pytest.mark.parametrize("size", [4 * KIB, 16 * MIB], ids=["4_KiB", "16_MiB"])
async def test_nothing_of_a_streamed_body_is_allocated_and_never_much(size: int) -> None:
    found = await measure(size, body="stream")
    check_released(size, found)
    check_bounded(found)


def check_bounded(found: Excess) -> None:
    """A body that is streamed through was never held whole: read-ahead, what is being sent, and the ends' buffers."""
    assert found.peak < MIB


async def test_a_planted_holder_of_a_streamed_body_is_found(plant: Plant) -> None:
    plant("pieces")
    found = await measure(16 * MIB, body="stream")
    with pytest.raises(AssertionError):
        check_released(16 * MIB, found)
    with pytest.raises(AssertionError):
        check_bounded(found)


async def test_a_body_that_is_buffered_is_not_bounded_so() -> None:
    """The peak is seen at all."""
    with pytest.raises(AssertionError):
        check_bounded(await measure(16 * MIB, body="buffer"))


async def test_a_body_streamed_to_an_upstream_that_does_not_read_is_bounded() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")  # connects, since the kernel accepts
        async with listener:
            host, port = listener.socket.getsockname()
            proxy = Proxy([f"http://{host}:{port}"], settings=Settings(body="stream"))
            addresses = await nursery.start(proxy.serve)
            with Tracing() as tracing:
                async with await DemoClient.connect(addresses[0]) as client:
                    with trio.move_on_after(0.3) as waited:
                        await client.ask("stalled", size=32 * MIB, prefill=0, interval=0, tokens=1)
                    assert waited.cancelled_caught, "32 MiB went somewhere"
                    assert READ_AHEAD <= proxy.statistics().body_bytes_held <= 2 * READ_AHEAD
                    assert tracing.live().total < MIB
        nursery.cancel_scope.cancel()


# By the memory of another process


@dataclass(frozen=True)
class OtherPlace:
    """A proxy in a process of its own, in front of a mock in this one."""

    server: MockServer
    process: Serving

    async def excess(self, size: int, count: int) -> float:
        """How much more memory the process has for a request in prefill than for a control, in bytes: the middle one
        of several comparisons.

        :param count: how many requests wait at a time.
        """
        found: list[int] = []
        for _ in range(ROUNDS):
            control = await self.pss_in_prefill(CONTROL, count)
            found.append(await self.pss_in_prefill(size, count) - control)
        return median(found) / count

    async def pss_in_prefill(self, size: int, count: int) -> int:
        """The memory of the process while ``count`` requests wait in prefill."""
        server = self.server
        names = [f"request {len(server.records) + index}" for index in range(count)]
        async with AsyncExitStack() as stack:
            for name in names:
                client = await stack.enter_async_context(await DemoClient.connect(self.process.address))
                await client.ask(name, size=size, prefill=PREFILL, interval=0, tokens=1)
            for name in reversed(names):  # the newest is found first
                await server.wait_record(_is_read(name))
            await trio.sleep(SETTLE)
            pss = self.process.pss()
            assert not any(record.first_token for record in server.records if record.id in names)
        for name in reversed(names):
            await server.wait_record(_is_abandoned(name))
        return pss


def _is_read(name: str) -> Callable[[RequestRecord], bool]:
    return lambda record: record.id == name and record.body_read is not None


def _is_abandoned(name: str) -> Callable[[RequestRecord], bool]:
    return lambda record: record.id == name and record.abandoned is not None


@asynccontextmanager
async def other_place(holder: str | None = None) -> AsyncGenerator[OtherPlace]:
    """A proxy in a process of its own, warm.

    :param holder: a mistake to plant in it.
    """
    server = MockServer()
    with trio.fail_after(WAIT):
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(server.serve)
            async with serving(f"http://{host}:{port}", "--body", "buffer", holder=holder) as process:
                here = OtherPlace(server, process)
                await here.pss_in_prefill(256 * KIB, 1)
                await here.pss_in_prefill(CONTROL, 1)
                yield here
            nursery.cancel_scope.cancel()


def check_pss(size: int, excess: float) -> None:
    """The body is no part of the process's memory: half of 4 KiB and 1/16 of 16 MiB are within what wavers."""
    assert excess < max(2 * KIB, size // 16)


PSS_CASES: Final = [pytest.param(4 * KIB, 200, id="200_of_4_KiB"), pytest.param(16 * MIB, 1, id="16_MiB")]


@needs_proc
@pytest.mark.parametrize(("size", "count"), PSS_CASES)
async def test_a_body_is_no_part_of_the_process_any_more(size: int, count: int) -> None:
    async with other_place() as here:
        check_pss(size, await here.excess(size, count))
        if size < 16 * MIB:
            await here.pss_in_prefill(16 * MIB, 1)
            check_pss(size, await here.excess(size, count))


@needs_proc
@pytest.mark.parametrize("holder", ["slice", "copy"])
@pytest.mark.parametrize(("size", "count"), PSS_CASES)
async def test_a_planted_holder_shows_in_the_process(size: int, count: int, holder: str) -> None:
    async with other_place(holder) as here:
        excess = await here.excess(size, count)
    with pytest.raises(AssertionError):
        check_pss(size, excess)
