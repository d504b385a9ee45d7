"""The vLLM project's router (Rust, with a launcher in Python). It needs `/health` of its upstream to start."""

from __future__ import annotations

from typing import Final

from bench.peers.install import Pip
from bench.peers.peer import Peer
from bench.peers.rust_router import options

VLLM_ROUTER: Final = Peer(
    "vllm-router",
    Pip("vllm-router", "vllm-router==0.1.17", "bin/vllm-router"),
    lambda listen, upstream, _: options(listen, upstream),
    ready="/health",
    start_timeout=60.0,
)
