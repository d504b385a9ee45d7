"""Topologies for tests in which paths are short names.

Lives here: one pool with every path open. Does not live here: what is open by default (test_routing.py).
"""

from __future__ import annotations

from trioproxy import Topology


def opened(*upstreams: str) -> Topology:
    """One pool of these, and every path open."""
    return Topology.of(upstreams, allow_paths=("/*",))
