"""The vLLM project's router (Rust, with a launcher in Python). It needs `/health` of its upstream to start.

Its metrics cannot be switched off, and want a port of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.peers.install import Pip
from bench.peers.peer import PATIENCE, Address, Peer, free_port


def _arguments(listen: Address, upstream: Address, _: Path) -> list[str]:
    return [
        *("--host", listen.host, "--port", str(listen.port), "--worker-urls", upstream.url),
        *("--policy", "round_robin", "--disable-retries", "--disable-circuit-breaker"),
        *("--request-timeout-secs", str(PATIENCE), "--worker-startup-check-interval", "1"),
        *("--prometheus-port", str(free_port()), "--log-level", "error"),
    ]


VLLM_ROUTER: Final = Peer(
    "vllm-router",
    Pip("vllm-router", "vllm-router==0.1.17", "bin/vllm-router"),
    _arguments,
    ready="/health",
    start_timeout=60.0,
)
