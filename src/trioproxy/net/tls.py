"""TLS on a connection, both roles: the contexts, the handshake, and a transport that speaks it.

Lives here: everything that knows of TLS. Does not live here: when a handshake is due and how long it may take; that is
the deadline of whoever connects or accepts.

Trio's :class:`~trio.SSLStream` does the work: with it one task can send while another is blocked in a receive. It gets
the peer's bytes one record at a time, so that nothing that came is hidden inside it: a connection on which a second
answer waits must not look idle. Every end but a proper one (RFC 8446 section 6.1) is an error, since else a cut could
pass for the end of a response that has no length.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, final

import trio

from ..transport import Buffer, ReceiveTarget, Transport, rest_of
from .sockets import RECEIVE_SIZE, SocketTransport
from .streams import copy_into, send_piece

_CLOSE_GRACE: Final = 1.0
"""Seconds that a goodbye may take if the peer takes nothing."""
_RECORD_HEADER: Final = 5
_RECORD_PAYLOAD: Final = (1 << 14) + 2048
"""The most that a record of TLS 1.2 carries, which is more than one of TLS 1.3 (RFC 5246 section 6.2.3)."""
_FIRST_TYPE: Final = 20
_LAST_TYPE: Final = 24
_ALPN: Final = ["http/1.1"]
_STEPS_AT_A_TIME: Final = 4
"""Steps of handshakes between two looks at the network: one that signs or verifies takes up to a millisecond, and with
500 hellos at once, all of them in one turn, every stream stood still for 600 (ECDSA) to 1,250 ms (RSA)."""
_steps: Final[trio.lowlevel.RunVar[trio.Semaphore]] = trio.lowlevel.RunVar("trioproxy TLS handshakes")
"""Of whatever runs in this event loop, since that is what they hold up."""


class TlsError(OSError):
    """A handshake failed; the message says why. An OSError, as every way that a connection can fail to come about."""


def _record_size(data: bytes | bytearray) -> int:
    """How long the record is that begins here; 0 if too little is there to tell. Of what is no TLS, all: OpenSSL says
    at once that it is none, while its length would be waited for."""
    if not data:
        return 0
    if not _FIRST_TYPE <= data[0] <= _LAST_TYPE:
        return len(data)
    if len(data) < _RECORD_HEADER:
        return 0
    size = int.from_bytes(data[3:5], "big")
    return _RECORD_HEADER + size if size <= _RECORD_PAYLOAD else len(data)


async def _wait_turn() -> None:
    """Wait until few enough others take a step of their handshakes. First come, first served."""
    try:
        turns = _steps.get()
    except LookupError:
        turns = trio.Semaphore(_STEPS_AT_A_TIME)
        _steps.set(turns)
    async with turns:  # taking it yields while it is held; it is handed on in the turn in which the step is done
        pass


@final
class _Records(trio.abc.Stream):
    """What is below TLS, as a Trio stream that receives one record at a time (RFC 8446 section 5.1)."""

    def __init__(self, below: Transport) -> None:
        self.below = below
        self.held = bytearray()
        """Bytes that came and have not been asked for."""
        self.shaking = False
        """Whether what comes is a handshake's: a record of it is handed over when its turn has come."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next record; at the end of the stream what there is of one, then nothing."""
        del max_bytes  # the caller has room for any record
        record = await self._next_record()
        if self.shaking:
            await _wait_turn()
        return record

    async def _next_record(self) -> bytes:
        held = self.held
        while True:  # noqa: ASYNC913 - what is below yields after a bounded amount of work
            size = _record_size(held)
            if not 0 < size <= len(held):
                data = await self.below.receive()
                if not held and len(data) == _record_size(data):
                    return data  # exactly one: the usual case
                if data:
                    held += data
                    continue
                size = len(held)
            record = bytes(held[:size])
            del held[:size]
            return record

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything."""
        # Trio's TLS yields once more, shielded, after it has looked for a cancel: a request would go out after it.
        await trio.lowlevel.checkpoint_if_cancelled()
        rest: Sequence[Buffer] = [data] if data else []
        while rest:
            rest = rest_of(rest, await self.below.send_some(rest))

    async def wait_send_all_might_not_block(self) -> None:
        """Not used by what is sent here."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """TLS has said goodbye: end our side. Closing is the transport's."""
        if not self.below.closed:
            await self.below.send_end()


