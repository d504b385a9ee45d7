"""The command line: arguments to settings, settings to a run, the run to an exit status.

Lives here: what is typed, what is printed, and signals. Does not live here: what a proxy or a model server does.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar, final, get_args

import click
import trio

from . import __version__
from .bench.mock import MockServer, MockSettings
from .config import BodyMode, Deadlines, HalfClose, Limits, Settings
from .http1 import ParserName, default_parser
from .net import Listener, ServerTls, client_context, inherited, listen, listen_unix
from .process import fix_mmap_threshold, raise_file_limit, streams_for
from .server import Proxy

_logger: Final = logging.getLogger("trioproxy")
_T = TypeVar("_T")
_SECONDS: Final = click.FloatRange(min=0)
_FILE: Final = click.Path(dir_okay=False, path_type=Path)
_COUNT: Final = click.IntRange(min=0)
_HANGUPS: Final = tuple(number for number in signal.Signals if number.name == "SIGHUP")
"""The signal that asks to read files again; none on Windows."""
_UNWINDING: Final = 5.0
"""Seconds that stopping may take beyond the grace before the process ends itself: a thread cannot be cancelled."""


class Place(NamedTuple):
    """Where to listen: host and port, or a path, or neither for the sockets that were passed to the process."""

    shown: str
    host: str = ""
    port: int = 0
    path: str = ""

    async def listeners(self) -> list[Listener]:
        """Listen there; raises OSError."""
        if self.host:
            return await listen(self.host, self.port)
        return [listen_unix(self.path)] if self.path else inherited()


class PlaceType(click.ParamType[Place]):
    """``HOST:PORT``, ``unix:PATH`` or ``systemd``."""

    name = "address"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Read one place, or fail with what is wrong."""
        if isinstance(value, Place):
            return value
        text = str(value)
        if text == "systemd":
            return Place(text)
        if text.startswith("unix:"):
            if not (path := text.removeprefix("unix:")):
                self.fail(f"{text!r} lacks the path of a socket, such as unix:/run/trioproxy.sock", param, ctx)
            return Place(text, path=path)
        host, port = Address().convert(value, param, ctx)
        return Place(_show(host, port), host, port)


