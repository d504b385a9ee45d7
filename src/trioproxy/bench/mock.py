"""A model server without a model: OpenAI's API with prefill, tokens and stalls on demand, which keeps account of work
done for nobody.

Lives here: the server, its listener and what tests and the command line need. The parts: mock_connection.py (one
connection), mock_request.py (what is asked for), mock_answer.py (bytes of answers), mock_record.py (the account),
mock_wire.py (sockets), mock_gate.py (how far answers may go), mock_load.py (metrics). None of them may use the proxy's
own HTTP: the mock is its referee.

==========================================  =====================================================================
``GET /v1/models``, ``GET /health``         answered at once
``POST /v1/chat/completions``               streamed as SSE or whole; ``metadata`` overrides the settings for the
``POST /v1/completions``                    request, see ``Knobs``
``GET /metrics``                            load and token counts for Prometheus, under vLLM's names
``GET /mock/requests[?id=ID]``              the records as JSON, oldest first
``POST /mock/reset``, ``DELETE`` likewise   forget the records
==========================================  =====================================================================
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, final

import trio

from trioproxy.bench.mock_connection import Connection
from trioproxy.bench.mock_gate import Gate
from trioproxy.bench.mock_load import EngineLoad
from trioproxy.bench.mock_record import Ledger, RequestRecord
from trioproxy.bench.mock_request import Knobs, MockSettings
from trioproxy.bench.mock_wire import SocketWire, StreamWire, Wire

__all__ = ["Knobs", "MockServer", "MockSettings", "RequestRecord"]

DEFAULTS: Final = MockSettings()

BACKLOG: Final = 4096
"""Connections that the kernel may hold until they are accepted; it cuts this to its own limit."""

ACCEPT_BATCH: Final = 64
"""Connections accepted before others get their turn."""

ACCEPT_PAUSE: Final = 0.05
"""Seconds until the next attempt when accepting failed."""

_LISTENER_IS_BROKEN: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})


@final
class MockServer:
    """A mock model server; it may serve any number of listeners and streams at once.

    :param settings: the behaviour where a request's ``metadata`` says nothing.
    :param clock: seconds, for the records; see ``Ledger``.
    :param on_name: called with each record as soon as its id is known; see ``Ledger``.
    """

    __slots__ = ("_ledger", "gate", "settings")

    def __init__(
        self,
        settings: MockSettings = DEFAULTS,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_name: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self.settings = settings
        self.gate = Gate()
        """Holds the tokens of all requests back; open unless it is used."""
        self._ledger = Ledger(clock, on_name=on_name)

    @property
    def records(self) -> Sequence[RequestRecord]:
        """The newest requests, oldest first; those to ``/mock/`` and ``/metrics`` are not recorded.

        Live: the records change as their requests go on, and the sequence as others come."""
        return self._ledger.records

    @property
    def load(self) -> EngineLoad:
        """What ``/metrics`` says, live."""
        return self._ledger.load

    async def wait_record(self, predicate: Callable[[RequestRecord], object]) -> RequestRecord:
        """Wait for a record that satisfies ``predicate`` and return the newest such.

        Has no deadline of its own: that is the caller's cancel scope.
        """
        return await self._ledger.wait(predicate)

    async def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen on TCP and serve until cancelled; then every connection is closed at once.

        :param port: 0 lets the system choose one.
        :param task_status: is started with the host and port that it listens on.

        Raises ``OSError`` if the address cannot be listened on. A failing accept (out of file descriptors, a client
        gone already) is tried again after 50 ms and never ends the server.
        """
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        with socket.create_server(address[:2], family=family, backlog=BACKLOG) as listener:
            listener.setblocking(False)
            async with trio.open_nursery() as nursery:
                bound = listener.getsockname()
                task_status.started((bound[0], bound[1]))
                await self._accept(listener, nursery)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection on any Trio stream, until it ends; then, or when cancelled, the stream is closed."""
        await self._serve(StreamWire(stream))

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                for _ in range(ACCEPT_BATCH):
                    connected, _address = listener.accept()
                    nursery.start_soon(self._serve, SocketWire(connected))
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in _LISTENER_IS_BROKEN:
                    raise
                await trio.sleep(ACCEPT_PAUSE)

    async def _serve(self, wire: Wire) -> None:
        await Connection(wire, self.settings, self._ledger, self.gate).run()
