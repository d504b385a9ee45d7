"""SGLang's router (Rust, with a launcher in Python). It needs `/health` of its upstream.

It accepts connections and says that it is alive before that, but a request is a 503 then; `/readiness` tells.
Its metrics cannot be switched off, and want a port of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.peers.install import Pip
from bench.peers.peer import PATIENCE, Address, Peer, free_port


def _arguments(listen: Address, upstream: Address, _: Path) -> list[str]:
    return [
        *("-m", "sglang_router.launch_router"),
        *("--host", listen.host, "--port", str(listen.port), "--worker-urls", upstream.url),
        *("--policy", "round_robin", "--disable-retries", "--disable-circuit-breaker"),
        *("--request-timeout-secs", str(PATIENCE), "--worker-startup-check-interval", "1"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", "error"),
    ]


SGLANG_ROUTER: Final = Peer(
    "sglang-router",
    Pip("sglang-router", "sglang-router==0.3.2", "bin/python"),
    _arguments,
    ready="/readiness",
    start_timeout=60.0,
)
