"""The scripted exchanges of the cancel sweep: what a client and its upstreams do, and how it ends undisturbed.

Lives here: scripts, in bytes. Does not live here: the proxy, moves, or assertions.

A client script that returns closes its connection. Each script reads what it is sent up to a mark that it knows, so
that it fails, hence ends, if anything else comes.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from network import Peer, Script
from tls_end import TlsEnd
from trioproxy import Deadlines, Limits, Settings

from .play import Scenario, Stranger

CHAT: Final = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
HEAD_END: Final = b"\r\n\r\n"
OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
EVENTS: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LARGE: Final = b'{"messages":"' + b"x" * 200_000 + b'"}'
SMALL: Final = b'{"model":"m"}'
ENCODED: Final = gzip.compress(LARGE, mtime=0)
"""Decoded in several steps."""
STREAMS: Final = b'{"model":"m","stream":true}'
REPORT: Final = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
LAST_CHUNK: Final = b"0\r\n\r\n"


def chat(body: bytes, *fields: bytes) -> bytes:
    """The bytes of a chat request."""
    return CHAT + b"".join(field + b"\r\n" for field in fields) + b"content-length: %d\r\n\r\n" % len(body) + body


def chunk(data: bytes) -> bytes:
    """One chunk (RFC 9112 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(number: int) -> bytes:
    """One event of a stream, as a chunk."""
    return chunk(b'data: {"n":%d}\n\n' % number)


# Clients.


def asks(*pieces: bytes, mark: bytes = b"ok") -> Script:
    """Send the pieces, read until the mark, leave."""

    async def client(peer: Peer) -> None:
        await peer.send(*pieces)
        await peer.until(mark)

    return client


def asks_slowly(*pieces: bytes, mark: bytes = b"ok") -> Script:
    """The same, with a second between two pieces, so that each is read by itself."""

    async def client(peer: Peer) -> None:
        for piece in pieces:
            await trio.sleep(1)
            await peer.send(piece)
        await peer.until(mark)

    return client


def asks_to_the_end(*pieces: bytes) -> Script:
    """Send the pieces, read until the proxy ends the connection, leave."""

    async def client(peer: Peer) -> None:
        await peer.send(*pieces)
        await peer.to_end()

    return client


async def asks_twice(peer: Peer) -> None:
    """Two requests on one connection, the second after the answer to the first."""
    for _ in range(2):
        await peer.send(chat(SMALL))
        await peer.until(b"ok")


async def asks_twice_at_once(peer: Peer) -> None:
    """Two requests on one connection in one piece."""
    await peer.send(chat(SMALL) * 2)
    await peer.until(b"ok")
    await peer.until(b"ok")


async def gets_twice(peer: Peer) -> None:
    """Two requests that may be repeated."""
    for _ in range(2):
        await peer.send(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        await peer.until(b"ok")


async def waits_for_continue(peer: Peer) -> None:
    """Send the body when asked for it (RFC 9110 10.1.1)."""
    await peer.send(CHAT + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(SMALL))
    await peer.until(b"100 Continue" + HEAD_END)
    await peer.send(SMALL)
    await peer.until(b"ok")


# Upstreams.


async def read_request(peer: Peer) -> bytes:
    """Read a request; returns its body."""
    head = (await peer.until(HEAD_END)).lower()
    if b"transfer-encoding: chunked" in head:
        return await peer.until(LAST_CHUNK)
    _, found, rest = head.partition(b"content-length: ")
    return await peer.exactly(int(rest.partition(b"\r\n")[0])) if found else b""


def answers(*pieces: bytes) -> Script:
    """Answer every request with the pieces."""

    async def upstream(peer: Peer) -> None:
        while True:
            await read_request(peer)
            await peer.send(*pieces)

    return upstream


def answers_once(*pieces: bytes) -> Script:
    """Answer one request with the pieces and close the connection."""

    async def upstream(peer: Peer) -> None:
        await read_request(peer)
        await peer.send(*pieces)

    return upstream


async def answers_one_of_two(peer: Peer) -> None:
    """Answer one request and close on the next: a keep-alive connection that dies just when it is used again."""
    await read_request(peer)
    await peer.send(OK)
    await peer.until(HEAD_END)


def answers_and_cuts(*pieces: bytes) -> Script:
    """Answer one request with the pieces and cut the connection, without the goodbye of TLS if that is spoken."""

    async def upstream(peer: Peer) -> None:
        await read_request(peer)
        await peer.send(*pieces)
        cut(peer)

    return upstream


def cut(peer: Peer) -> None:
    """Close a connection without the goodbye of TLS."""
    (peer.end.end if isinstance(peer.end, TlsEnd) else peer.end).close()


def asks_in_part(*pieces: bytes) -> Script:
    """Send the pieces, which are no whole request, cut the connection."""

    async def client(peer: Peer) -> None:
        await peer.send(*pieces)
        await trio.sleep(1)
        cut(peer)

    return client


async def refuses_early(peer: Peer) -> None:
    """Refuse a request as soon as some of its body is there, and read no more of it."""
    await peer.until(HEAD_END)
    await peer.exactly(1)
    await peer.send(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nok")
    await peer.to_end()


async def says_nothing(peer: Peer) -> None:
    """Read a request and never answer it."""
    await read_request(peer)
    await peer.to_end()


async def reads_nothing(peer: Peer) -> None:
    """Leave everything unread until the connection is gone."""
    await peer.end.wait_hangup(half_close=True)


def scenario(
    name: str,
    client: Script,
    upstream: Script | Mapping[int, Sequence[Script]],
    *,
    upstreams: Sequence[int] = (1,),
    settings: Settings | None = None,
    waits: bool = False,
    framed: bool = True,
    strangers: Mapping[int, Stranger] | None = None,
    **outcomes: int,
) -> Scenario:
    """A scenario with one upstream script, or several."""
    return Scenario(
        name=name,
        client=client,
        ports={1: [upstream]} if callable(upstream) else upstream,
        upstreams=upstreams,
        settings=settings or Settings(),
        outcomes=outcomes or {"completed": 1},
        waits=waits,
        framed=framed,
        strangers=strangers or {},
    )


_CHUNKED: Final = b"transfer-encoding: chunked\r\n\r\n"
_PIECES: Final = [chunk(b'"piece %d"' % number) for number in range(5)]
_ODD_PATH: Final = b"POST /elsewhere HTTP/1.1\r\nhost: a\r\n"
_STREAM: Final = [EVENTS, event(1), event(2), event(3), LAST_CHUNK]

SCENARIOS: Final = [
    scenario("small buffered POST", asks(chat(SMALL)), answers(OK)),
    scenario("request in pieces", asks(chat(SMALL)[:40], chat(SMALL)[40:-5], chat(SMALL)[-5:]), answers(OK)),
    scenario("streamed response", asks(chat(SMALL), mark=LAST_CHUNK), answers(*_STREAM)),
    scenario("streamed response, all at once", asks(chat(SMALL), mark=LAST_CHUNK), answers(b"".join(_STREAM))),
    scenario(
        "chunked upload, streamed through",
        asks(_ODD_PATH + _CHUNKED, *_PIECES, LAST_CHUNK),
        answers(OK),
    ),
    scenario("chunked upload, buffered", asks(CHAT + _CHUNKED, *_PIECES, LAST_CHUNK), answers(OK)),
    scenario("large body", asks(chat(LARGE)), answers(OK)),
    scenario("large body, streamed through", asks(chat(LARGE)), answers(OK), settings=Settings(body="stream")),
    scenario("encoded body", asks(chat(ENCODED, b"content-encoding: gzip")), answers(OK)),
    scenario(
        "usage asked for and taken out",
        asks(chat(STREAMS), mark=LAST_CHUNK),
        answers(EVENTS, event(1), chunk(REPORT[:20]), chunk(REPORT[20:]), event(2), LAST_CHUNK),
        settings=Settings(usage="inject"),
    ),
    scenario(
        "large response",
        asks(chat(SMALL), mark=b"END"),
        answers(b"HTTP/1.1 200 OK\r\ncontent-length: 200003\r\n\r\n" + b"y" * 200_000 + b"END"),
    ),
    scenario("keep-alive", asks_twice, answers(OK), completed=2),
    scenario("pipelined", asks_twice_at_once, answers(OK), completed=2),
    scenario("second endpoint", asks(chat(SMALL)), {2: [answers(OK)]}, upstreams=(1, 2)),
    scenario("no endpoint", asks(chat(SMALL), mark=b"request_id"), {}, upstream_error=1),
    scenario("stale connection", gets_twice, {1: [answers_one_of_two, answers(OK)]}, completed=2),
    scenario("early response", asks(chat(LARGE)), refuses_early),
    scenario("early response, streamed through", asks(chat(LARGE)), refuses_early, settings=Settings(body="stream")),
    scenario(
        "interim responses",
        asks(chat(SMALL)),
        answers(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n", OK),
    ),
    scenario(
        "truncated response",
        asks_to_the_end(chat(SMALL)),
        answers_once(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"),
        upstream_error=1,
    ),
    scenario("truncated stream", asks_to_the_end(chat(SMALL)), answers_once(EVENTS, event(1)), upstream_error=1),
    scenario("no response", asks(chat(SMALL), mark=b"request_id"), answers_once(), upstream_error=1),
    scenario(
        "response that is not HTTP", asks(chat(SMALL), mark=b"request_id"), answers(b"hello\r\n\r\n"), upstream_error=1
    ),
    scenario("refused head", asks_to_the_end(b"GET / HTTP/1.1\r\nhost : a\r\n\r\n"), {}, refused=1),
    scenario(
        "refused body",
        asks_to_the_end(CHAT + _CHUNKED, *_PIECES),
        {},
        settings=Settings(limits=Limits(body_size=20)),
        refused=1,
    ),
    scenario("expect-continue", waits_for_continue, answers(OK)),
    scenario("expect-continue, streamed through", waits_for_continue, answers(OK), settings=Settings(body="stream")),
    scenario("HTTP/1.0", asks_to_the_end(b"GET / HTTP/1.0\r\n\r\n"), answers(*_STREAM), framed=False),
    scenario(
        "refused body, in one piece",
        asks_to_the_end(CHAT + _CHUNKED + b"".join(_PIECES)),
        {},
        settings=Settings(limits=Limits(body_size=20)),
        refused=1,
    ),
    scenario(
        "no room for bodies",
        asks_slowly(chat(LARGE)[: -len(LARGE)], LARGE, mark=b"request_id"),
        {},
        settings=Settings(limits=Limits(body_size=1000, bodies_size=1000)),
        waits=True,
        refused=1,
    ),
    scenario("silent upstream", asks(chat(SMALL), mark=b"request_id"), says_nothing, waits=True, upstream_timeout=1),
    scenario(
        "upstream that reads nothing",
        asks(chat(LARGE * 2), mark=b"request_id"),
        reads_nothing,
        settings=Settings(body="stream", deadlines=Deadlines(write_stall=7)),
        waits=True,
        upstream_timeout=1,
    ),
]

_UNTIL_CLOSE: Final = b"HTTP/1.1 200 OK\r\n\r\n"

TLS_SCENARIOS: Final = [
    scenario(
        "response that ends with its connection", asks(chat(SMALL), mark=LAST_CHUNK), answers_once(_UNTIL_CLOSE, OK)
    ),
    scenario(
        "response that would end with its connection and is cut",
        asks_to_the_end(chat(SMALL)),
        answers_and_cuts(_UNTIL_CLOSE, OK),
        upstream_error=1,
    ),
    scenario(
        "response with a length that is cut",
        asks_to_the_end(chat(SMALL)),
        answers_and_cuts(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"),
        upstream_error=1,
    ),
    scenario("stream that is cut", asks_to_the_end(chat(SMALL)), answers_and_cuts(EVENTS, event(1)), upstream_error=1),
    scenario("request that is cut", asks_in_part(chat(SMALL)[:-1]), says_nothing, waits=True, client_closed=1),
    scenario(
        "request without a length that is cut",
        asks_in_part(_ODD_PATH + _CHUNKED, *_PIECES),
        says_nothing,
        waits=True,
        client_closed=1,
    ),
    scenario(
        "upstream that is not to be trusted",
        asks(chat(SMALL), mark=b"tls_failed"),
        answers(OK),
        strangers={1: Stranger.EXPIRED},
        upstream_error=1,
    ),
    scenario(
        "another upstream for one that is not to be trusted",
        asks(chat(SMALL)),
        {1: [answers(OK)], 2: [answers(OK)]},
        upstreams=(1, 2),
        strangers={1: Stranger.EXPIRED},
    ),
    scenario(
        "another upstream for one that never shakes hands",
        asks(chat(SMALL)),
        {1: [answers(OK)], 2: [answers(OK)]},
        upstreams=(1, 2),
        strangers={1: Stranger.SILENT},
        waits=True,
    ),
]
"""Exchanges that are what they are by TLS."""
