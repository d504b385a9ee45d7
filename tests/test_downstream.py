"""A response as its client gets it: the head, the framing, and how far it got."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from transports import Script
from trioproxy import Fault
from trioproxy.downstream import ClientGone, ClientStalled, DateField, ResponseWriter
from trioproxy.http1 import (
    CHUNKED,
    NO_BODY,
    UNTIL_CLOSE,
    Field,
    Framing,
    HeadLimits,
    HeadReader,
    ResponseHead,
    decoder,
    head_parser,
    read_response_head,
)


def writer(
    transport: Script | None = None, *, http_11: bool = True, head_only: bool = False, keep_alive: bool = True
) -> ResponseWriter:
    return ResponseWriter(
        transport or Script(), http_11=http_11, head_only=head_only, keep_alive=keep_alive, stall=60.0
    )


def head(status: int, framing: Framing, *fields: tuple[str, str]) -> ResponseHead:
    listed: list[Field] = [(name.lower().encode(), name.encode(), value.encode()) for name, value in fields]
    return ResponseHead(status, b"Fine", True, listed, framing, True)


def lines(raw: bytes) -> list[str]:
    assert raw.endswith(b"\r\n\r\n")
    return raw.decode()[:-4].split("\r\n")


@pytest.mark.parametrize(
    ("framing", "http_11", "framed", "keeps"),
    [
        (NO_BODY, True, [], True),
        (NO_BODY, False, ["connection: keep-alive"], True),
        (Framing.of_length(5), True, [], True),
        (Framing.of_length(5), False, ["connection: keep-alive"], True),
        (CHUNKED, True, ["transfer-encoding: chunked"], True),
        (CHUNKED, False, ["connection: close"], False),
        (UNTIL_CLOSE, True, ["transfer-encoding: chunked"], True),
        (UNTIL_CLOSE, False, ["connection: close"], False),
    ],
)
def test_the_head_says_how_the_body_ends(framing: Framing, http_11: bool, framed: list[str], keeps: bool) -> None:
    one = writer(http_11=http_11)
    assert not one.started
    written = lines(one.relayed_head(head(200, framing, ("X", "y")), b"id", DateField()))
    assert written[:2] == ["HTTP/1.1 200 Fine", "X: y"]
    assert written[2].startswith("date: ")
    assert written[3:] == ["x-request-id: id", *framed]
    assert one.started
    assert one.keep_alive == keeps
    assert one.open_ended == (not keeps)
    other = writer(http_11=http_11, keep_alive=False)
    written = lines(other.relayed_head(head(200, framing), b"id", DateField()))
    assert written.count("connection: close") == 1


PIECES = st.lists(st.binary(min_size=1, max_size=20_000), max_size=5)


@given(st.lists(PIECES, min_size=1, max_size=5), st.sampled_from([CHUNKED, UNTIL_CLOSE, NO_BODY]), st.booleans())
def test_the_pieces_of_a_body_arrive_in_its_framing(reads: list[list[bytes]], framing: Framing, http_11: bool) -> None:
    """What each read brought is one chunk; a reader of the same framing finds the same bytes, and the end."""
    one = writer(http_11=http_11)
    raw = one.relayed_head(head(200, framing), b"id", DateField())
    chunks = 0
    for number, pieces in enumerate(reads, 1):
        last = number == len(reads)
        buffers = one.frame(pieces, last=last)
        raw += b"".join(buffers)
        chunks += bool(pieces)
        assert bool(buffers) == (framing is not NO_BODY and bool(pieces or (last and http_11)))
    reader = HeadReader(HeadLimits(), fault=Fault.UPSTREAM)
    found = reader.feed(raw)
    assert found is not None
    parsed = read_response_head(found, head_parser("llhttp"), HeadLimits(), request_method=b"GET")
    body = reader.take_rest()
    payload = b"".join(piece for pieces in reads for piece in pieces)
    if framing is NO_BODY:
        assert body == b""
        return
    decoding = decoder(parsed.framing, fault=Fault.UPSTREAM)
    decoded, consumed = decoding.decode(body)
    assert consumed == len(body)
    if not http_11:
        decoding.end_of_file()
    assert decoding.done
    assert b"".join(decoded) == payload
    if http_11:
        assert len(decoded) == chunks


def test_a_small_chunk_is_one_buffer_and_a_large_one_is_not_copied() -> None:
    one = writer()
    one.relayed_head(head(200, CHUNKED), b"id", DateField())
    assert one.frame([b"ab", b"cd"], last=True) == [b"4\r\nabcd\r\n0\r\n\r\n"]
    large = bytes(20_000)
    assert any(buffer is large for buffer in one.frame([large], last=False))


@pytest.mark.parametrize("head_only", [False, True])
def test_a_response_of_the_proxys_own(head_only: bool) -> None:
    one = writer(head_only=head_only, keep_alive=False)
    raw = one.own_response(404, [(b"x", b"y")], b"body")
    assert raw == b"HTTP/1.1 404 Not Found\r\nx: y\r\ncontent-length: 4\r\nconnection: close\r\n\r\n" + (
        b"" if head_only else b"body"
    )
    assert one.started
    assert one.complete


def test_a_head_that_was_not_sent_can_be_taken_back() -> None:
    one = writer(http_11=False)
    one.relayed_head(head(200, CHUNKED), b"id", DateField())
    one.withdraw()
    assert not one.started
    assert b"\r\nconnection: close\r\n" in one.own_response(502, [], b"")
    assert one.complete


def test_what_cannot_be_sent_at_once_is_returned() -> None:
    one = writer(Script(takes=[3, 0]))
    rest = one.send_nowait([b"ab", b"cd", b"ef"])
    assert b"".join(rest) == b"def"
    assert b"".join(one.send_nowait(rest)) == b"def"
    assert one.send_nowait(rest) == []
    assert one.send_nowait([]) == []


async def test_a_client_that_is_gone(autojump_clock: MockClock) -> None:
    with pytest.raises(ClientGone):
        writer(Script(takes=[None])).send_nowait([b"x"])
    with pytest.raises(ClientGone):
        await writer(Script(takes=[1, None])).send([b"xy"])


async def test_a_client_that_takes_nothing_for_too_long(autojump_clock: MockClock) -> None:
    """The deadline is for each step: a slow client may take long for all of it."""
    slow = Script(takes=[*[*[0] * 59, 1]] * 5)
    await writer(slow).send([b"abcde"])
    assert slow.taken == b"abcde"
    stalled = Script(takes=[1, *[0] * 100])
    with pytest.raises(ClientStalled):
        await writer(stalled).send([b"ab"])
    assert stalled.taken == b"a"


async def test_interim_responses_are_not_for_old_clients(autojump_clock: MockClock) -> None:
    for http_11 in (True, False):
        transport = Script()
        one = writer(transport, http_11=http_11)
        await one.send_continue()
        await one.send_interim(
            head(103, NO_BODY, ("Link", "x"), ("Connection", "y"), ("Y", "z"), ("Content-Length", "1"))
        )
        expected = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Fine\r\nLink: x\r\n\r\n"
        assert transport.taken == (expected if http_11 else b"")
        assert not one.started


def test_the_date_is_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 784111777.0
    monkeypatch.setattr(time, "time", lambda: now)
    date = DateField()
    first = date()
    assert first == b"Sun, 06 Nov 1994 08:49:37 GMT"
    now += 0.9
    assert date() is first
    now += 0.2
    assert date() == b"Sun, 06 Nov 1994 08:49:38 GMT"
