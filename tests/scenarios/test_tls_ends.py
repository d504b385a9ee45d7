"""TLS through the whole proxy, in memory: what an end means, what a close may take, and what must not be reused.

That nothing is left behind at any step is the business of the cancel sweep; here it is what each side sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import trio

from network import Peer, Script
from tls_end import TlsEnd
from trioproxy import Deadlines, Settings

from .exchanges import (
    CHAT,
    EVENTS,
    HEAD_END,
    LAST_CHUNK,
    OK,
    SMALL,
    answers,
    answers_and_cuts,
    answers_once,
    asks,
    chat,
    event,
    read_request,
    says_nothing,
    scenario,
)
from .play import Kind, Move, Stranger, play

UNTIL_CLOSE: Final = b"HTTP/1.1 200 OK\r\n\r\n"


# What an end means


class Client:
    """A client that asks, and notes what it has heard and how that ended."""

    def __init__(self, request: bytes) -> None:
        self.heard = b""
        self.properly = False
        """Whether the proxy has said goodbye."""
        self._request = request

    async def __call__(self, peer: Peer) -> None:
        await peer.send(self._request)
        while data := await peer.end.receive_at_most(65536):
            self.heard += data
        self.properly = True


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize(
    ("upstream", "whole"),
    [
        (answers_once(UNTIL_CLOSE, b"hello"), True),
        (answers_and_cuts(UNTIL_CLOSE, b"hello"), False),
        (answers_and_cuts(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello"), False),
        (answers_and_cuts(EVENTS, event(1)), False),
    ],
    ids=["goodbye", "until close", "length", "chunked"],
)
def test_a_response_that_is_cut_never_looks_whole(upstream: Script, whole: bool, version: bytes) -> None:
    """An end without a goodbye is none (RFC 9112 9.8): the client gets no last chunk, or no goodbye either."""
    client = Client(b"GET / HTTP/%b\r\nhost: a\r\nconnection: close\r\n\r\n" % version)
    ending = play(scenario("cut", client, upstream), {}, kind=Kind.TLS)
    assert ending.statistics.outcomes["completed"] == whole
    assert ending.statistics.outcomes["upstream_error"] == 1 - whole
    head, _, body = client.heard.partition(HEAD_END)
    if b"transfer-encoding: chunked" in head:
        assert body.endswith(LAST_CHUNK) == whole
    elif b"content-length: 6" in head:
        assert len(body) < 6
    else:
        assert client.properly == whole


def test_a_request_that_is_cut_is_not_forwarded() -> None:
    async def client(peer: Peer) -> None:
        await peer.send(CHAT + b"content-length: 9\r\n\r\n", b"12345678")
        assert isinstance(peer.end, TlsEnd)
        peer.end.end.close()

    ending = play(scenario("cut", client, answers(OK)), {}, kind=Kind.TLS)
    assert ending.statistics.outcomes["client_closed"] == ending.begun == 1
    assert ending.forwarded == 0


# Handshakes that come to nothing


def test_a_client_that_never_shakes_hands_is_let_go() -> None:
    settings = Settings(deadlines=Deadlines(handshake=7))
    ending = play(
        scenario("silent", asks(chat(SMALL)), answers(OK), settings=settings), {1: [Move.CLIENT_STALLS]}, kind=Kind.TLS
    )
    assert ending.delay == 7
    assert ending.begun == 0
    assert not ending.open_ends


@pytest.mark.parametrize(
    ("stranger", "code", "seconds"),
    [(Stranger.EXPIRED, "tls_failed", 0), (Stranger.SILENT, "connect_timeout", 3)],
)
def test_an_upstream_with_which_no_tls_comes_about_gets_no_request(
    stranger: Stranger, code: str, seconds: float
) -> None:
    settings = Settings(deadlines=Deadlines(connect=3))
    client = asks(chat(SMALL), mark=code.encode())
    ending = play(
        scenario("stranger", client, answers(OK), settings=settings, strangers={1: stranger}), {}, kind=Kind.TLS
    )
    assert ending.statistics.errors == {code: 1}
    assert ending.forwarded == 0
    assert ending.delay == seconds
    assert not ending.open_ends


# What a close may take


def _stops_reading(*, after: bytes | None) -> Script:
    """A client that asks if it is to hear something, and reads nothing after that."""

    async def client(peer: Peer) -> None:
        if after is not None:
            await peer.send(chat(SMALL))
            await peer.until(after)
        assert isinstance(peer.end, TlsEnd)
        peer.end.end.stall()
        await trio.sleep_forever()

    return client


@pytest.mark.parametrize(
    ("client", "upstream", "seconds"),
    [
        # Its time is up, and a goodbye has its second.
        (_stops_reading(after=None), answers(OK), 75 + 1),
        (_stops_reading(after=b"ok"), answers(OK), 75 + 1),
        # The upstream's time is up, what tells the client of it has the time of any write, and then it lingers.
        (_stops_reading(after=b""), says_nothing, 600 + 60 + 5),
    ],
    ids=["new", "idle", "waiting"],
)
def test_a_client_that_stops_reading_costs_a_goodbye_and_no_more(
    client: Script, upstream: Script, seconds: float
) -> None:
    ending = play(scenario("deaf", client, upstream), {}, kind=Kind.TLS)
    assert ending.delay == seconds
    assert not ending.open_ends


def test_a_cancel_waits_for_a_goodbye_that_nobody_takes_for_a_second() -> None:
    """The sweep knows that it takes no longer; here, that it is tried at all."""

    async def idles(peer: Peer) -> None:
        await peer.send(chat(SMALL))
        await peer.to_end()

    idle = scenario("idle", idles, answers(OK))
    delays: set[float] = set()
    step = 1
    while (ending := play(idle, {step: [Move.CLIENT_STALLS, Move.CANCEL]}, kind=Kind.TLS)).moved and step < 80:
        delays.add(ending.delay)
        step += 1
    assert delays == {0, 1}


# What must not be reused


def _in_one_segment(*pieces: bytes) -> Callable[[TlsEnd], None]:
    """Each piece is a record."""
    return lambda end: void(end.send_nowait(pieces))


def _with_half_a_record(end: TlsEnd) -> None:
    end.send_nowait([OK])
    end.end.send_nowait([b"\x17\x03\x03"])


def _with_a_goodbye(end: TlsEnd) -> None:
    end.send_nowait([OK])
    end.say_goodbye()


def void(_: object) -> None:
    """Nothing."""


@pytest.mark.parametrize(
    "answer",
    [
        _in_one_segment(OK + OK),
        _in_one_segment(OK, OK),
        _in_one_segment(OK, b"x"),
        _in_one_segment(OK[:20], OK[20:], OK),
        _with_half_a_record,
        _with_a_goodbye,
    ],
    ids=["record", "segment", "byte", "pieces", "half a record", "goodbye"],
)
def test_bytes_hidden_in_tls_poison_a_connection(answer: Callable[[TlsEnd], None]) -> None:
    """A second answer that came with the first one, or the beginning of one, is never the next request's."""

    async def poisons(peer: Peer) -> None:
        await read_request(peer)
        assert isinstance(peer.end, TlsEnd)
        answer(peer.end)
        await peer.to_end()

    async def client(peer: Peer) -> None:
        await peer.send(chat(SMALL))
        assert (await peer.until(b"ok")).startswith(b"HTTP/1.1 200")
        await trio.sleep(1)
        await peer.send(chat(SMALL))
        assert (await peer.until(b"ok")).startswith(b"HTTP/1.1 201")

    fresh = answers(OK.replace(b"200 OK", b"201 Made"))
    ending = play(scenario("poisoned", client, {1: [poisons, fresh]}), {}, kind=Kind.TLS)
    assert ending.statistics.outcomes["completed"] == ending.forwarded == 2
    assert ending.statistics.pool.opened == 2
    assert ending.statistics.pool.reused == 0


def test_a_connection_that_is_not_poisoned_is_reused() -> None:
    async def client(peer: Peer) -> None:
        for _ in range(2):
            await peer.send(chat(SMALL))
            await peer.until(b"ok")
            await trio.sleep(1)

    ending = play(scenario("clean", client, answers(OK[:20], OK[20:])), {}, kind=Kind.TLS)
    assert (ending.statistics.pool.opened, ending.statistics.pool.reused) == (1, 1)
