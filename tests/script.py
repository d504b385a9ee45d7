"""A conversation through a proxy, written as a script: what arrives on each side, and what must leave on each side.

Lives here: clients and model servers under the virtual clock of the test, on the link and with the codec that it is run
with (links.py). Does not live here: what is right.

``says`` sends; ``hears`` states everything that has come since the last ``hears``, once nothing moves any more. Bytes
that no line of the script expected fail the test at its end, as do connections that nobody asked for, requests still
in flight, bytes still held, and errors in the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from links import CHOSEN
from opened import opened
from trioproxy import Proxy, Settings
from trioproxy.net import Address
from trioproxy.transport import Transport

CLIENT: Final = "192.0.2.7"
"""The address that each client has."""
_WILDCARDS: Final = {
    "<id>": r"[0-9a-f]{8}-[0-9a-f]+",
    "<via>": r"trioproxy-[0-9a-f]{8}",
    "<date>": r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
}
DEFAULTS: Final = Settings()
_HELD: Final = 32768
"""Bytes that every link holds for whoever does not read."""


def message(*lines: str, body: str = "") -> str:
    """A head of these lines, and a body."""
    return "\r\n".join([*lines, "", ""]) + body


def get(path: str = "/", *fields: str) -> str:
    """A request without a body."""
    return message(f"GET {path} HTTP/1.1", "Host: a", *fields)


def post(body: str, path: str = "/x", *fields: str) -> str:
    """A request with a body of known length."""
    return message(f"POST {path} HTTP/1.1", "Host: a", *fields, f"Content-Length: {len(body)}", body=body)


def forwarded(line: str, *fields: str, length: int | None = None, chunked: bool = False, body: str = "") -> str:
    """A request for ``Host: a`` as the upstream gets it: with these fields of the client's, then the proxy's own."""
    ours = ["x-request-id: <id>", "via: 1.1 <via>", f"x-forwarded-for: {CLIENT}"]
    ours += [f"x-forwarded-proto: {CHOSEN.link.scheme}", "x-forwarded-host: a"]
    if length is not None:
        ours.append(f"content-length: {length}")
    if chunked:
        ours.append("transfer-encoding: chunked")
    return message(line, "Host: a", *fields, *ours, body=body)


def relayed(*lines: str, body: str = "", more: Sequence[str] = ()) -> str:
    """A response of the upstream as the client gets it.

    :param more: fields that follow those which the proxy adds to each.
    """
    return message(*lines, "date: <date>", "x-request-id: <id>", *more, body=body)


OK = message("HTTP/1.1 200 OK", "Content-Length: 2", body="ok")
OK_HEARD = relayed("HTTP/1.1 200 OK", "Content-Length: 2", body="ok")
OK_CLOSED = relayed("HTTP/1.1 200 OK", "Content-Length: 2", body="ok", more=["connection: close"])


def _pattern(expected: str) -> re.Pattern[str]:
    parts = re.split("(" + "|".join(_WILDCARDS) + ")", expected)
    return re.compile("".join(_WILDCARDS.get(part, re.escape(part)) for part in parts), re.DOTALL)


@final
class Peer:
    """A client, or a model server's end of one connection."""

    def __init__(self, name: str, stream: trio.abc.HalfCloseableStream, nursery: trio.Nursery) -> None:
        self.name = name
        self.ended = False
        self.heard = ""
        self._stream = stream
        self._nursery = nursery
        self._turn = trio.Lock()

    async def listen(self) -> None:
        """Take in what comes, for the length of the conversation."""
        try:
            while data := await self._stream.receive_some(65536):
                self.heard += bytes(data).decode("latin-1")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.ended = True

    async def be_deaf(self) -> None:
        """Read nothing but what TLS needs before anything can be said."""
        await self._stream.wait_send_all_might_not_block()

    async def says(self, text: str) -> None:
        """Send; what the link does not hold is sent while the conversation goes on."""
        if len(text) <= _HELD:
            await self._send(text)
        else:
            self._nursery.start_soon(self._send_as_it_can, text)
            await wait_all_tasks_blocked()

    async def _send(self, text: str) -> None:
        async with self._turn:
            await self._stream.send_all(text.encode("latin-1"))

    async def _send_as_it_can(self, text: str) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._send(text)

    async def hears(self, expected: str) -> None:
        """Everything that has come since the last time, and nothing else."""
        heard = await self.takes()
        assert _pattern(expected).fullmatch(heard), f"{self.name} heard\n{heard!r}\nbut not\n{expected!r}"

    async def takes(self) -> str:
        """What has come since the last time, for a look of its own."""
        await wait_all_tasks_blocked()
        heard, self.heard = self.heard, ""
        return heard

    async def hears_nothing(self) -> None:
        """Nothing has come, and the connection stands."""
        await self.hears("")
        assert not self.ended, f"the connection of {self.name} has ended"

    async def hears_end(self) -> None:
        """The proxy has closed the connection, and nothing came before that."""
        await self.hears("")
        assert self.ended, f"the connection of {self.name} has not ended"

    async def hears_refusal(self, status: int, code: str, *, closes: bool = True) -> str:
        """An error of the proxy's own: its status, its code, its form; returns all of it."""
        heard = await self.takes()
        head, _, body = heard.partition("\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} "), f"{self.name} heard {heard!r}"
        assert re.fullmatch(
            r'\{"error":\{"message":"[^"].*","type":"[a-z_]+","code":"' + code + r'","param":(?:null|"[a-z_]+"),'
            r'"request_id":"[0-9a-f]{8}-[0-9a-f]+"\}\}',
            body,
        ), body
        fields = head.split("\r\n")[1:]
        assert f"content-length: {len(body)}" in fields
        assert "content-type: application/json" in fields
        assert any(field.startswith("date: ") for field in fields)
        (request_id,) = [field.removeprefix("x-request-id: ") for field in fields if field.startswith("x-request-id")]
        assert f'"request_id":"{request_id}"' in body
        assert ("connection: close" in fields) == closes, head
        return heard

    async def cannot_say_more(self) -> None:
        """The connection is gone; on some links only the answer to what is sent shows it."""
        with pytest.raises(trio.BrokenResourceError):
            await self._send_again_and_again()

    async def _send_again_and_again(self) -> None:
        for _ in range(2):
            await self._send("x")
            await wait_all_tasks_blocked()

    async def ends(self) -> None:
        """Say nothing more, and go on listening."""
        await self._stream.send_eof()

    async def leaves(self) -> None:
        """Close the connection."""
        await self._stream.aclose()