@final
class TlsTransport:
    """A transport that encrypts what another carries, which it owns. Made by :func:`start_tls`."""

    __slots__ = ("_below", "_ended", "_records", "_stream")

    def __init__(
        self, below: Transport, context: ssl.SSLContext, server_hostname: str | None, server_side: bool
    ) -> None:
        self._below = below
        self._records = _Records(below)
        self._stream = trio.SSLStream(
            self._records, context, server_hostname=server_hostname, server_side=server_side, https_compatible=False
        )
        self._ended = False
        """Our side has ended: what still comes is of no interest and is not decrypted."""

    def __repr__(self) -> str:
        return f"<TlsTransport {self._below!r}>"

    @property
    def closed(self) -> bool:
        """As ``Transport.closed``."""
        return self._below.closed

    async def do_handshake(self) -> None:
        """Shake hands; raises what Trio raises."""
        self._records.shaking = True
        try:
            await self._stream.do_handshake()
        finally:
            self._records.shaking = False
            # Trio's stream holds on to its own method here, also when that has run. In a cycle, 47 KB of OpenSSL's stay
            # after the connection until the collector comes by, which sees only a few small objects: 2,000 connections
            # that had come and gone kept 90 MB.
            with contextlib.suppress(AttributeError):
                del self._stream._handshook._afn  # pyright: ignore[reportPrivateUsage]

    async def receive(self) -> bytes:
        return await self._receive(RECEIVE_SIZE)

    async def _receive(self, size: int) -> bytes:
        if not self._ended:
            try:
                return bytes(await self._stream.receive_some(size))
            except trio.BrokenResourceError as error:
                self._broke(error)
            except trio.ClosedResourceError:
                if not self._ended or self.closed:
                    raise
        return await self._below.receive()

    async def receive_into(self, target: ReceiveTarget) -> int:
        return await copy_into(target, self._receive)

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        del buffers
        return 0

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        try:
            return await send_piece(self._stream, buffers)
        except trio.BrokenResourceError as error:
            self._broke(error)

    def _broke(self, error: trio.BrokenResourceError) -> NoReturn:
        if self.closed:
            raise trio.ClosedResourceError("this transport was closed") from None
        raise trio.BrokenResourceError(reason_of(error)) from None

    async def wait_hangup(self, *, half_close: bool) -> None:
        await self._below.wait_hangup(half_close=half_close)

    def readable_nowait(self) -> bool:
        return bool(self._records.held) or bool(self._stream.pending()) or self._below.readable_nowait()

    def watch_peer(self, patience: float) -> None:
        self._below.watch_peer(patience)

    @property
    def vanished(self) -> bool:
        """As ``Transport.vanished``."""
        return self._below.vanished

    def extra_info(self, name: str) -> object:
        """See :func:`trioproxy.net.extra_info`."""
        if name == "ssl_object" and not self.closed:
            return self._stream
        return self.readable_nowait() if name == "is_readable" else extra_info(self._below, name)

    async def send_end(self) -> None:
        if not self._ended and not self.closed:
            self._ended = True
            with (
                trio.move_on_after(_CLOSE_GRACE, shield=True),
                contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            ):
                await self._stream.aclose()

    def close(self) -> None:
        self._below.close()

    def reset(self) -> None:
        self._below.reset()

    async def aclose(self) -> None:
        await self.send_end()
        await self._below.aclose()


def extra_info(transport: Transport, name: str) -> object:
    """What a client may ask about a connection of its own; None for what is not known.

    :param name: ``server_addr`` and ``client_addr`` as the socket module has them, ``ssl_object`` for what has
        the methods of :class:`ssl.SSLObject`, ``is_readable``, ``socket`` for the non-blocking socket, which is
        there to be asked and set, not to be read or closed.
    """
    return transport.extra_info(name) if isinstance(transport, SocketTransport | TlsTransport) else None


async def start_tls(
    transport: Transport, context: ssl.SSLContext, *, server_hostname: str | None = None, server_side: bool = False
) -> Transport:
    """Shake hands on a connection, which belongs to the result then.

    :param server_hostname: the name that the server's certificate must have, a name or an address; also the SNI.
    :raises TlsError: the handshake failed. Then, and when it is cancelled, the connection is reset.
    """
    try:
        tls = TlsTransport(transport, context, server_hostname, server_side)
        await tls.do_handshake()
    except trio.BrokenResourceError as error:
        transport.reset()
        raise TlsError(f"the TLS handshake failed: {reason_of(error)}") from None
    except (ssl.SSLError, ValueError) as error:
        transport.reset()
        raise TlsError(f"TLS cannot be spoken: {reason_of(error)}") from None
    except BaseException:
        transport.reset()
        raise
    return tls


_HINTS: Final = {
    "unable to get local issuer certificate": "its issuer is not trusted",
    "self-signed certificate": "it is self-signed, and not trusted",
    "self-signed certificate in certificate chain": "its issuer is not trusted",
    "WRONG_VERSION_NUMBER": "what is there speaks no TLS",
    "HTTP_REQUEST": "plain HTTP came instead of TLS",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.2 or later",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.2 or later",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client's certificate",
}
"""What OpenSSL says, for people."""


