"""LiteLLM's proxy (Python), which passes any model's name on to one OpenAI-compatible upstream.

It does not start without a key that its clients must send. It reads a list of prices from the network unless told not
to. Its first request takes it a second, in which it loads more of itself: warm it up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bench.peers.install import Pip
from bench.peers.peer import PATIENCE, Address, Peer

_KEY: Final = "sk-trioproxy-bench"
"""It guards nothing: what is behind is a model server of a bench."""


def config(upstream: Address) -> dict[str, object]:
    """config.yaml, as JSON, which is YAML too."""
    target = {"model": "openai/*", "api_base": f"{upstream.url}/v1", "api_key": "none"}
    return {
        "model_list": [{"model_name": "*", "litellm_params": target}],
        "litellm_settings": {"num_retries": 0, "request_timeout": PATIENCE, "telemetry": False},
        "general_settings": {"master_key": _KEY},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }


def _arguments(listen: Address, upstream: Address, directory: Path) -> list[str]:
    path = directory / "litellm.yaml"
    path.write_text(json.dumps(config(upstream)))
    return ["--config", str(path), "--host", listen.host, "--port", str(listen.port), "--num_workers", "1"]


LITELLM: Final = Peer(
    "litellm",
    Pip("litellm", "litellm[proxy]==1.108.7", "bin/litellm"),
    _arguments,
    environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
    headers={"authorization": f"Bearer {_KEY}"},
    ready="/health/liveliness",
    start_timeout=300.0,
)
