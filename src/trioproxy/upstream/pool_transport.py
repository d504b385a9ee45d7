"""An httpx transport for Trio on our own pool: docs/pool-transport.md.

Lives here: what httpx asks of a transport, the choice of a connection, and trying again. Does not live here: one
request on one connection (client_call.py), and how many there may be (connections.py).

httpcore's pool loses a connection's slot for ever when a request is cancelled while it connects
(encode/httpcore#1093). Here a request's hold on its slot and connection is one object, which ends in one synchronous
step, whatever ends the request.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
from collections.abc import Sequence
from typing import Final, cast, final

import httpx
import trio

from ..errors import ProxyError
from ..http1 import ParserName, default_parser, head_parser
from ..net import Address, Connector, connect
from .client_call import Call, StaleConnectionError
from .client_message import Message
from .client_response import NetworkStream
from .client_terms import Timeouts, Trace, as_errors, extension, within
from .client_tls import tls_context
from .connections import Connections, Counts, Hold, Origin
from .endpoint import Endpoint, look_up
from .pool import Pool

_LIMITS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=4.0)
_VANISHED: Final = 30.0
"""Seconds after which a server whose system answers nothing, not even a probe, fails the request."""
_LOOK_UPS: Final = 16
"""Threads that names may be looked up in at a time."""


@final
class PoolTransport(httpx.AsyncBaseTransport):
    """``httpx.AsyncClient(transport=trioproxy.PoolTransport())``: HTTP/1.1 with connections that are never lost.

    A client's own ``verify``, ``cert``, ``limits``, ``http2`` and ``proxy`` do not reach a transport that it is given,
    so they are given here. Cancelling a request at any step gives its place back at once and leaves nothing behind. It
    can be made outside of Trio, and used in one Trio run after the other.

    :param verify: whom to trust: the usual authorities, whoever answers (False), those in a file or a directory, or
        what a context says.
    :param cert: the certificate to show: a file, or (certificate, key) or (certificate, key, password).
    :param limits: of connections; ``keepalive_expiry`` is 4 s unless given, below the 5 s after which uvicorn closes.
        No task watches the idle ones: those that have expired are closed when the next request begins or ends.
    :param http2: not supported: True is refused.
    :param uds: the path of a unix socket to connect to, whatever the URL's host is.
    :param trust_env: whether ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` count.
    :param codec: which library parses heads, ``llhttp`` or ``h11``.
    :param connector: how connections are opened, for tests with a network of their own.
    :raises ValueError: for http2.
    :raises OSError: a file of ``verify`` or ``cert`` cannot be read, or is not what it should be.
    """

    def __init__(
        self,
        *,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | tuple[str, str, str] | None = None,
        limits: httpx.Limits = _LIMITS,
        http2: bool = False,
        uds: str | None = None,
        trust_env: bool = True,
        codec: ParserName | None = None,
        connector: Connector = connect,
    ) -> None:
        if http2:
            raise ValueError("PoolTransport speaks HTTP/1.1 only: leave http2 out, or use httpx's own transport for it")
        self._context = tls_context(verify, cert, trust_env=trust_env)
        self._limits = limits
        self._keep_alive = math.inf if limits.keepalive_expiry is None else limits.keepalive_expiry
        self._uds = uds
        self._connector = connector
        self._parser = head_parser(codec or default_parser())
        self._resolver = trio.CapacityLimiter(_LOOK_UPS)
        self._connections: Connections | None = None

    def __repr__(self) -> str:
        return f"<PoolTransport {self.counts}>"

    @property
    def counts(self) -> Counts:
        """Connections by state, and requests that wait for one."""
        return Counts(0, 0, 0, 0) if self._connections is None else self._connections.counts

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; returns when its response's head is there.

        :raises httpx.TimeoutException: ``PoolTimeout``, ``ConnectTimeout``, ``WriteTimeout`` or ``ReadTimeout``, by the
            request's ``timeout`` extension.
        :raises httpx.TransportError: what else went wrong, as httpx has it.
        :raises RuntimeError: this is not Trio, or another Trio run uses the transport at this moment.
        """
        origin = _origin(request)
        message, timeouts, trace = Message(request), Timeouts(request), Trace(request)
        connections = self._current()
        await trio.lowlevel.checkpoint_if_cancelled()  # there may be no other before something is sent
        connections.tidy()
        with as_errors(httpx.ConnectError):
            hold = await within(timeouts.pool, httpx.PoolTimeout, lambda: connections.hold(origin))
        try:
            return await self._send(message, hold, timeouts, trace)
        except BaseException:
            hold.end()
            raise

    async def _send(self, message: Message, hold: Hold, timeouts: Timeouts, trace: Trace) -> httpx.Response:
        if hold.lease.take_idle_nowait() is not None:
            with contextlib.suppress(StaleConnectionError):
                return await Call(message, hold, self._parser, timeouts, trace).run()
        how, info = self._connecting(hold.lease.endpoint, timeouts)
        await trace.of(
            f"connection.connect_{how}",
            lambda: _open(hold, timeouts.connect),
            lambda _: NetworkStream(hold, hold.transport, b""),
            info,
        )
        return await Call(message, hold, self._parser, timeouts, trace).run()

    def _connecting(self, endpoint: Endpoint, timeouts: Timeouts) -> tuple[str, dict[str, object]]:
        """What to tell of connecting, in httpcore's words."""
        how: dict[str, object] = {
            "timeout": None if math.isinf(timeouts.connect) else timeouts.connect,
            "socket_options": None,
        }
        if self._uds is not None:
            return "unix_socket", {"path": self._uds, **how}
        return "tcp", {"host": endpoint.host, "port": endpoint.port, "local_address": None, **how}

    async def aclose(self) -> None:
        """Close every connection; requests that are under way, or that wait, fail.

        :raises RuntimeError: another Trio run uses it at this moment.
        """
        if self._connections is not None:
            if self._connections.token is trio.lowlevel.current_trio_token():
                self._connections.close()
            else:
                self._connections.leave()
            self._connections = None

    def _current(self) -> Connections:
        """The connections of this Trio run."""
        try:
            token = trio.lowlevel.current_trio_token()
        except RuntimeError:
            raise RuntimeError("PoolTransport works under Trio only; for asyncio, use httpx's own transport") from None
        if self._connections is not None and self._connections.token is not token:
            self._connections.leave()
            self._connections = None
        if self._connections is None:
            self._connections = Connections(
                most=self._limits.max_connections,
                most_idle=self._limits.max_keepalive_connections,
                make_pool=self._make_pool,
            )
        return self._connections

    def _make_pool(self, origin: Origin) -> Pool:
        endpoint = Endpoint(f"{origin.scheme}://{origin.authority}")

        async def addresses() -> Sequence[Address]:
            if self._uds is not None:
                return [Address(socket.AF_UNIX, self._uds)]
            if endpoint.literal:
                return await endpoint.addresses()
            # A thread cannot be interrupted. Cancelled, the request is not kept waiting for it; those that are left
            # behind are few, since they keep their place in the limiter.
            try:
                return await trio.to_thread.run_sync(
                    look_up, endpoint.host, endpoint.port, abandon_on_cancel=True, limiter=self._resolver
                )
            except UnicodeError as error:
                raise OSError(f"{endpoint.host!r} is not a host name") from error

        return Pool(
            endpoint,
            keep_alive=self._keep_alive,
            connector=self._connector,
            tls=self._context if endpoint.tls else None,
            server_name=origin.server_name,
            addresses=addresses,
        )


async def _open(hold: Hold, patience: float) -> None:
    try:
        await within(patience, httpx.ConnectTimeout, hold.open)
        hold.transport.watch_peer(_VANISHED)
    except ProxyError as error:
        raise httpx.ConnectError(error.detail or error.message) from error
    except trio.ClosedResourceError as error:
        raise httpx.ConnectError(str(error)) from error


def _origin(request: httpx.Request) -> Origin:
    url = request.url
    if url.scheme not in ("http", "https"):
        what = f"the protocol {url.scheme!r}" if url.scheme else "a URL without http:// or https://"
        raise httpx.UnsupportedProtocol(f"{what} is not supported")
    try:
        authority = url.netloc.decode("ascii")
        Endpoint(f"{url.scheme}://{authority}")
    except ValueError as error:
        raise httpx.LocalProtocolError(f"the URL names no server: {error}") from None
    return Origin(url.scheme, authority, cast("str | None", extension(request, "sni_hostname")))
