"""One exchange in memory, step by step, with something happening at chosen steps, and the account of how it ended.

Lives here: the stage on which a scripted exchange is played, and the state of everything after it. Does not live
here: the scripts, or what must hold.

A *step* is one resumption of one task by the scheduler. A move is made synchronously before a step, so it falls
between any two steps that the proxy's tasks can be in. The scheduler's choices are drawn from a seed, so a play can
be repeated exactly.
"""

# pyright: reportPrivateUsage=false
# Trio has no public switch for a deterministic scheduler, and statistics do not say how many requests have begun.

from __future__ import annotations

import enum
import functools
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, final

import h11
import trio
import trio.testing
from trio._core import _run

from certificates import authority, server_context, trusting_context
from network import End, Line, Network, Script, as_it_is, connection, perform, stream_of
from opened import opened
from tls_end import TlsEnd
from trioproxy import Proxy, Settings
from trioproxy.connection import ClientConnection
from trioproxy.runtime import Runtime, Statistics
from trioproxy.upstream.request import Client

if TYPE_CHECKING:
    from collections.abc import Generator

PATIENCE: Final = 1000.0
"""Virtual seconds that a play may take: above every deadline of the proxy."""
STEPS: Final = 5000
"""That it may take: what waits for nothing takes no time on a virtual clock, and never ends."""


@final
class Move(enum.Enum):
    """What happens to an exchange."""

    CANCEL = "the task that serves the client is cancelled"
    CLIENT_CLOSES = "the client closes"
    CLIENT_CUTS = "the client closes without the goodbye of TLS"
    CLIENT_RESETS = "the client resets"
    CLIENT_STALLS = "the client reads nothing any more, and the network is full"
    DEADLINE_PASSES = "the deadline of the exchange passes"
    UPSTREAM_CLOSES = "every upstream closes the connections it has"
    UPSTREAM_CUTS = "every upstream closes the connections it has without the goodbye of TLS"
    UPSTREAM_RESETS = "every upstream resets the connections it has"
    UPSTREAM_STALLS = "every upstream reads nothing any more, and the network is full"


LEAVES: Final = frozenset({Move.CANCEL, Move.CLIENT_CLOSES, Move.CLIENT_CUTS, Move.CLIENT_RESETS})
"""Moves after which nobody is left to serve."""


@final
class Stranger(enum.Enum):
    """An upstream with which no TLS comes about."""

    EXPIRED = "its certificate has expired"
    SILENT = "it never answers to a handshake"


@final
class Kind(enum.Enum):
    """What the proxy's transports are."""

    SOCKETS = "ends that behave like sockets, to a ClientConnection"
    STREAMS = "Trio streams, to Proxy.serve_stream"
    TLS = "TLS on ends that behave like sockets, as for a connection that was accepted"


@final
@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A scripted exchange.

    :param client: what the client does.
    :param ports: what the upstreams do, see ``Network``.
    :param upstreams: the ports that the proxy forwards to, in order.
    :param outcomes: how many requests end how if nothing happens.
    :param waits: whether the proxy waits for a deadline in it, undisturbed.
    :param strangers: ports at which no TLS comes about, when that is what is spoken.
    """

    name: str
    client: Script
    ports: Mapping[int, Sequence[Script]]
    upstreams: Sequence[int] = (1,)
    settings: Settings = field(default_factory=Settings)
    outcomes: Mapping[str, int]
    waits: bool = False
    strangers: Mapping[int, Stranger] = field(default_factory=dict[int, Stranger])
    framed: bool = True
    """Whether the answers can be counted: one that ends with its connection cannot be told from a cut one."""


@final
@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a play ended."""

    steps: int
    """How many there were until the proxy was done."""
    moved: bool
    """Whether the first move was made before that."""
    delay: float
    """Virtual seconds to the proxy's end from the first move after which nobody is left, or else from the first move,
    or else from the start; 0: it waited for no deadline."""
    left: Move | None
    """That move after which nobody is left."""
    statistics: Statistics
    """When the proxy was done and its pools had been emptied."""
    pooled: int
    """Upstream connections that were idle in the pools before that."""
    begun: int
    """Requests that the proxy gave an id to."""
    open_ends: list[str]
    """The proxy's ends of connections that are still open, the pooled ones excepted."""
    closed_by: str
    """The task in whose step the first connection to an upstream was closed; empty if none was."""
    forwarded: int
    """Requests whose head was sent to an upstream."""
    forwarded_late: int
    """Those of them for which that began after the cancel."""
    answers: int
    """Complete final responses among the bytes that were handed over to the client."""
    log: list[str]
    """What was logged at ERROR and above."""


