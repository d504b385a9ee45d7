"""All peers by name. A further one is one more file, and one more line here."""

from __future__ import annotations

import shlex
from typing import Final

from bench.peers.bare import BARE
from bench.peers.envoy import ENVOY
from bench.peers.haproxy import HAPROXY
from bench.peers.litellm import LITELLM
from bench.peers.naive import NAIVE_ASYNCIO, NAIVE_TRIO
from bench.peers.nginx import NGINX
from bench.peers.peer import Peer
from bench.peers.production_stack import PRODUCTION_STACK
from bench.peers.sglang_router import SGLANG_ROUTER
from bench.peers.trioproxy import trioproxy
from bench.peers.vllm_router import VLLM_ROUTER

PEERS: Final[dict[str, Peer]] = {
    peer.name: peer
    for peer in (
        trioproxy(),
        NGINX,
        HAPROXY,
        ENVOY,
        VLLM_ROUTER,
        SGLANG_ROUTER,
        PRODUCTION_STACK,
        LITELLM,
        NAIVE_ASYNCIO,
        NAIVE_TRIO,
        BARE,
    )
}

PLAIN: Final = sorted(name for name, peer in PEERS.items() if peer.ready is None)
"""Those that ask nothing of their upstream by themselves: the model server of a bench's probe has no `/health`."""


def peers_with(serve: str) -> dict[str, Peer]:
    """All peers, trioproxy's `serve` with the options in `serve`, written as in a shell."""
    return {**PEERS, "trioproxy": trioproxy(shlex.split(serve))}