def reason_of(error: BaseException) -> str:
    """Why TLS broke, in OpenSSL's words, without its file names and line numbers."""
    cause = error.__cause__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        said = cause.verify_message.rstrip(".")
        return f"the certificate is not valid: {_HINTS.get(said, said)}"
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLSyscallError):
        return "the connection was cut without a TLS goodbye"
    if isinstance(cause, ssl.SSLError) and cause.reason:
        return _HINTS.get(cause.reason) or cause.reason.lower().replace("_", " ")
    return str(cause) or type(cause).__name__


def client_context(
    *, ca: str | Path | None = None, cert: str | Path | None = None, key: str | Path | None = None, verify: bool = True
) -> ssl.SSLContext:
    """A context for connections to upstreams: certificates and host names are checked, ALPN says http/1.1.

    :param ca: a file of certificates to trust in place of the system's.
    :param cert: a file with the certificate that we show, and its chain.
    :param key: the file with its key, if that is not in ``cert`` too.
    :param verify: False trusts whoever answers.
    :raises OSError: a file cannot be read, or is not what it should be.
    """
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is not None:
        context = trusting(Path(ca))
    if cert is not None:
        load_chain(context, Path(cert), None if key is None else Path(key))
    elif key is not None:
        raise ValueError("a key needs its certificate")
    context.set_alpn_protocols(_ALPN)
    return context


def trusting(ca: Path) -> ssl.SSLContext:
    """A client's context that trusts these authorities.

    :param ca: a file of certificates, PEM, or a directory of those with the names that OpenSSL looks for.
    :raises OSError: it cannot be read, or has none in it; which file that is, is said.
    """
    if ca.is_dir():
        return ssl.create_default_context(capath=str(ca))
    _read(ca)
    try:
        return ssl.create_default_context(cafile=str(ca))
    except ssl.SSLError:
        raise OSError(f"{str(ca)!r} has no PEM certificates in it") from None


@final
class ServerTls:
    """The certificate of a listener, which can be read again while it serves.

    :param cert: a file with the certificate and its chain, PEM.
    :param key: the file with its key, if that is not in ``cert`` too.
    :raises OSError: a file cannot be read, or is not what it should be.
    """

    __slots__ = ("_cert", "_key", "context")

    def __init__(self, cert: str | Path, key: str | Path | None = None) -> None:
        self._cert = Path(cert)
        self._key = None if key is None else Path(key)
        self.context: ssl.SSLContext = self._load()
        """What the next handshake uses."""

    def reload(self) -> None:
        """Read the files again; connections that stand keep what they have.

        :raises OSError: as when it was made. The old certificate stays then.
        """
        self.context = self._load()

    def use(self, other: ServerTls) -> None:
        """Have the files of another from now on, and its certificate for the next handshakes."""
        self._cert, self._key, self.context = other._cert, other._key, other.context

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_chain(context, self._cert, self._key)
        context.set_alpn_protocols(_ALPN)
        return context


class _EncryptedKeyError(Exception):
    """OpenSSL asked for a passphrase."""


def load_chain(context: ssl.SSLContext, cert: Path, key: Path | None, passphrase: str | None = None) -> None:
    """Have the context show a certificate.

    :param cert: a file with the certificate and its chain, PEM.
    :param key: the file with its key, if that is not in ``cert`` too.
    :param passphrase: of the key.
    :raises OSError: a file cannot be read, or is not what it should be; which one, and what is wrong with it, is said.
    """

    def ask() -> str:  # else OpenSSL asks the terminal, and a service waits for ever
        if passphrase is None:
            raise _EncryptedKeyError
        return passphrase

    holds_key = cert if key is None else key
    if b"-----BEGIN CERTIFICATE-----" not in _read(cert):
        raise OSError(f"there is no PEM certificate in {str(cert)!r}")
    if b"PRIVATE KEY-----" not in _read(holds_key):
        raise OSError(
            f"there is no PEM key in {str(holds_key)!r}" + ("; is it in another file?" if key is None else "")
        )
    try:
        context.load_cert_chain(cert, key, password=ask)
    except _EncryptedKeyError:
        raise OSError(
            f"the key in {str(holds_key)!r} has a passphrase: it cannot be asked for, store it without"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise OSError(
                f"the key in {str(holds_key)!r} does not belong to the certificate in {str(cert)!r}"
            ) from None
        what = repr(str(cert)) if key is None else f"{str(cert)!r} and {str(key)!r}"
        raise OSError(f"the certificate or the key in {what} is damaged") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OSError(f"cannot read {str(path)!r}: {error.strerror}") from None