@final
class Stepper(trio.abc.Instrument):
    """Counts the scheduler's steps and makes the moves that are due."""

    def __init__(self, moves: Mapping[int, Sequence[Move]]) -> None:
        self.steps = 0
        self.began: float | None = None
        """When the first move was made, or the first after which nobody is left, in virtual seconds."""
        self.left: Move | None = None
        """That one after which nobody is left."""
        self.failures: list[BaseException] = []
        self.running = False
        self.victim = trio.CancelScope()
        self.stop: Callable[[], None] = lambda: None
        """Ends the play."""
        self.client: End | None = None
        self.client_line: Line | None = None
        """What the client has on its end."""
        self.network: Network | None = None
        self.served: Callable[[], Iterable[ClientConnection]] = tuple
        """The proxy's clients."""
        self.closed_by = ""
        """The task in whose step the first connection to an upstream was closed."""
        self.sent_before: list[int] = []
        """Bytes that had been sent on each connection to an upstream before the cancel."""
        self._moves = moves

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio. What is raised here would be swallowed, so it is kept."""
        if self.running:
            self.steps += 1
            if self.steps == STEPS:
                self.failures.append(AssertionError(f"no end after {STEPS} steps: tasks go round and round"))
                self.stop()
            for move in self._moves.get(self.steps, ()):
                if self.began is None or (self.left is None and move in LEAVES):
                    self.began = trio.current_time()
                if self.left is None and move in LEAVES:
                    self.left = move
                try:
                    self._make(move)
                except BaseException as error:  # noqa: ASYNC103 - kept and raised by play; Trio would log it and go on
                    self.failures.append(error)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio."""
        if self.closed_by or self.network is None:
            return
        if any(end.closed for end in self.network.dialled[:1]):
            self.closed_by = task.name

    def _make(self, move: Move) -> None:
        assert self.client is not None
        assert self.client_line is not None
        assert self.network is not None
        match move:
            case Move.CANCEL:
                self.victim.cancel()
                self.sent_before = [len(end.sent) for end in self.network.dialled]
            case Move.CLIENT_CLOSES:
                self.client_line.close()
            case Move.CLIENT_CUTS:
                self.client.close()
            case Move.CLIENT_RESETS:
                self.client.reset()
            case Move.CLIENT_STALLS:
                self.client.stall()
            case Move.DEADLINE_PASSES:
                for served in self.served():
                    if served._exchange is not None:
                        served._exchange.expire()
            case Move.UPSTREAM_CLOSES:
                for line in self.network.lines:
                    line.close()
            case Move.UPSTREAM_CUTS:
                for end in self.network.dialled:
                    end.peer.close()
            case Move.UPSTREAM_RESETS:
                for end in self.network.dialled:
                    end.peer.reset()
            case Move.UPSTREAM_STALLS:
                for end in self.network.dialled:
                    end.peer.stall()


def play(scenario: Scenario, moves: Mapping[int, Sequence[Move]], *, kind: Kind, seed: int = 0) -> Ending:
    """Play a scenario in a Trio run of its own.

    :param moves: by step, from 1.
    :param seed: of the scheduler's choices.
    :raises trio.TooSlowError: the proxy did not end within ``PATIENCE``.
    """
    stepper = Stepper(moves)
    with scheduled_by(seed), _logged() as log:
        return trio.run(
            _stage,
            scenario,
            kind,
            stepper,
            log,
            clock=trio.testing.MockClock(autojump_threshold=0),
            instruments=[stepper],
            strict_exception_groups=True,
        )


