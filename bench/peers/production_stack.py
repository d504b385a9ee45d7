"""The router of vLLM's production-stack (Python), which no registry has: pip takes it from its repository.

Its own package is called `vllm-router` too, but that name on PyPI is the Rust router (see `vllm_router`), from
0.1.9, the oldest there, on. It needs Python 3.12 or newer, and to be told which model its upstream has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.peers.install import Pip
from bench.peers.peer import MODEL, Address, Peer

_REQUIREMENT: Final = "vllm-router @ git+https://github.com/vllm-project/production-stack@a6c01db"


def _arguments(listen: Address, upstream: Address, _: Path) -> list[str]:
    return [
        *("--host", listen.host, "--port", str(listen.port), "--routing-logic", "roundrobin"),
        *("--service-discovery", "static", "--static-backends", upstream.url, "--static-models", MODEL),
        *("--log-level", "error"),
    ]


PRODUCTION_STACK: Final = Peer(
    "production-stack",
    Pip("production-stack", _REQUIREMENT, "bin/vllm-router", why="only its repository has it; Python 3.12 or newer"),
    _arguments,
    ready="/health",
    start_timeout=60.0,
)
