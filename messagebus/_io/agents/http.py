"""HTTP clients of the consumer list and the agents, with our certificate where TLS is on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any

import httpx

from messagebus._io.addresses import addresses_of, first_answer, is_number
from messagebus.config import BusConfig
from messagebus.tls import trusting_nobody

# A request that is given up during its TLS handshake waits up to this for the end of the handshake.
HANDSHAKE_WITHIN_S = 1.0
DEFAULT_PORTS = {"http": 80, "https": 443}
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)


class _OurURL(httpx.URL):
    """The address of a request of ours. httpx would log it at INFO, and consumers ask all the time."""


def _is_not_ours(record: logging.LogRecord) -> bool:
    args = record.args
    return not (isinstance(args, tuple) and any(isinstance(each, _OurURL) for each in args))


# Of the application's own requests it keeps every line.
logging.getLogger("httpx").addFilter(_is_not_ours)


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
        request.url = _OurURL(request.url)
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


def json_object(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object in an answer; {} where the answer holds anything else."""
    try:
        value = answer.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


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
    """A transport that asks the addresses of a name side by side, and keeps to the one that answers.

    Each request to an agent may come twice, so it goes to the next address while the first one is silent. An
    address that fails, or answers that its server is in trouble, is asked last the next time.
    """

    def __init__(self, *, verify: ssl.SSLContext, limits: httpx.Limits) -> None:
        super().__init__(verify=verify, limits=limits)
        self._answering: dict[tuple[str, int | None], str] = {}
        self._failed: dict[tuple[str, int | None], str] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        key = request.url.host, request.url.port
        number = self._answering.get(key, "")
        if not number and not is_number(key[0]):
            numbers = await self._addresses(request)
            if len(numbers) > 1:
                numbers.sort(key=lambda each: each == self._failed.get(key))
                return await self._first_answer(request, numbers)
            self._answering[key] = key[0]
        return await self._ask(request, number or key[0])

    async def _addresses(self, request: httpx.Request) -> list[str]:
        url = request.url
        try:
            async with asyncio.timeout(request.extensions.get("timeout", {}).get("connect")):
                return await addresses_of(
                    url.raw_host.decode(), url.port or DEFAULT_PORTS[url.scheme]
                )
        except TimeoutError as fault:
            raise httpx.ConnectTimeout(f"{url.host} is not resolved in time") from fault
        except OSError as fault:
            raise httpx.ConnectError(str(fault)) from fault

    async def _first_answer(self, request: httpx.Request, numbers: list[str]) -> httpx.Response:
        try:
            return await first_answer(
                numbers, lambda number: self._ask(request, number), drop=httpx.Response.aclose
            )
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _ask(self, request: httpx.Request, number: str) -> httpx.Response:
        """Send the request to this address of its host, and note whether it answers."""
        key = host, _port = request.url.host, request.url.port
        if number != host:
            request = httpx.Request(
                request.method,
                request.url.copy_with(host=number),
                headers=request.headers,
                stream=request.stream,
                extensions={"sni_hostname": host} | request.extensions,
            )
        try:
            answer = await self._send(request)
        except httpx.HTTPError:
            self._forget(key, number)
            raise
        if answer.is_server_error:
            self._forget(key, number)
        else:
            self._answering[key] = number
        return answer

    def _forget(self, key: tuple[str, int | None], number: str) -> None:
        self._failed[key] = number
        if self._answering.get(key) == number:
            del self._answering[key]

    async def _send(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and let a TLS handshake end before it is given up.

        httpcore 1.0 leaves the socket of a cancelled handshake to the garbage collector: it closes it
        after an `Exception` only, and a cancellation is none.
        """
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
