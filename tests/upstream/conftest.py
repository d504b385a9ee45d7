"""Clients on PoolTransport, and on httpx's own transport."""

from __future__ import annotations

import ssl

import httpx
import pytest

from trioproxy import PoolTransport

from .talking import MakeClient


@pytest.fixture(params=["trioproxy", "httpcore"])
def client_of(request: pytest.FixtureRequest) -> MakeClient:
    def make(
        *,
        limits: httpx.Limits = httpx.Limits(max_connections=100, max_keepalive_connections=20),  # noqa: B008 - immutable
        verify: ssl.SSLContext | bool = True,
        cert: tuple[str, str] | None = None,
        uds: str | None = None,
        timeout: httpx.Timeout = httpx.Timeout(5),  # noqa: B008 - immutable
        follow_redirects: bool = False,
    ) -> httpx.AsyncClient:
        transport: httpx.AsyncBaseTransport
        if request.param == "trioproxy":
            transport = PoolTransport(limits=limits, verify=verify, cert=cert, uds=uds)
        else:
            transport = httpx.AsyncHTTPTransport(limits=limits, verify=verify, cert=cert, uds=uds)
        return httpx.AsyncClient(transport=transport, timeout=timeout, follow_redirects=follow_redirects)

    return make