@final
class Conversation:
    """A proxy with its clients and its upstreams."""

    def __init__(self, nursery: trio.Nursery, settings: Settings, upstreams: int) -> None:
        self.link: Final = CHOSEN.link
        urls = [self.link.url(f"10.0.0.{number}") for number in range(1, upstreams + 1)]
        self.proxy: Final = Proxy(
            opened(*urls),
            settings=dataclasses.replace(settings, codec=CHOSEN.codec),
            upstream_tls=self.link.upstream_tls,
            connector=self._connect,
        )
        self.refusing: set[str] = set()
        """Upstreams, such as ``10.0.0.1``, that refuse connections."""
        self.silent: set[str] = set()
        """Upstreams that do not answer to an attempt to connect."""
        self.deaf: set[str] = set()
        """Upstreams that take connections and read nothing."""
        self.dialled: list[str] = []
        self._nursery: Final = nursery
        self._peers: list[Peer] = []
        self._opened: list[Peer] = []
        self.transports: list[Transport] = []
        """The proxy's ends of the connections to upstreams, in order."""

    async def client(self, *, deaf: bool = False) -> Peer:
        """A client that has just connected.

        :param deaf: it reads nothing, and the network holds nothing for it.
        """
        near, far = self.link.client(deaf=deaf)
        peer = self._peer("the client", near, deaf=deaf)
        self._nursery.start_soon(partial(self.proxy.serve_stream, far, CLIENT, tls=self.link.tls))
        await wait_all_tasks_blocked()
        return peer

    async def upstream(self) -> Peer:
        """The model server's end of the next connection that the proxy has opened."""
        await wait_all_tasks_blocked()
        assert self._opened, "the proxy has not opened a connection"
        return self._opened.pop(0)

    def answering(self, host: str) -> Peer:
        """The newest connection to this upstream, opened just now or before."""
        peer = next(peer for peer in reversed(self._peers) if peer.name == host)
        if peer in self._opened:
            self._opened.remove(peer)
        return peer

    def count(self, kind: str) -> int:
        """How many requests have had this outcome."""
        return self.proxy.statistics().outcomes[kind]

    def check(self) -> None:
        """Nothing was said that no line of the script expected."""
        for peer in self._peers:
            assert not peer.heard, f"nothing in the script expected {peer.name} to hear\n{peer.heard!r}"
        assert not self._opened, "nothing in the script expected a connection to an upstream"

    def check_over(self) -> None:
        """After the end, everything is as if nothing had been."""
        now = self.proxy.statistics()
        assert now.in_flight == {"request": 0, "forwarding": 0, "response": 0}
        assert (now.connections, now.body_bytes_held, now.body_violations) == (0, 0, 0)
        assert (now.pool.idle, now.pool.held, now.pool.connecting) == (0, 0, 0)
        assert all(transport.closed for transport in self.transports)

    async def close(self) -> None:
        """Leave nothing of the script's open."""
        with trio.move_on_after(1, shield=True):  # noqa: ASYNC912 - without a peer there is nothing to wait for
            for peer in self._peers:
                await peer.leaves()

    def _peer(self, name: str, stream: trio.abc.HalfCloseableStream, *, deaf: bool) -> Peer:
        peer = Peer(name, stream, self._nursery)
        self._peers.append(peer)
        self._nursery.start_soon(peer.be_deaf if deaf else peer.listen)
        return peer

    async def _connect(self, address: Address) -> Transport:
        sockaddr = address.sockaddr
        host = sockaddr.removeprefix("/") if isinstance(sockaddr, str) else str(sockaddr[0])
        self.dialled.append(host)
        await trio.lowlevel.checkpoint()
        if host in self.refusing:
            raise ConnectionRefusedError(111, "Connection refused")
        if host in self.silent:
            await trio.sleep_forever()
        deaf = host in self.deaf
        far, near = self.link.upstream(host, deaf=deaf)
        self._opened.append(self._peer(host, far, deaf=deaf))
        self.transports.append(near)
        return near


