"""The relay: what it does with each read, in which order."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from transports import Script
from trioproxy import Code, Fault, ProxyError
from trioproxy.apis.usage import Usage
from trioproxy.downstream import ClientGone, DateField, ResponseWriter
from trioproxy.http1 import CHUNKED, NO_BODY, UNTIL_CLOSE, Framing, ResponseHead, decoder
from trioproxy.relay import Relay


class Watcher:
    """Notes, in one list with what the transports note, what the relay tells of."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events = 0
        self.at_boundary = True

    def feed(self, data: bytes) -> None:
        self.notes.append(f"observed {data!r}")

    def finish(self) -> Usage | None:
        return None

    def progress(self) -> None:
        self.notes.append("progress")

    def blocked(self) -> None:
        self.notes.append("blocked")

    def resumed(self) -> None:
        self.notes.append("resumed")


class Run:
    """One relay between two scripted transports."""

    def __init__(self, framing: Framing, gives: list[bytes | None], takes: list[int | None] | None = None) -> None:
        self.watcher = Watcher()
        self.client = Script(takes=takes or [], log=lambda note: self.watcher.notes.append(f"client {note}"))
        source = Script(gives=gives, log=lambda note: self.watcher.notes.append(f"upstream {note}"))
        self.writer = ResponseWriter(self.client, http_11=True, head_only=False, keep_alive=True, stall=60)
        self.writer.relayed_head(ResponseHead(200, b"", True, [], framing, True), b"id", DateField())
        self.relay = Relay(source, decoder(framing, fault=Fault.UPSTREAM), self.writer, self.watcher, self.watcher)

    async def __call__(self, rest: bytes = b"") -> list[str]:
        await self.relay.run(b"HEAD", rest)
        return self.watcher.notes


async def test_each_read_reaches_the_client_before_the_next_and_is_observed_after(autojump_clock: MockClock) -> None:
    run = Run(Framing.of_length(4), [b"b", b"cd"])
    assert await run(b"a") == [
        "client sent b'HEADa'",
        "observed b'a'",
        "progress",
        "upstream received b'b'",
        "client sent b'b'",
        "observed b'b'",
        "progress",
        "upstream received b'cd'",
        "client sent b'cd'",
        "observed b'cd'",
        "progress",
    ]
    assert run.writer.complete
    assert run.relay.clean


async def test_a_client_that_is_full_is_waited_for_and_nothing_is_read_meanwhile(autojump_clock: MockClock) -> None:
    run = Run(Framing.of_length(2), [b"ab"], [0, 4, 1])
    assert await run() == [
        "client sent b''",
        "blocked",
        "client sent b'HEAD'",
        "resumed",
        "upstream received b'ab'",
        "client sent b'a'",
        "blocked",
        "client sent b'b'",
        "resumed",
        "observed b'ab'",
        "progress",
    ]


@pytest.mark.parametrize(
    ("framing", "rest", "gives", "sent", "clean"),
    [
        (NO_BODY, b"", [], b"", True),
        (NO_BODY, b"x", [], b"", False),
        (Framing.of_length(0), b"", [], b"", True),
        (Framing.of_length(2), b"ab", [], b"ab", True),
        (Framing.of_length(2), b"abx", [], b"ab", False),
        (Framing.of_length(2), b"a", [b"bx"], b"ab", False),
        (CHUNKED, b"2\r\nab\r\n0\r\n\r\n", [], b"2\r\nab\r\n0\r\n\r\n", True),
        (CHUNKED, b"2\r\nab\r\n0\r\n\r\nx", [], b"2\r\nab\r\n0\r\n\r\n", False),
        (CHUNKED, b"2\r", [b"\nab\r\n0\r\n", b"\r\n"], b"2\r\nab\r\n0\r\n\r\n", True),
        (UNTIL_CLOSE, b"", [b""], b"0\r\n\r\n", False),
        (UNTIL_CLOSE, b"a", [b"b", b""], b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n", False),
    ],
)
async def test_the_end_of_a_body(
    framing: Framing, rest: bytes, gives: list[bytes | None], sent: bytes, clean: bool, autojump_clock: MockClock
) -> None:
    """``clean`` says that it ended by its own framing and not a byte came after it."""
    run = Run(framing, gives)
    await run(rest)
    assert run.client.taken == b"HEAD" + sent
    assert run.writer.complete
    assert run.relay.clean == clean


@pytest.mark.parametrize(
    ("framing", "gives", "code"),
    [
        (Framing.of_length(3), [b"ab", b""], Code.UPSTREAM_CLOSED),
        (Framing.of_length(3), [b"ab", None], Code.UPSTREAM_CLOSED),
        (CHUNKED, [b"1\r\na\r\n", b""], Code.UPSTREAM_CLOSED),
        (CHUNKED, [b"1\r\na\r\n0\r\n", b""], Code.UPSTREAM_CLOSED),
        (CHUNKED, [b"1\r\na\r\n", b"zz"], Code.BAD_RESPONSE),
        (UNTIL_CLOSE, [b"a", None], Code.UPSTREAM_CLOSED),
    ],
)
async def test_a_body_that_breaks(
    framing: Framing, gives: list[bytes | None], code: Code, autojump_clock: MockClock
) -> None:
    run = Run(framing, gives)
    with pytest.raises(ProxyError) as caught:
        await run()
    assert caught.value.code is code
    assert not run.writer.complete
    assert run.writer.started
    assert not run.client.taken.endswith(b"0\r\n\r\n")


async def test_a_body_that_breaks_before_anything_was_sent_leaves_room_for_another_response(
    autojump_clock: MockClock,
) -> None:
    run = Run(CHUNKED, [])
    with pytest.raises(ProxyError):
        await run(b"zz\r\n")
    assert not run.writer.started
    assert run.client.taken == b""


async def test_a_client_that_is_gone_ends_it(autojump_clock: MockClock) -> None:
    run = Run(Framing.of_length(3), [b"a", b"b", b"c"], [4, 1, None])
    with pytest.raises(ClientGone):
        await run()
    assert run.watcher.notes[-1] == "client broke"
