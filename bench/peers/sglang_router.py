"""SGLang's router (Rust, with a launcher in Python). It needs `/health` of its upstream.

It accepts connections and says that it is alive before that, but a request is a 503 then; `/readiness` tells.
"""

from __future__ import annotations

from typing import Final

from bench.peers.install import Pip
from bench.peers.peer import Peer
from bench.peers.rust_router import options

SGLANG_ROUTER: Final = Peer(
    "sglang-router",
    Pip("sglang-router", "sglang-router==0.3.2", "bin/python"),
    lambda listen, upstream, _: ["-m", "sglang_router.launch_router", *options(listen, upstream)],
    ready="/readiness",
    start_timeout=60.0,
)
