"""PoolTransport loses nothing: whatever is cancelled, dropped or closed, and at whatever step."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple, final

import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bench.httpx_cancel import survey
from certificates import server_context, trusting_context
from network import End, connection, stream_of
from scenarios.play import scheduled_by
from trioproxy import PoolTransport
from trioproxy.net import Address
from trioproxy.transport import Transport

# Generators of httpx and of these tests, which a cancel leaves where they are.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")

OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_MOST_STEPS: Final = 2000


@final
class Net:
    """A network whose server answers every request, in memory."""

    def __init__(self, nursery: trio.Nursery, *, tls: bool = False, answer: bytes = OK, delay: float = 0) -> None:
        self.dialled: list[End] = []
        self._nursery = nursery
        self._tls = tls
        self._answer = answer
        self._delay = delay

    async def connect(self, _: Address) -> Transport:
        await trio.lowlevel.checkpoint()
        near, far = connection(f"connection {len(self.dialled)}")
        self.dialled.append(near)
        self._nursery.start_soon(self._serve, far)
        return near

    async def _serve(self, far: End) -> None:
        stream: trio.abc.Stream = stream_of(far)
        if self._tls:
            stream = trio.SSLStream(stream, server_context(), server_side=True)
        try:
            while data := await stream.receive_some():
                while b"\r\n\r\n" not in data:
                    data += await stream.receive_some()
                if data.startswith(b"POST /whole"):
                    while not data.endswith(b"0\r\n\r\n"):
                        data += await stream.receive_some()
                await trio.sleep(self._delay)
                half = len(self._answer) // 2
                await stream.send_all(self._answer[:half])
                await trio.lowlevel.checkpoint()
                await stream.send_all(self._answer[half:])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    @property
    def open(self) -> int:
        """How many of the client's ends are open."""
        return sum(not end.closed for end in self.dialled)


class Stage(NamedTuple):
    """A client and its network."""

    client: httpx.AsyncClient
    transport: PoolTransport
    net: Net
    url: str


async def get(stage: Stage) -> None:
    await stage.client.get(stage.url)


async def get_twice(stage: Stage) -> None:
    for _ in range(2):
        await stage.client.get(stage.url)


async def wait_in_the_queue(stage: Stage) -> None:
    """More requests than connections, all of them cancelled together."""
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(stage.client.get, stage.url)


async def upload(stage: Stage) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"." * 30_000

    await stage.client.post(f"{stage.url}/whole", content=pieces())


async def upload_that_is_answered_early(stage: Stage) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"." * 30_000
            await trio.lowlevel.checkpoint()

    await stage.client.post(f"{stage.url}/early", content=pieces())


async def read_in_pieces(stage: Stage) -> None:
    async with stage.client.stream("GET", stage.url) as response:
        async for _ in response.aiter_raw():
            await trio.lowlevel.checkpoint()


async def close_early(stage: Stage) -> None:
    async with stage.client.stream("GET", stage.url):
        await trio.lowlevel.checkpoint()


async def make_room(stage: Stage) -> None:
    for port in (1, 2, 3):
        await stage.client.get(f"{stage.url.rsplit(':', 1)[0]}:{port}")


PLAYS: Final[dict[str, Callable[[Stage], Awaitable[None]]]] = {
    play.__name__: play
    for play in (
        get,
        get_twice,
        wait_in_the_queue,
        upload,
        upload_that_is_answered_early,
        read_in_pieces,
        close_early,
        make_room,
    )
}


@final
class CancelAt(trio.abc.Instrument):
    """Cancels a scope before the given step of the scheduler."""

    def __init__(self, step: int) -> None:
        self.scope = trio.CancelScope()
        self.running = False
        self.steps = 0
        self._step = step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.running:
            self.steps += 1
            if self.steps == self._step:
                self.scope.cancel()


async def _stage(play: Callable[[Stage], Awaitable[None]], tls: bool, cancel: CancelAt) -> bool:
    """Whether the play was over before it was cancelled."""
    async with trio.open_nursery() as nursery:
        net = Net(nursery, tls=tls)
        limits = httpx.Limits(max_connections=2, max_keepalive_connections=2)
        transport = PoolTransport(limits=limits, verify=trusting_context(), connector=net.connect)
        client = httpx.AsyncClient(transport=transport, timeout=30)
        stage = Stage(client, transport, net, f"{'https' if tls else 'http'}://127.0.0.1:1")
        with cancel.scope:
            cancel.running = True
            await play(stage)
            cancel.running = False
        cancelled = cancel.scope.cancelled_caught
        cancel.running = False
        now = transport.counts
        assert (now.held, now.connecting, now.waiting) == (0, 0, 0), now
        assert now.idle == net.open, [repr(end) for end in net.dialled]
        # As many requests as there are connections, at once: a slot that was lost would be missed.
        with trio.fail_after(20):
            async with trio.open_nursery() as requests:
                for _ in range(2):
                    requests.start_soon(client.get, stage.url)
        await client.aclose()
        assert net.open == 0
        nursery.cancel_scope.cancel()
    return not cancelled


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS)
def test_cancelled_at_every_step_it_loses_nothing(play: Callable[[Stage], Awaitable[None]], tls: bool) -> None:
    step = 0
    over = False
    while not over:
        step += 1
        assert step < _MOST_STEPS
        cancel = CancelAt(step)
        with scheduled_by(0):
            over = trio.run(
                _stage,
                play,
                tls,
                cancel,
                clock=MockClock(autojump_threshold=0),
                instruments=[cancel],
                strict_exception_groups=True,
            )
    assert step > 5