class Address(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT`` (every address of this machine)."""

    name = "host:port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Read one address, or fail with what is wrong."""
        text = str(value)
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            self.fail(f"{text!r} is not HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:8080", param, ctx)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            self.fail(f"{text!r}: an IPv6 address is written in brackets, such as [::1]:8080", param, ctx)
        return host or "0.0.0.0", int(port)


def _say(message: str, *, err: bool = False) -> None:
    """Print, if anybody listens: a log collector that went away must not end the proxy."""
    with contextlib.suppress(OSError):
        click.echo(message, err=err)


def _show(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="trioproxy")
def main() -> None:
    """A reverse proxy for LLM inference that stops work nobody waits for and holds nothing it no longer needs."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)


def _assignments(kind: Literal["deadline", "limit"], values: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    example = "idle=60" if kind == "deadline" else "body_size=1048576 (bytes, without a unit)"
    for text in values:
        name, equals, number = text.partition("=")
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names)}"
            raise click.BadParameter(f"{name!r} is not a {kind}{hint}", param_hint=f"--{kind}")
        try:
            found[name] = float(number if equals else "")
        except ValueError:
            raise click.BadParameter(
                f"{text!r} is not NAME=NUMBER, such as {example}", param_hint=f"--{kind}"
            ) from None
    return found


def _whole(count: float) -> int:
    if count % 1:
        raise ValueError(f"a limit must be a whole number, got {count:g}")
    return int(count)


def _settings(
    deadlines: Sequence[str], limits: Sequence[str], body: BodyMode, client_half_close: HalfClose, codec: ParserName
) -> Settings:
    seconds = _assignments("deadline", deadlines, [item.name for item in fields(Deadlines)])
    counts = _assignments("limit", limits, [item.name for item in fields(Limits)])
    try:
        return Settings(
            deadlines=Deadlines(**seconds),
            limits=Limits(**{name: _whole(count) for name, count in counts.items()}),
            body=body,
            client_half_close=client_half_close,
            codec=codec,
        )
    except (ValueError, OverflowError) as error:
        raise click.UsageError(str(error)) from None


@main.command()
@click.option(
    "--listen",
    "places",
    type=PlaceType(),
    metavar="HOST:PORT|unix:PATH|systemd",
    multiple=True,
    default=["127.0.0.1:8080"],
    show_default=True,
    help="Where to listen, as often as needed; `systemd` takes the sockets of its .socket unit.",
)
@click.option(
    "--tls-cert",
    type=_FILE,
    metavar="FILE",
    help="Speak TLS to clients, with this certificate (PEM, its chain after it). SIGHUP reads it again.",
)
@click.option("--tls-key", type=_FILE, metavar="FILE", help="The certificate's key, if it is not in the same file.")
@click.option(
    "--upstream",
    "upstreams",
    metavar="URL",
    multiple=True,
    required=True,
    help="A model server: http://HOST:PORT, https://HOST:PORT or unix:/PATH. Several take turns, and stand in for one "
    "that cannot be reached.",
)
@click.option(
    "--upstream-ca",
    type=_FILE,
    metavar="FILE",
    help="Trust the certificates in this file for https:// upstreams, instead of the system's.",
)
@click.option(
    "--upstream-cert", type=_FILE, metavar="FILE", help="The certificate (PEM) to show to https:// upstreams that ask."
)
@click.option("--upstream-key", type=_FILE, metavar="FILE", help="Its key, if it is not in the same file.")
@click.option(
    "--upstream-insecure", is_flag=True, help="Do not check the certificates of https:// upstreams: for tests only."
)
@click.option(
    "--deadline",
    "deadlines",
    metavar="NAME=SECONDS",
    multiple=True,
    help="In seconds, `inf` for none; one of: "
    + ", ".join(f"{item.name} ({item.default:g})" for item in fields(Deadlines))
    + ".",
)
@click.option(
    "--limit",
    "limits",
    metavar="NAME=NUMBER",
    multiple=True,
    help="In bytes or a count; one of: " + ", ".join(f"{item.name} ({item.default})" for item in fields(Limits)) + ".",
)
@click.option(
    "--body",
    type=click.Choice(["auto", "buffer", "stream"]),
    default="auto",
    show_default=True,
    help="Hold request bodies until they are there, or pass them on as they come.",
)
@click.option(
    "--client-half-close",
    type=click.Choice(["cancel", "allow"]),
    default="cancel",
    show_default=True,
    help="Whether a client that shuts down its sending side has left.",
)
@click.option(
    "--codec",
    type=click.Choice(get_args(ParserName)),
    default=default_parser(),
    show_default=True,
    help="Which library parses heads; the rules are the same.",
)
def serve(
    places: tuple[Place, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    upstreams: tuple[str, ...],
    upstream_ca: Path | None,
    upstream_cert: Path | None,
    upstream_key: Path | None,
    upstream_insecure: bool,
    deadlines: tuple[str, ...],
    limits: tuple[str, ...],
    body: BodyMode,
    client_half_close: HalfClose,
    codec: ParserName,
) -> None:
    """Forward requests to model servers until SIGINT or SIGTERM.

    The first signal stops accepting and waits for requests in flight, at most for the deadline `drain`; a second one
    ends them at once.
    """
    settings = _settings(deadlines, limits, body, client_half_close, codec)
    for place in places:
        if places.count(place) > 1 and (place.port or not place.host):
            raise click.BadParameter(f"{place.shown} is given more than once", param_hint="--listen")
    tls = _server_tls(tls_cert, tls_key)
    try:
        upstream_tls = client_context(
            ca=upstream_ca, cert=upstream_cert, key=upstream_key, verify=not upstream_insecure
        )
    except (OSError, ValueError) as error:
        raise click.UsageError(f"TLS to upstreams: {error}") from None
    try:
        proxy = Proxy(upstreams, settings=settings, upstream_tls=upstream_tls)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--upstream") from None
    except ImportError:
        raise click.BadParameter(
            "llhttp needs the package httptools, which is not installed; take h11", param_hint="--codec"
        ) from None
    fix_mmap_threshold()
    files = raise_file_limit()
    room = "" if files is None else f", {files} open files allow {streams_for(files)} streams at a time"

    def announce(names: list[str]) -> None:
        scheme = "http" if tls is None else "https"
        for name in names:
            _say(f"trioproxy listens on {name if name.startswith('unix:') else f'{scheme}://{name}'}{room}")
        for upstream in upstreams:
            _say(f"  upstream {upstream}")
        if upstream_insecure:
            _logger.warning("the certificates of upstreams are not checked: whoever answers gets the prompts")

    async def run() -> None:
        await proxy.serve_listeners(await _listeners(places), tls=tls, task_status=_Announce(announce))

    def reload() -> None:
        if tls is None:
            _say("SIGHUP: there is no certificate to read again")
            return
        try:
            tls.reload()
        except OSError as error:
            _logger.warning("kept the certificate as it was: %s", error)
        else:
            _say("read the certificate again, for connections from now on")

    def stop() -> tuple[str, float]:
        proxy.drain()
        waiting = sum(proxy.statistics().in_flight.values())
        grace = settings.deadlines.drain
        limit = "as long as they take" if grace == float("inf") else f"at most {grace:g} s"
        return f"draining: {waiting} in flight, {limit}; a second signal ends them", grace

    _run_until_signal(run, stop, reload)


@main.command(short_help="Run a model server that makes up its tokens.")
@click.option("--listen", type=Address(), default="127.0.0.1:8000", show_default=True, help="Where to listen.")
@click.option(
    "--prefill",
    type=_SECONDS,
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="From a request to its first token.",
)
@click.option(
    "--head",
    type=click.Choice(["early", "late"]),
    default="late",
    show_default=True,
    help="When the head of a stream is sent: at once, as vLLM does, or with the first token.",
)
@click.option(
    "--interval",
    type=_SECONDS,
    default=0.02,
    show_default=True,
    metavar="SECONDS",
    help="From one token to the next.",
)
@click.option(
    "--tokens",
    type=_COUNT,
    default=16,
    show_default=True,
    metavar="N",
    help="How many tokens an answer has.",
)
@click.option("--model", default="mock-model", show_default=True, metavar="NAME", help="The model's name.")
@click.option("--ignore-disconnect", is_flag=True, help="Go on generating for clients that have left.")
def mock(
    listen: tuple[str, int],
    prefill: float,
    head: Literal["early", "late"],
    interval: float,
    tokens: int,
    model: str,
    ignore_disconnect: bool,
) -> None:
    """Run a model server that makes up its tokens, and tells at /mock/requests what it saw."""
    server = MockServer(
        MockSettings(
            prefill=prefill,
            head=head,
            interval=interval,
            tokens=tokens,
            model=model,
            ignore_disconnect=ignore_disconnect,
        )
    )
    raise_file_limit()

    def announce(address: tuple[str, int]) -> None:
        _say(f"the mock model server listens on http://{_show(*address)}")

    async def run() -> None:
        with _listening(_show(*listen)):
            await server.serve(*listen, task_status=_Announce(announce))

    _run_until_signal(run, None, None)


@final
class _Announce(trio.TaskStatus[_T]):
    """Prints that a server has started."""

    def __init__(self, announce: Callable[[_T], None]) -> None:
        self._announce = announce

    def started(self, value: _T | None = None) -> None:
        """Called by the server once it listens."""
        if value is not None:
            self._announce(value)


def _server_tls(cert: Path | None, key: Path | None) -> ServerTls | None:
    if cert is None:
        if key is not None:
            raise click.UsageError("--tls-key needs --tls-cert, the certificate that it belongs to")
        return None
    try:
        return ServerTls(cert, key)
    except OSError as error:
        raise click.UsageError(f"--tls-cert, --tls-key: {error.strerror or error}") from None


async def _listeners(places: Sequence[Place]) -> list[Listener]:
    """Listen at all of the places, or at none."""
    found: list[Listener] = []
    for place in places:
        try:
            with _listening(place.shown):
                found += await place.listeners()
        except BaseException:
            for listener in found:
                listener.close()
            raise
    return found


class _CannotListenError(Exception):
    """Says where, and why."""


@contextlib.contextmanager
def _listening(where: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _CannotListenError(f"cannot listen on {where}: {error.strerror or error}") from None
    except UnicodeError:
        raise _CannotListenError(f"cannot listen on {where}: that is not a host name") from None


def _run_until_signal(
    run: Callable[[], Awaitable[None]],
    stop: Callable[[], tuple[str, float]] | None,
    reload: Callable[[], None] | None,
) -> None:
    """Run a server until it ends, or a signal ends it.

    :param stop: asks the server to end and returns what to print and the seconds that it may take; None for a server
        that the first signal cancels.
    :param reload: reads again what can be read again, on SIGHUP; None leaves that signal alone.
    """
    failure: _CannotListenError | None = None

    async def run_beside_signals() -> None:
        nonlocal failure
        async with trio.open_nursery() as nursery:
            await nursery.start(_watch_signals, nursery.cancel_scope, stop)
            if reload is not None and _HANGUPS:
                await nursery.start(_watch_hangups, reload)
            try:
                await run()
            except _CannotListenError as error:
                failure = error
            nursery.cancel_scope.cancel()

    # What comes before the receiver stands, or after it is gone, must not end the process half-way.
    for number in (signal.SIGINT, signal.SIGTERM, *(_HANGUPS if reload is not None else ())):
        signal.signal(number, signal.SIG_IGN)
    trio.run(run_beside_signals)
    if failure is not None:
        raise click.ClickException(str(failure))


async def _watch_signals(  # noqa: ASYNC114 - no block uses it as a context
    scope: trio.CancelScope,
    stop: Callable[[], tuple[str, float]] | None,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    # Not by KeyboardInterrupt, which can land inside any synchronous update.
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop is None:
                _exit_after(_UNWINDING)
                scope.cancel()
            else:
                message, seconds = stop()
                _say(message)
                _exit_after(seconds + _UNWINDING)
                stop = None


async def _watch_hangups(reload: Callable[[], None], *, task_status: trio.TaskStatus[None]) -> None:  # noqa: ASYNC114
    with trio.open_signal_receiver(*_HANGUPS) as signals:
        task_status.started()
        async for _ in signals:
            reload()


def _exit_after(seconds: float) -> None:
    """End the process by force if it has not ended by then; never, if that is infinite."""
    if seconds > threading.TIMEOUT_MAX:
        return

    def give_up() -> None:
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        _say(f"gave up waiting for threads that do not return: {names}", err=True)
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()


@main.command(short_help="Show what the proxy does, measured, on loopback.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def demo(as_json: bool) -> None:
    """Show in a few seconds, on loopback, what the proxy does when clients leave and while they wait."""
    from .bench.demo import run_demo  # only this command measures memory

    sys.exit(run_demo(as_json=as_json))
