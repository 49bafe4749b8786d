"""HTTP clients of the consumer list and the agents, with our certificate where TLS is on."""

from __future__ import annotations

import httpx

from messagebus.config import BusConfig

__all__ = ["http_client"]


def http_client(
    bus: BusConfig,
    *,
    timeout: float | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """A client for `bus.list_urls`; its certificates are those of now. Raises ConfigError.

    timeout: seconds for each phase; None: each request says its own. transport: another way, for tests.
    """

    async def name(request: httpx.Request) -> None:
        """The balancer passes TLS through: what answers there is for tls_server_name."""
        if bus.tls_server_name and request.url.host == bus.address.host.strip("[]"):
            request.extensions["sni_hostname"] = bus.tls_server_name

    return httpx.AsyncClient(
        verify=bus.tls_files.client_context(),
        timeout=timeout,
        transport=transport,
        event_hooks={"request": [name]},
    )
