"""HAProxy, with one thread, keep-alive and reuse on both sides; `http-no-delay` as token streams need it.

`abortonclose` too: without it, a client that ends its connection before the response's head counts as one that has only
finished asking, so that no abort before the head reaches the model server (haproxy 2.6, 4.2 "option abortonclose").
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.peers.install import Debian
from bench.peers.peer import PATIENCE, Address, Peer


def config(listen: Address, upstream: Address) -> str:
    """haproxy.cfg."""
    return f"""\
global
    nbthread 1
defaults
    mode http
    option http-keep-alive
    option http-no-delay
    option abortonclose
    retries 0
    timeout connect 5s
    timeout client {PATIENCE}s
    timeout server {PATIENCE}s
    timeout http-request {PATIENCE}s
    timeout http-keep-alive {PATIENCE}s
frontend listen
    bind {listen} backlog 4096
    default_backend upstream
backend upstream
    http-reuse always
    server upstream {upstream}
"""


def _arguments(listen: Address, upstream: Address, directory: Path) -> list[str]:
    path = directory / "haproxy.cfg"
    path.write_text(config(listen, upstream))
    return ["-db", "-q", "-f", str(path)]


HAPROXY: Final = Peer("haproxy", Debian("haproxy", "haproxy"), _arguments)
