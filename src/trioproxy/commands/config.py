"""``trioproxy check`` and ``trioproxy config``: a configuration file without a proxy.

Lives here: what they print. Does not live here: what a configuration says.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..configfile import FileConfig, render
from .foreground import say
from .parameters import FILE
from .serve import load_or_exit


@click.command()
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Check a configuration file, and what it names: certificates, keys and other files."""
    loaded = load_or_exit(file, {})
    say(f"{file} is right")
    how = "" if loaded.tls.server is None else ", with TLS"
    say(f"  listens on {', '.join(loaded.shown_places)}{how}")
    say(f"  endpoints {', '.join(loaded.shown_endpoints)}")


@click.command()
@click.option("--defaults", is_flag=True, help="Print a complete file: every key with its default and what it is for.")
def config(defaults: bool) -> None:
    """Show what a configuration file can say."""
    if not defaults:
        raise click.UsageError("Missing option '--defaults'.")
    say(render(FileConfig()), nl=False)