def _client(nursery: trio.Nursery, **kwargs: int) -> tuple[httpx.AsyncClient, PoolTransport, Net]:
    net = Net(nursery)
    limits = httpx.Limits(max_connections=kwargs.get("most", 1))
    transport = PoolTransport(limits=limits, connector=net.connect)
    return httpx.AsyncClient(transport=transport, timeout=None), transport, net


URL: Final = "http://10.0.0.1/"


async def test_a_response_that_is_dropped_gives_its_connection_back(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        client, transport, net = _client(nursery)
        response = await client.send(client.build_request("GET", URL), stream=True)
        assert transport.counts.held == 1
        async with trio.open_nursery() as waiting:
            waiting.start_soon(client.get, URL)
            await wait_all_tasks_blocked()
            assert transport.counts.waiting == 1
            del response
            gc.collect()
        await wait_all_tasks_blocked()
        assert transport.counts == (1, 0, 0, 0)
        assert net.open == 1
        await client.aclose()
        nursery.cancel_scope.cancel()


async def test_a_response_may_be_dropped_in_another_thread(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        client, transport, net = _client(nursery)
        responses = [await client.send(client.build_request("GET", URL), stream=True)]

        def drop() -> None:
            responses.clear()
            gc.collect()  # httpx's response and its stream hold one another

        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()
        await wait_all_tasks_blocked(0.01)
        assert transport.counts == (0, 0, 0, 0)
        assert net.open == 0
        assert (await client.get(URL)).text == "ok"
        await client.aclose()
        nursery.cancel_scope.cancel()


def test_a_response_may_be_dropped_when_its_run_is_over() -> None:
    kept: list[httpx.Response] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            client, _, _ = _client(nursery)
            kept.append(await client.send(client.build_request("GET", URL), stream=True))
            nursery.cancel_scope.cancel()

    trio.run(run)
    kept.clear()
    gc.collect()


async def test_closing_twice_and_under_cancellation(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        client, transport, net = _client(nursery)
        response = await client.send(client.build_request("GET", URL), stream=True)
        with trio.CancelScope() as scope:
            scope.cancel()
            await response.aclose()
        assert scope.cancelled_caught
        assert transport.counts == (0, 0, 0, 0)
        await response.aclose()
        await response.stream.aclose()  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
        assert net.open == 0
        assert (await client.get(URL)).text == "ok"
        await client.aclose()
        nursery.cancel_scope.cancel()


async def test_a_read_that_is_cancelled_has_lost_nothing(autojump_clock: MockClock) -> None:
    """Of the transport's own stream; httpx's wrappers around it are generators, which a cancel ends."""
    async with trio.open_nursery() as nursery:
        net = Net(nursery, answer=OK.replace(b"ok", b"o" * 500).replace(b"2\r", b"500\r"))
        transport = PoolTransport(connector=net.connect)
        response = await transport.handle_async_request(httpx.Request("GET", URL))
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        pieces = stream.__aiter__()
        data = b""
        while len(data) < 500:
            with trio.move_on_after(0):
                data += await anext(pieces)
            await wait_all_tasks_blocked()
        assert data == b"o" * 500
        assert transport.counts.idle == 1
        await transport.aclose()
        nursery.cancel_scope.cancel()


async def test_the_queue_is_first_come_first_served(autojump_clock: MockClock) -> None:
    order: list[int] = []
    async with trio.open_nursery() as nursery:
        client, _, _ = _client(nursery)

        async def ask(number: int, patience: float) -> None:
            with trio.move_on_after(patience):
                await client.get(URL)
                order.append(number)

        async with trio.open_nursery() as asking:
            for number in range(10):
                asking.start_soon(ask, number, 0 if number % 3 == 1 else 100)
                await wait_all_tasks_blocked(0) if number else await trio.lowlevel.checkpoint()
        assert order == sorted(order)
        await client.aclose()
        nursery.cancel_scope.cancel()


async def test_closing_the_transport_ends_what_is_under_way(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        net = Net(nursery, delay=1000)
        transport = PoolTransport(connector=net.connect)
        client = httpx.AsyncClient(transport=transport, timeout=None)

        async def ask() -> None:
            with pytest.raises(httpx.TransportError):
                await client.get(URL)

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await wait_all_tasks_blocked()
            await client.aclose()
        assert net.open == 0
        nursery.cancel_scope.cancel()


async def test_random_cancels() -> None:
    """What ``python -m bench.httpx_cancel`` does, with more patience if the machine is too busy for any to complete."""
    completed = cancelled = 0
    for longest in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6):
        found = await survey("trioproxy", seconds=1, seed=1, longest=longest)
        assert found.lost == 0
        assert found.answered
        assert found.failed == 0
        completed += found.completed
        cancelled += found.cancelled
        if min(completed, cancelled) > 20:
            break
    assert min(completed, cancelled) > 20
