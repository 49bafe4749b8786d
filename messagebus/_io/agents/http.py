"""HTTP clients of the consumer list and the agents, with our certificate where TLS is on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import httpx

from messagebus.config import BusConfig
from messagebus.tls import trusting_nobody

# A request that is given up during its TLS handshake waits up to this for the end of the handshake.
HANDSHAKE_WITHIN_S = 1.0
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)


def http_client(
    bus: BusConfig,
    *,
    timeout: float | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    limits: httpx.Limits | None = None,
    apart: bool = False,
) -> httpx.AsyncClient:
    """Return a client for `bus.list_urls`, with the current certificates. Raises ConfigError.

    timeout: seconds for each phase; None: each request says its own. transport: a substitute, for tests.
    limits: of connections; None: LIMITS. apart: a pool for each host and port, for those who ask many.
    """

    async def name(request: httpx.Request) -> None:
        """Set the SNI name: TLS passes through the balancer, to a certificate for tls_server_name."""
        if bus.tls_server_name and request.url.host == bus.address.host.strip("[]"):
            request.extensions["sni_hostname"] = bus.tls_server_name

    def pool() -> httpx.AsyncHTTPTransport:
        return _Transport(verify=certificates, limits=limits or LIMITS)

    # Without https:// nothing is verified, and the system's authorities take 25 to 45 ms to load.
    is_plain = not bus.tls and all(url.lower().startswith("http:") for url in bus.list_urls)
    certificates = trusting_nobody() if is_plain else bus.tls_files.client_context()
    return httpx.AsyncClient(
        verify=certificates,
        timeout=timeout,
        transport=transport or (_Apart(pool) if apart else pool()),
        event_hooks={"request": [name]},
    )


class _Apart(httpx.AsyncBaseTransport):
    """A pool for each host and port.

    httpcore 1.0 looks through all connections of a pool for each request: 64 agents, asked twice at once,
    cost 2 ms of CPU a request in one pool, and 0.5 in pools of their own.
    """

    def __init__(self, make: Callable[[], httpx.AsyncHTTPTransport]) -> None:
        self._make = make
        self._pools: dict[tuple[str, int | None], httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        key = request.url.host, request.url.port
        if key not in self._pools:
            self._pools[key] = self._make()
        return await self._pools[key].handle_async_request(request)

    async def aclose(self) -> None:
        for each in self._pools.values():
            await each.aclose()


class _Transport(httpx.AsyncHTTPTransport):
    """A transport that lets a TLS handshake end before a request is given up.

    httpcore 1.0 leaves the socket of a cancelled handshake to the garbage collector: it closes it
    after an `Exception` only, and a cancellation is none.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        over = asyncio.Event()
        over.set()

        async def trace(event: str, _about: dict[str, Any]) -> None:
            if event == "connection.start_tls.started":
                over.clear()
            elif event.startswith("connection.start_tls."):
                over.set()

        request.extensions["trace"] = trace
        work = asyncio.ensure_future(super().handle_async_request(request))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANDSHAKE_WITHIN_S):
                    await over.wait()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise
