"""Ambiguous framing, through the whole proxy: whatever a client or a model server sends, the other side gets messages
that a strict parser reads in exactly one way, as many as there were.

The vectors' own verdicts are the business of ``tests/http1``; here only what leaves the proxy counts.
"""

from __future__ import annotations

import contextlib
import json
import re
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from bench.strict import dechunk, requests_in
from links import CHOSEN
from opened import opened
from trioproxy import Proxy, Settings
from trioproxy.net import Address
from trioproxy.transport import Transport

pytestmark = pytest.mark.usefixtures("link")

VECTORS: Final = Path(__file__).parent.parent / "vectors"
HOST: Final = "10.0.0.1"
FOLLOWING: Final = b"GET /following HTTP/1.1\r\nHost: a\r\n\r\n"
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

_status = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [^\r\n]*\r\n((?:[^\r\n:]+: [^\r\n]*\r\n)*)\r\n")
_looks_like_coding = re.compile(rb"(?i)^[^:]*transfer[^a-z]?encoding", re.MULTILINE)


class Played(NamedTuple):
    """What left the proxy on either side."""

    upstream: list[bytes]
    """By connection."""
    client: bytes


async def play(sent: bytes, answer: bytes | None = None) -> Played:
    """Send bytes through a proxy; the upstream gives each complete request ``OK``, or ``answer`` and then the end."""
    upstream: list[bytes] = []
    received = bytearray()

    async def origin(index: int, stream: trio.abc.HalfCloseableStream) -> None:
        answered = 0
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):  # reset by the proxy
                while data := await stream.receive_some():
                    upstream[index] += data
                    complete = sum(1 for _ in requests_in(upstream[index]))
                    if answer is not None and complete:
                        await stream.send_all(answer)
                        return
                    await stream.send_all(OK * (complete - answered))
                    answered = complete

    async def connect(_: Address) -> Transport:
        await trio.lowlevel.checkpoint()
        theirs, ours = link.upstream(HOST)
        upstream.append(b"")
        nursery.start_soon(origin, len(upstream) - 1, theirs)
        return ours

    async def listen(stream: trio.abc.ReceiveStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):  # as a client whose request is refused may find it
            async for data in stream:
                received.extend(data)

    link = CHOSEN.link
    proxy = Proxy(
        opened(link.url(HOST)), settings=Settings(codec=CHOSEN.codec), upstream_tls=link.upstream_tls, connector=connect
    )
    near, far = link.client()
    async with near, trio.open_nursery() as nursery:
        nursery.start_soon(partial(proxy.serve_stream, far, tls=link.tls))
        nursery.start_soon(listen, near)
        await near.send_all(sent)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return Played(upstream, bytes(received))


def vectors(name: str, kind: str = "") -> list[object]:
    rows = [json.loads(line) for line in (VECTORS / name).read_text().splitlines() if line.startswith("{")]
    return [pytest.param(row, id=row["id"]) for row in rows if not kind or row["type"].startswith(kind)]


@pytest.mark.parametrize("vector", vectors("llhttp.jsonl", "request"))
async def test_requests(vector: dict[str, str], autojump_clock: trio.testing.MockClock) -> None:
    """As many answers as complete requests went up; nothing that was cut or refused was answered by the upstream."""
    played = await play(bytes.fromhex(vector["bytes_hex"]) + FOLLOWING)
    complete = [message for data in played.upstream for message in requests_in(data)]
    assert played.client.count(b"HTTP/1.1 200 ") == len(complete)


@pytest.mark.parametrize("vector", vectors("te_gadgets.jsonl"))
async def test_disguised_transfer_encodings(vector: dict[str, str], autojump_clock: trio.testing.MockClock) -> None:
    """Refused, or framed by the Content-Length with nothing left that a laxer server could take for a coding."""
    gadget = bytes.fromhex(vector["gadget_header_hex"])
    sent = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n" + gadget + b"\r\n\r\n0\r\n\r\n"
    played = await play(sent + FOLLOWING)
    complete = [message for data in played.upstream for message in requests_in(data)]
    if complete:
        assert [(message.method, message.body) for message in complete] == [(b"POST", b"0\r\n\r\n"), (b"GET", b"")]
        assert not _looks_like_coding.search(complete[0].head)
        assert played.client.count(b"HTTP/1.1 200 ") == 2
    else:
        assert re.match(rb"HTTP/1\.1 (400|501) ", played.client)
        assert b"connection: close" in played.client.lower()
        assert played.client.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("vector", vectors("llhttp.jsonl", "response"))
async def test_responses(vector: dict[str, str], autojump_clock: trio.testing.MockClock) -> None:
    """One response for the request, well formed; never one more, and none that looks whole if it was cut."""
    played = await play(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", bytes.fromhex(vector["bytes_hex"]))
    data = played.client
    while (match := _status.match(data)) and match[1][:1] == b"1":
        data = data[match.end() :]
    assert match is not None
    body = data[match.end() :]
    length = re.search(rb"(?im)^content-length: ([0-9]+)\r$", match[2])
    chunked = re.search(rb"(?im)^transfer-encoding: chunked\r$", match[2])
    assert not (length and chunked)
    if match[1] in (b"204", b"304"):
        assert body == b""
    elif length:
        assert len(body) <= int(length[1])
    elif chunked:
        _, rest, complete = dechunk(body)
        assert not complete or rest == b""
