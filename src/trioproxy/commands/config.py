"""``trioproxy check`` and ``trioproxy config``: a configuration file without a proxy.

Lives here: what they print. Does not live here: what a configuration says.
"""

from __future__ import annotations

from pathlib import Path

import click

from .foreground import say
from .parameters import FILE
from .serve import load_or_exit


@click.command()
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Check a configuration file, and what it names: certificates, keys and other files."""
    loaded = load_or_exit(file, {})
    say(f"{file} is right")
    say(f"  listens on {', '.join(loaded.shown_places)}")
    say(f"  endpoints {', '.join(loaded.shown_endpoints)}")


@click.command()
def config() -> None:
    """Show configurations."""
