"""No response is held: what a client does not read stays with the upstream, and arrives whole once it reads."""

from __future__ import annotations

import sys
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import h11
import pytest
import trio

from .serving import Serving, serving

SIZE: Final = 200_000_000
"""Bytes of the stream."""
needs_proc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the memory of another process is read from Linux's /proc"
)
HELD: Final = 1 << 20
"""Bytes that it may cost."""
WAIT: Final = 60.0
STALLED: Final = 0.3
"""Seconds without a byte taken after which the upstream's sending stands still."""
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_REQUEST: Final = b"GET /v1/models HTTP/1.1\r\nhost: test\r\n\r\n"
_TEXT: Final = bytes(range(32, 127)) * 1100


@dataclass
class Sender:
    """An upstream that sends one stream of events as fast as it is taken."""

    size: int
    sent: int = 0
    """Bytes of the body handed to the kernel."""
    checksum: int = 0
    moved: trio.Event = field(default_factory=trio.Event)

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += await stream.receive_some(65536)
            await stream.send_all(_HEAD)
            while self.sent < self.size:
                # Each event differs from the one before: a lost, doubled or swapped one changes the checksum.
                start = self.sent % 89
                event = b"data: %012d %b\n\n" % (self.sent, _TEXT[start : start + 100_000])
                event = event[: self.size - self.sent]
                await stream.send_all(b"%x\r\n%b\r\n" % (len(event), event))
                self.sent += len(event)
                self.checksum = zlib.crc32(event, self.checksum)
                moved, self.moved = self.moved, trio.Event()
                moved.set()
            await stream.send_all(b"0\r\n\r\n")

    async def wait_stalled(self) -> None:
        """Wait until nobody takes anything any more."""
        while True:
            with trio.move_on_after(STALLED):
                await self.moved.wait()
                continue
            return


@asynccontextmanager
async def upstream(sender: Sender) -> AsyncGenerator[str]:
    """The sender on a socket of its own; the URL."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, sender.serve, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def read_all(stream: trio.SocketStream, process: Serving) -> tuple[int, int, int]:
    """Read the response to its end: bytes and checksum of its body, and the most memory that the proxy had then."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/stream", headers=[("host", "test")]))
    http.send(h11.EndOfMessage())
    received = checksum = most = 0
    looked = trio.current_time()
    while True:
        await trio.lowlevel.checkpoint()
        event = http.next_event()
        match event:
            case h11.NEED_DATA:
                http.receive_data(await stream.receive_some(1 << 18))
            case h11.Data():
                received += len(event.data)
                checksum = zlib.crc32(event.data, checksum)
            case h11.EndOfMessage():
                return received, checksum, most
            case h11.Response():
                assert event.status_code == 200
            case _:
                pytest.fail(f"the response was cut: {event}")
        if trio.current_time() - looked > 0.1:
            most = max(most, process.pss())
            looked = trio.current_time()


@dataclass(frozen=True)
class Found:
    """How much more memory the proxy had than before the stream, in bytes."""

    stalled: int
    """While the client did not read."""
    reading: int
    """While it read as fast as it could: the most."""


async def measure(size: int, *, holder: str | None = None) -> Found:
    """Let a stream of ``size`` bytes wait for its client, then read it and check that not a byte was lost.

    :param holder: a mistake to plant in the proxy.
    """
    warm_up = Sender(10_000_000)
    sender = Sender(size)
    with trio.fail_after(WAIT):
        async with (
            upstream(warm_up) as first,
            upstream(sender) as second,
            serving(first, "--upstream", second, holder=holder) as process,
        ):
            async with await trio.open_tcp_stream(*process.address) as client:
                await client.send_all(_REQUEST)
                assert (await read_all(client, process))[:2] == (warm_up.size, warm_up.checksum)
            before = process.pss()
            async with await trio.open_tcp_stream(*process.address) as client:
                await client.send_all(_REQUEST)
                await sender.wait_stalled()
                assert 0 < sender.sent < size / 2, "the kernel took it all, and nothing waited"
                stalled = process.pss()
                received, checksum, most = await read_all(client, process)
            assert (received, checksum) == (size, sender.checksum)
    return Found(stalled - before, most - before)


def check_not_held(found: Found) -> None:
    """The stream costs next to nothing, and hardly more at full speed, when the heap has pieces of 64 KiB in flight."""
    assert found.stalled < HELD
    assert found.reading < 2 * HELD


@needs_proc
async def test_a_stream_to_a_client_that_does_not_read_costs_next_to_nothing() -> None:
    check_not_held(await measure(SIZE))


@needs_proc
async def test_a_planted_holder_of_what_was_relayed_is_found() -> None:
    found = await measure(SIZE // 5, holder="response")
    assert found.stalled > HELD
    with pytest.raises(AssertionError):
        check_not_held(found)
