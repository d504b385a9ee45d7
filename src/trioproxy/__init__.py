"""A reverse proxy core for LLM inference on Trio.

Each request runs in a nursery of its own; its body moves through request, forwarding and response phases by
ownership transfer; the model server learns at once when a client leaves.
"""

from typing import TYPE_CHECKING

from .config import Deadlines, Health, Limits, Settings
from .errors import Code, Fault, ProxyError
from .net import Listener, ServerTls, client_context, inherited, listen, listen_unix
from .phases import ForwardingPhase, RequestPhase, ResponseView, UseAfterMove
from .process import fix_mmap_threshold
from .record import Outcome
from .runtime import Statistics
from .server import Proxy
from .topology import PoolSpec, RouteSpec, Topology
from .upstream.group import PoolStatistics

if TYPE_CHECKING:
    from .upstream.pool_transport import PoolTransport

__all__ = [
    "Code",
    "Deadlines",
    "Fault",
    "ForwardingPhase",
    "Health",
    "Limits",
    "Listener",
    "Outcome",
    "PoolSpec",
    "PoolStatistics",
    "PoolTransport",
    "Proxy",
    "ProxyError",
    "RequestPhase",
    "ResponseView",
    "RouteSpec",
    "ServerTls",
    "Settings",
    "Statistics",
    "Topology",
    "UseAfterMove",
    "client_context",
    "fix_mmap_threshold",
    "inherited",
    "listen",
    "listen_unix",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "PoolTransport":  # importing httpx takes longer than all the rest
        from .upstream.pool_transport import PoolTransport

        return PoolTransport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
