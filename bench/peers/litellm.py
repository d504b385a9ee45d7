"""LiteLLM's proxy (Python), which passes any model's name on to one OpenAI-compatible upstream.

No master key is set, so a client needs none. It reads a list of prices from the network unless told not to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bench.peers.install import Pip
from bench.peers.peer import PATIENCE, Address, Peer


def config(upstream: Address) -> dict[str, object]:
    """config.yaml, as JSON, which is YAML too."""
    target = {"model": "openai/*", "api_base": f"{upstream.url}/v1", "api_key": "none"}
    return {
        "model_list": [{"model_name": "*", "litellm_params": target}],
        "litellm_settings": {"num_retries": 0, "request_timeout": PATIENCE, "telemetry": False},
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
    ready="/health/liveliness",
    start_timeout=120.0,
)
