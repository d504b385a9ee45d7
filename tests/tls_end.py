"""TLS by hand, for the peers of a proxy: the standard library's state machine on an end of a connection in memory.

Lives here: what a client or a model server does with TLS in tests, independent of Trio's TLS, which the proxy uses.
Does not live here: a proxy, HTTP, or the transport below.

It can do what a proper implementation does not: end only its sending side, cut a connection without a goodbye, put
several records into one segment, and stop reading after the handshake.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence
from typing import Final, final

import trio

from network import End
from trioproxy.transport import Buffer

_RECORD_HEADER: Final = 5


@final
class TlsEnd:
    """One end of a connection, with TLS on it.

    :param server_hostname: the name that the peer's certificate must have; None for the server's side.
    """

    def __init__(self, end: End, context: ssl.SSLContext, *, server_hostname: str | None = None) -> None:
        self.end: Final = end
        self.heard: Final = bytearray()
        """Everything that has been decrypted."""
        self.progress: Final = [(0, 0)]
        """After each record from the peer: how many bytes of it there were up to here, as they came and decrypted."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: Final = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._held = bytearray()
        """The beginning of a record."""
        self._unsent = b""
        self._given = 0
        """Bytes of ``heard`` that somebody has received."""
        self._ended = False
        self._sending = trio.Lock()
        self._ready = trio.Event()

    def __repr__(self) -> str:
        return f"<TlsEnd on {self.end!r}>"

    @property
    def name(self) -> str:
        """For messages."""
        return self.end.name

    async def wait_ready(self) -> None:
        """Shake hands.

        :raises trio.BrokenResourceError: it failed.
        """
        self._step()
        await self._flush()
        while not self._ready.is_set():
            await self._more()

    async def receive_at_most(self, limit: int) -> bytes:
        """The next bytes; empty when the peer has said goodbye.

        :raises trio.BrokenResourceError: the connection ended without.
        """
        await self.wait_ready()
        while self._given == len(self.heard):
            if self._ended:
                return b""
            await self._more()
        data = bytes(self.heard[self._given : self._given + limit])
        self._given += len(data)
        return data

    async def _more(self) -> None:
        data = await self.end.receive()
        if not data:
            raise trio.BrokenResourceError(f"{self.name}: cut without a goodbye")
        self.feed(data)
        await self._flush()

    def feed(self, data: bytes) -> None:
        """Take in bytes from the peer, one record after the other."""
        self._held += data
        while len(self._held) >= _RECORD_HEADER:
            size = _RECORD_HEADER + int.from_bytes(self._held[3:5], "big")
            if len(self._held) < size:
                break
            self._incoming.write(self._held[:size])
            del self._held[:size]
            self._step()
            self.progress.append((self.progress[-1][0] + size, len(self.heard)))

    def heard_of(self, sent: Buffer) -> int:
        """How many bytes of ``heard`` the peer has sent when it has sent these, whether or not they have arrived.

        :param sent: all that it sent up to then, as it went out.
        """
        fed = self.progress[-1][0] + len(self._held)
        if fed < len(sent):
            with contextlib.suppress(trio.BrokenResourceError):
                self.feed(bytes(sent[fed:]))
        return max(plain for raw, plain in self.progress if raw <= len(sent))

    def _step(self) -> None:
        """Go on with the handshake, or decrypt, as far as there are bytes for it."""
        try:
            if not self._ready.is_set():
                self._tls.do_handshake()
                self._ready.set()
            while data := self._tls.read(65536):
                self.heard.extend(data)
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as error:
            self._flush_nowait()  # the alert that says why
            raise trio.BrokenResourceError(f"{self.name}: {error}") from error

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        """Send everything; how many bytes that was."""
        await self._ready.wait()
        count = self._encrypt(buffers)
        await self._flush()
        return count

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Send everything at once; there must be room."""
        count = self._encrypt(buffers)
        self._flush_nowait()
        assert not self._unsent, "no room"
        return count

    def _encrypt(self, buffers: Sequence[Buffer]) -> int:
        """Each buffer becomes records of its own."""
        try:
            return sum(self._tls.write(buffer) for buffer in buffers if len(buffer))
        except ssl.SSLError as error:  # such as after a goodbye
            raise trio.BrokenResourceError(f"{self.name}: {error}") from error

    async def _flush(self) -> None:
        if self._outgoing.pending or self._unsent:
            async with self._sending:
                self._unsent += self._outgoing.read()
                while self._unsent:
                    sent = await self.end.send_some([self._unsent])
                    self._unsent = self._unsent[sent:]

    def _flush_nowait(self) -> None:
        """As far as there is room, and somebody there."""
        self._unsent += self._outgoing.read()
        # Nobody may be there, or another task in the middle of a record.
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            self._unsent = self._unsent[self.end.send_nowait([self._unsent]) :]

    async def wait_hangup(self, *, half_close: bool) -> None:
        """Wait until the peer is gone, without reading; the handshake comes before that."""
        await self.wait_ready()
        await self.end.wait_hangup(half_close=half_close)

    def say_goodbye(self) -> None:
        """Send what says that nothing more comes (RFC 8446 section 6.1), as far as there is room; go on receiving."""
        with contextlib.suppress(ssl.SSLError):  # the peer's has not come yet, or the handshake is not over
            self._tls.unwrap()
        self._flush_nowait()

    def shutdown_write(self) -> None:
        """A goodbye, then a FIN."""
        self.say_goodbye()
        self.end.shutdown_write()

    def close(self) -> None:
        """A goodbye, then close."""
        if not self.end.closed:
            self.say_goodbye()
            self.end.close()