async def _stage(scenario: Scenario, kind: Kind, stepper: Stepper, log: list[str]) -> Ending:
    ending: Ending | None = None
    async with trio.open_nursery() as scripts:
        tls = kind is Kind.TLS
        network = stepper.network = Network(
            scripts,
            scenario.ports,
            streams=kind is Kind.STREAMS,
            line=partial(_upstream_line, scenario.strangers) if tls else as_it_is,
        )
        client, near = connection("client")
        line = TlsEnd(client, _trusting(), server_hostname="localhost") if tls else client
        stepper.client, stepper.client_line = client, line
        urls = [f"{'https' if tls else 'http'}://127.0.0.1:{port}" for port in scenario.upstreams]
        pooled = 0
        stepper.stop = scripts.cancel_scope.cancel
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as proxies:
                stepper.running = True
                scripts.start_soon(perform, scenario.client, line)
                if kind is Kind.SOCKETS:
                    runtime = Runtime(opened(*urls), scenario.settings, network.connect)
                    served = ClientConnection(runtime, near, Client(b"10.0.0.1"))
                    stepper.served = lambda: (served,)
                    proxies.start_soon(_serve_connection, served, stepper.victim)
                else:
                    proxy = Proxy(
                        opened(*urls),
                        settings=scenario.settings,
                        upstream_tls=_trusting() if tls else None,
                        connector=network.connect,
                    )
                    # Statistics do not say how many requests have begun, only how many have ended.
                    runtime = proxy._runtime
                    stepper.served = lambda: proxy._connections
                    if tls:
                        proxies.start_soon(_serve_accepted, proxy, near, stepper.victim)
                    else:
                        proxies.start_soon(_serve_stream, proxy, stream_of(near), stepper.victim)
            stepper.running = False
            ended = trio.current_time()
        for pool in runtime.groups.pools:
            pooled += pool.idle
            pool.close_idle()
        ending = Ending(
            steps=stepper.steps,
            moved=stepper.began is not None,
            delay=ended - (stepper.began or 0.0),
            left=stepper.left,
            statistics=runtime.statistics(),
            pooled=pooled,
            begun=int(runtime.next_request_id().rpartition("-")[2], 16) - 1,
            open_ends=[repr(end) for end in (near, *network.dialled) if not end.closed],
            closed_by=stepper.closed_by,
            forwarded=(total := forwarded(network, [len(end.sent) for end in network.dialled])),
            forwarded_late=total - forwarded(network, stepper.sent_before) if stepper.victim.cancel_called else 0,
            answers=complete_answers(plain(near.sent, line)),
            log=log,
        )
        scripts.cancel_scope.cancel()
    if stepper.failures:
        raise ExceptionGroup("a move failed", [e for e in stepper.failures if isinstance(e, Exception)])
    assert ending is not None
    return ending


async def _serve_connection(client: ClientConnection, victim: trio.CancelScope) -> None:
    with victim:
        await client.run()


async def _serve_stream(proxy: Proxy, stream: trio.abc.Stream, victim: trio.CancelScope) -> None:
    with victim:
        await proxy.serve_stream(stream)


async def _serve_accepted(proxy: Proxy, end: End, victim: trio.CancelScope) -> None:
    """As the proxy serves what its listener has accepted."""
    with victim:
        async with proxy._housekeeping():
            await proxy._serve_connection(end, "10.0.0.1", _serving())


_serving: Final = functools.cache(server_context)
_trusting: Final = functools.cache(trusting_context)


@functools.cache
def _expired() -> ssl.SSLContext:
    return server_context(authority().expired)


def _upstream_line(strangers: Mapping[int, Stranger], end: End, port: int) -> Line | None:
    match strangers.get(port):
        case Stranger.SILENT:
            return None
        case Stranger.EXPIRED:
            return TlsEnd(end, _expired())
        case None:
            return TlsEnd(end, _serving())


def plain(sent: bytes | bytearray, line: Line) -> bytes:
    """What these bytes say that were sent to this side, decrypted if there is TLS on it."""
    return bytes(line.heard[: line.heard_of(sent)] if isinstance(line, TlsEnd) else sent)


def forwarded(network: Network, sent: Sequence[int]) -> int:
    """How many requests have been sent to upstreams, by their heads.

    :param sent: how many bytes on each connection are counted.
    """
    connections = zip(network.dialled, network.lines, sent, strict=False)  # later ones are not counted
    return sum(plain(end.sent[:count], line).count(b" HTTP/1.1\r\n") for end, line, count in connections)


def complete_answers(data: bytes) -> int:
    """How many whole final responses there are in what a client was sent, as h11 sees it."""
    count = 0
    while data:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(data)
        while (event := parser.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.EndOfMessage):
                break
            assert event is not h11.PAUSED
        else:
            break
        count += 1
        data = parser.trailing_data[0]
    return count


@contextmanager
def scheduled_by(seed: int) -> Generator[None]:
    """Make the scheduler's choices a function of the seed, as Hypothesis does."""
    choices, deterministic = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    state = choices.getstate()
    choices.seed(seed)
    setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)  # noqa: B010 - it is Final to the checkers
    try:
        yield
    finally:
        setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", deterministic)  # noqa: B010 - as above
        choices.setstate(state)


@contextmanager
def _logged() -> Generator[list[str]]:
    """What the proxy logs at ERROR and above: what only it can be blamed for."""
    lines: list[str] = []
    handler = _Keep(lines)
    logger = logging.getLogger("trioproxy")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


class _Keep(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._lines = lines
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))
