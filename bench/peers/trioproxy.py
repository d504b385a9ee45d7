"""trioproxy itself, as its users start it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.peers.install import Here
from bench.peers.peer import Address, Peer


def trioproxy(options: Sequence[str] = ()) -> Peer:
    """The `trioproxy` that is first on the module path, with further options of `serve`."""

    def arguments(listen: Address, upstream: Address, _: Path) -> list[str]:
        return ["-m", "trioproxy", "serve", "--listen", str(listen), "--upstream", upstream.url, *options]

    return Peer("trioproxy", Here(), arguments)