@final
class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.records.append(record)


@asynccontextmanager
async def conversation(
    settings: Settings = DEFAULTS, *, upstreams: int = 1, failures: int = 0
) -> AsyncGenerator[Conversation, None]:
    """A conversation, checked when the block ends without an error.

    :param failures: how many errors the proxy is to log.
    """
    assert CHOSEN.made, "a test whose helper has a conversation needs usefixtures('link')"
    errors = _Errors()
    logger = logging.getLogger("trioproxy")
    logger.addHandler(errors)
    try:
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            talk = Conversation(nursery, settings, upstreams)
            stack.push_async_callback(talk.close)
            yield talk
            await wait_all_tasks_blocked()
            talk.check()
            nursery.cancel_scope.cancel()
        talk.check_over()
        logged = [f"{record.getMessage()}: {record.exc_info}" for record in errors.records]
        assert len(logged) == failures, logged
    finally:
        logger.removeHandler(errors)


async def asked(talk: Conversation, text: str) -> tuple[Peer, Peer]:
    """A client that has sent this request, and the upstream that has got it."""
    client = await talk.client()
    await client.says(text)
    upstream = await talk.upstream()
    await upstream.takes()
    return client, upstream


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Everything until the end of a stream, which must come soon."""
    data = b""
    with trio.fail_after(5):
        while piece := await stream.receive_some(65536):
            data += piece
    return data
