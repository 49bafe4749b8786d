"""Each service against each attack of a stranger: a good client is served meanwhile, and memory is bounded.

The agent's server is the monitor's, with other routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from messagebus.http.connections import Bounds
from messagebus.http.listening import listen
from messagebus.http.probes import Answer, ProbeServer
from messagebus.http.server import Server
from messagebus.testing import MemoryBus
from messagebus_monitor.config import MonitorConfig
from messagebus_monitor.eventlog import EventLog
from messagebus_monitor.watch import Watch
from messagebus_monitor.web import Monitor
from tests.support.gateway import gateway_on
from tests.support.watched import PROXIED, MadeUp

CONNECTIONS = 500
GROWN_BYTES_MAX = 100 << 20
WITHIN_S = 30.0
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@dataclass
class Service:
    address: tuple[str, int]
    health: str
    """A path that is answered by 200."""


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[Service]:
    async with gateway_on(MemoryBus(), limits={"connections_max": 100}) as served:
        host, _, port = served.gateway.url.removeprefix("http://").partition(":")
        yield Service((host, int(port)), "/v1/openapi.json")


@contextlib.asynccontextmanager
async def serving(application: Callable[..., object], health: str) -> AsyncIterator[Service]:
    listener = listen("test", "127.0.0.1:0")
    server = Server(application, listener, Bounds(connections_max=100))  # type: ignore[arg-type]
    running = asyncio.create_task(server.run())
    await server.begun.wait()
    try:
        yield Service(listener.getsockname(), health)
    finally:
        server.stop()
        await running


@contextlib.asynccontextmanager
async def monitor() -> AsyncIterator[Service]:
    watch = Watch(MadeUp(), EventLog())
    await watch.once()
    made = Monitor(MonitorConfig(bus=PROXIED), watch)
    async with serving(made.application(), "/healthz") as service:
        yield service


@contextlib.asynccontextmanager
async def agent() -> AsyncIterator[Service]:
    async def live(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("live\n")

    async with serving(Starlette(routes=[Route("/live", live)]), "/live") as service:
        yield service


@contextlib.asynccontextmanager
async def worker() -> AsyncIterator[Service]:
    server = ProbeServer(("127.0.0.1", 0), lambda _path: Answer(200, "text/plain", b"live\n"))
    try:
        yield Service(("127.0.0.1", server.port), "/live")
    finally:
        server.close()


async def send(service: Service, first: bytes, more: bytes = b"", times: int = 0) -> None:
    """Open a connection, send this, and then more and more until it is closed."""
    with contextlib.suppress(OSError):
        _reader, writer = await asyncio.open_connection(*service.address)
        try:
            writer.write(first)
            for _ in range(times):
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(0.05)  # the stranger's own pace
            await asyncio.sleep(WITHIN_S)
        finally:
            writer.transport.abort()


ATTACKS: dict[str, tuple[int, bytes, bytes, int]] = {
    "connections without a byte": (CONNECTIONS, b"", b"", 0),
    "half heads": (CONNECTIONS, HEAD, b"", 0),
    "heads that come byte by byte": (CONNECTIONS, HEAD, b"a", 1_000),
    "fields without an end": (20, HEAD + b"A: ", b"a" * 65_536, 1_000),
    "fields without number": (20, HEAD, b"A: b\r\n" * 10_000, 1_000),
    "half bodies": (
        CONNECTIONS,
        b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nx",
        b"",
        0,
    ),
}


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda text: text)
@pytest.mark.parametrize("service", [gateway, monitor, agent, worker], ids=lambda f: f.__name__)
async def test_a_good_client_is_served_beside_a_stranger_and_memory_is_bounded(
    service: Callable[[], contextlib.AbstractAsyncContextManager[Service]], attack: str
) -> None:
    count, first, more, times = ATTACKS[attack]
    before = psutil.Process().memory_info().rss
    async with service() as served:
        strangers = [asyncio.create_task(send(served, first, more, times)) for _ in range(count)]
        until = time.monotonic() + 1.5
        good = 0
        while time.monotonic() < until or good < 5:
            async with asyncio.timeout(WITHIN_S):
                reader, writer = await asyncio.open_connection(
                    *served.address, local_addr=("127.0.0.2", 0)
                )
                request = f"GET {served.health} HTTP/1.1\r\nHost: localhost\r\n\r\n"
                writer.write(request.encode())
                line = await reader.readline()
                writer.transport.abort()
            assert b" 200 " in line
            good += 1
            await asyncio.sleep(0.02)  # the monitor grants an address 100 requests a second
        assert psutil.Process().memory_info().rss - before < GROWN_BYTES_MAX
        for each in strangers:
            each.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
