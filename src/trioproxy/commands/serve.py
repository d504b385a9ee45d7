"""``trioproxy serve``: a configuration to a proxy, until a signal.

Lives here: its flags, and what is printed while it serves. Does not live here: what a configuration says (configfile),
and how a process lives in the foreground.
"""

from __future__ import annotations

import logging
import math
from dataclasses import fields
from pathlib import Path
from typing import Final, get_args

import click
import trio

from ..config import BodyMode, Deadlines, HalfClose, Limits
from ..configfile import ConfigError, Loaded, Overrides, Place, load
from ..http1 import ParserName, default_parser
from ..process import fix_mmap_threshold, raise_file_limit, streams_for
from .foreground import Announce, open_listeners, run_until_signal, say
from .parameters import FILE, PathType, PlaceType, UrlType, overrides_of
from .reload import Serving

_logger: Final = logging.getLogger("trioproxy")


@click.command()
@click.option(
    "--config",
    "file",
    type=FILE,
    metavar="FILE",
    help="Read everything from this file (TOML): `trioproxy config --defaults` shows one. Flags beside it win.",
)
@click.option(
    "--listen",
    "places",
    type=PlaceType(),
    metavar="HOST:PORT|unix:PATH|systemd",
    multiple=True,
    show_default="127.0.0.1:8080",
    help="Where to listen, as often as needed; `systemd` takes the sockets of its .socket unit.",
)
@click.option(
    "--tls-cert",
    type=FILE,
    metavar="FILE",
    help="Speak TLS to clients, with this certificate (PEM, its chain after it). SIGHUP reads it again.",
)
@click.option("--tls-key", type=FILE, metavar="FILE", help="The certificate's key, if it is not in the same file.")
@click.option(
    "--upstream",
    "upstreams",
    type=UrlType(),
    metavar="URL",
    multiple=True,
    help="A model server: http://HOST:PORT, https://HOST:PORT or unix:/PATH. Several take turns, and stand in for one "
    "that cannot be reached.",
)
@click.option(
    "--upstream-ca",
    type=FILE,
    metavar="FILE",
    help="Trust the certificates in this file for https:// upstreams, instead of the system's.",
)
@click.option(
    "--upstream-cert", type=FILE, metavar="FILE", help="The certificate (PEM) to show to https:// upstreams that ask."
)
@click.option("--upstream-key", type=FILE, metavar="FILE", help="Its key, if it is not in the same file.")
@click.option(
    "--upstream-insecure", is_flag=True, help="Do not check the certificates of https:// upstreams: for tests only."
)
@click.option(
    "--allow-path",
    "allow_paths",
    type=PathType(),
    metavar="PATH",
    multiple=True,
    help="A path that clients may ask for besides those of inference, or the beginning of some and a star: `/my/*`; "
    "`/*` opens everything.",
)
@click.option(
    "--deadline",
    "deadlines",
    metavar="NAME=SECONDS",
    multiple=True,
    help="In seconds or with a unit, `inf` for none; one of: "
    + ", ".join(f"{item.name} ({item.default:g})" for item in fields(Deadlines))
    + ".",
)
@click.option(
    "--limit",
    "limits",
    metavar="NAME=NUMBER",
    multiple=True,
    help="In bytes or with a unit, or a count; one of: "
    + ", ".join(f"{item.name} ({item.default})" for item in fields(Limits))
    + ".",
)
@click.option(
    "--body",
    type=click.Choice(["auto", "buffer", "stream"]),
    show_default="auto",
    help="Hold request bodies until they are there, or pass them on as they come.",
)
@click.option(
    "--client-half-close",
    type=click.Choice(["cancel", "allow"]),
    show_default="cancel",
    help="Whether a client that shuts down its sending side has left.",
)
@click.option(
    "--codec",
    type=click.Choice(get_args(ParserName)),
    show_default=default_parser(),
    help="Which library parses heads; the rules are the same.",
)
def serve(
    file: Path | None,
    places: tuple[Place, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    upstreams: tuple[str, ...],
    upstream_ca: Path | None,
    upstream_cert: Path | None,
    upstream_key: Path | None,
    upstream_insecure: bool,
    allow_paths: tuple[str, ...],
    deadlines: tuple[str, ...],
    limits: tuple[str, ...],
    body: BodyMode | None,
    client_half_close: HalfClose | None,
    codec: ParserName | None,
) -> None:
    """Forward requests to model servers until SIGINT or SIGTERM.

    The first signal stops accepting and waits for requests in flight, at most for the deadline `drain`; a second one
    ends them at once.
    """
    if file is None and not upstreams:
        raise click.UsageError("Missing option '--upstream' (or '--config', a file that says everything).")
    overrides = overrides_of(
        {
            ("--listen", "listen"): places,
            ("--tls-cert", "tls.cert"): tls_cert,
            ("--tls-key", "tls.key"): tls_key,
            ("--upstream", "upstreams"): upstreams,
            ("--upstream-ca", "upstream_tls.ca"): upstream_ca,
            ("--upstream-cert", "upstream_tls.cert"): upstream_cert,
            ("--upstream-key", "upstream_tls.key"): upstream_key,
            ("--upstream-insecure", "upstream_tls.verify"): False if upstream_insecure else None,
            ("--allow-path", "allow_paths"): allow_paths,
            ("--body", "body"): body,
            ("--client-half-close", "client_half_close"): client_half_close,
            ("--codec", "codec"): codec,
        },
        deadlines,
        limits,
    )
    _serve(Serving(file, overrides, load_or_exit(file, overrides)))


def load_or_exit(file: Path | None, overrides: Overrides) -> Loaded:
    """The configuration; mistakes of the command line end the command as such, those of the file are printed."""
    try:
        return load(file, overrides)
    except ConfigError as error:
        if all(mistake.flag for mistake in error.mistakes):
            raise click.UsageError(str(error)) from None
        say(str(error), err=True)
        raise SystemExit(1) from None


def _serve(serving: Serving) -> None:
    loaded, proxy, tls = serving.loaded, serving.proxy, serving.loaded.tls.server
    fix_mmap_threshold()
    files = raise_file_limit()
    room = "" if files is None else f", {files} open files allow {streams_for(files)} streams at a time"

    def announce(names: list[str]) -> None:
        scheme = "http" if tls is None else "https"
        for name in names:
            say(f"trioproxy listens on {name if name.startswith('unix:') else f'{scheme}://{name}'}{room}")
        for endpoint in loaded.shown_endpoints:
            say(f"  upstream {endpoint}")
        if not loaded.config.upstream_tls.verify:
            _logger.warning("the certificates of upstreams are not checked: whoever answers gets the prompts")

    async def run() -> None:
        listeners = await open_listeners(loaded.config.listen)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serving.watch)
            await proxy.serve_listeners(listeners, tls=tls, task_status=Announce(announce))
            nursery.cancel_scope.cancel()

    def stop() -> tuple[str, float]:
        proxy.drain()
        waiting = sum(proxy.statistics().in_flight.values())
        grace = serving.loaded.config.settings.deadlines.drain
        limit = "as long as they take" if grace == math.inf else f"at most {grace:g} s"
        return f"draining: {waiting} in flight, {limit}; a second signal ends them", grace

    run_until_signal(run, stop, serving.reload)
