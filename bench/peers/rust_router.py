"""What vLLM's and SGLang's router share: one grew out of the other, and they take the same options."""

from __future__ import annotations

from bench.peers.peer import PATIENCE, Address, free_port


def options(listen: Address, upstream: Address) -> list[str]:
    """Their metrics cannot be switched off, and want a port of their own."""
    return [
        *("--host", listen.host, "--port", str(listen.port), "--worker-urls", upstream.url),
        *("--policy", "round_robin", "--disable-retries", "--disable-circuit-breaker"),
        *("--request-timeout-secs", str(PATIENCE), "--worker-startup-check-interval", "1"),
        *("--prometheus-host", listen.host, "--prometheus-port", str(free_port()), "--log-level", "error"),
    ]
