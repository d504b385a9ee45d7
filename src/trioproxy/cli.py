"""The command line: the commands, and those that only hand over to the benchmark.

Lives here: the command itself, ``mock`` and ``demo``. Does not live here: ``serve`` and what goes with it (commands),
and what a proxy or a model server does.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal

import click

from . import __version__
from .bench.cli import bench
from .bench.mock import MockServer, MockSettings
from .commands.config import check, config
from .commands.foreground import Announce, listening, run_until_signal, say
from .commands.parameters import HostPort
from .commands.serve import serve
from .configfile import show_address
from .process import raise_file_limit

_SECONDS: Final = click.FloatRange(min=0)
_COUNT: Final = click.IntRange(min=0)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="trioproxy")
def main() -> None:
    """A reverse proxy for LLM inference that stops work nobody waits for and holds nothing it no longer needs."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)


main.add_command(serve)
main.add_command(check)
main.add_command(config)


@main.command(short_help="Run a model server that makes up its tokens.")
@click.option("--listen", type=HostPort(), default="127.0.0.1:8000", show_default=True, help="Where to listen.")
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
        say(f"the mock model server listens on http://{show_address(*address)}")

    async def run() -> None:
        with listening(show_address(*listen)):
            await server.serve(*listen, task_status=Announce(announce))

    run_until_signal(run, None, None)


@main.command(short_help="Show what the proxy does, measured, on loopback.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def demo(as_json: bool) -> None:
    """Show in a few seconds, on loopback, what the proxy does when clients leave and while they wait."""
    from .bench.demo import run_demo  # only this command measures memory

    sys.exit(run_demo(as_json=as_json))


main.add_command(bench)
