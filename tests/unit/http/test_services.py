"""Each service against each attack of a stranger, and of a page that has a browser send its requests."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from messagebus.http.connections import Bounds
from messagebus.http.listening import listen
from messagebus.http.probes import Answer, ProbeServer
from messagebus.http.server import Server
from messagebus.services.agent import service as agents
from messagebus.services.agent.config import AgentConfig
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.eventlog import EventLog
from messagebus.services.monitor.watch import Watch
from messagebus.services.monitor.web import Monitor
from messagebus.testing import MemoryBus
from tests.support.eventually import FACTOR
from tests.support.gateway import gateway_on
from tests.support.watched import PROXIED, MadeUp

CONNECTIONS = 500
GROWN_BYTES_MAX = 100 << 20
WITHIN_S = 60.0 * FACTOR
# The client here shares a slow machine and a loop with all strangers: its own head may take seconds.
HEAD_S = WITHIN_S
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
# In place of the path that `Service.shows`.
SHOWN = b"/shown"
SHOW = b"GET /shown HTTP/1.1\r\nHost: localhost\r\n"


@dataclass
class Service:
    """health: a path that is answered by 200. shows: one that a page of another site must not read."""

    address: tuple[str, int]
    health: str
    shows: str


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[Service]:
    bus = MemoryBus()
    bus.declare("orders/billing")
    async with gateway_on(bus, limits={"connections_max": 100}) as served:
        events = "/v1/subscriptions/orders/billing/events"
        yield Service(address_of(served.gateway.url), "/v1/openapi.json", events)


@contextlib.asynccontextmanager
async def gateways_health() -> AsyncIterator[Service]:
    async with gateway_on(MemoryBus()) as served:
        yield Service(address_of(served.gateway.admin_url), "/livez", "/metrics")


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


@contextlib.asynccontextmanager
async def serving(
    application: Callable[..., object], health: str, shows: str
) -> AsyncIterator[Service]:
    listener = listen("test", "127.0.0.1:0")
    bounds = Bounds(connections_max=100, head_s=HEAD_S)
    server = Server(application, listener, bounds)  # type: ignore[arg-type]
    running = asyncio.create_task(server.run())
    await server.begun.wait()
    try:
        yield Service(listener.getsockname(), health, shows)
    finally:
        server.stop()
        await running


@contextlib.asynccontextmanager
async def monitor() -> AsyncIterator[Service]:
    watch = Watch(MadeUp(), EventLog())
    await watch.once()
    made = Monitor(MonitorConfig(bus=PROXIED), watch)
    async with serving(made.application(), "/healthz", "/") as service:
        yield service


def agent_in(folder: str) -> agents.Service:
    for name in ("password", "token"):
        Path(folder, name).write_text("secret")
    return agents.Service(
        AgentConfig(
            broker="127.0.0.11:5672",
            user="admin",
            password_file=f"{folder}/password",
            http="127.0.0.11:8081",
            check="127.0.0.11:8082",
            list_file=f"{folder}/list",
            state_dir=f"{folder}/state",
            token_file=f"{folder}/token",
        )
    )


@contextlib.asynccontextmanager
async def agent() -> AsyncIterator[Service]:
    with tempfile.TemporaryDirectory() as folder:
        async with serving(agent_in(folder)._application(), "/live", "/topology") as service:
            yield service


@contextlib.asynccontextmanager
async def worker() -> AsyncIterator[Service]:
    def live(_path: str) -> Answer:
        return Answer(200, "text/plain", b"live\n")

    server = ProbeServer(("127.0.0.1", 0), live, head_s=HEAD_S)
    try:
        yield Service(("127.0.0.1", server.port), "/live", "/metrics")
    finally:
        server.close()


@contextlib.asynccontextmanager
async def gateways_health_on_all_addresses() -> AsyncIterator[Service]:
    async with gateway_on(MemoryBus(), admin="0.0.0.0:0", names=["gateway.example"]) as served:
        _, port = address_of(served.gateway.admin_url)
        yield Service(("127.0.0.1", port), "/livez", "/metrics")


@contextlib.asynccontextmanager
async def worker_on_all_addresses() -> AsyncIterator[Service]:
    live = Answer(200, "text/plain", b"live\n")
    server = ProbeServer(("0.0.0.0", 0), lambda _path: live, names=["Worker.example"])
    try:
        yield Service(("127.0.0.1", server.port), "/live", "/metrics")
    finally:
        server.close()


async def send(service: Service, first: bytes, more: bytes = b"", times: int = 0) -> None:
    """Open a connection, send this, and then more and more until it is closed; nothing is read."""
    with contextlib.suppress(OSError):
        _reader, writer = await asyncio.open_connection(*service.address, limit=1)
        try:
            writer.write(first.replace(SHOWN, service.shows.encode()))
            for _ in range(times):
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(0.05)  # the stranger's own pace
            await asyncio.sleep(WITHIN_S)
        finally:
            writer.transport.abort()


ALL = [gateway, gateways_health, monitor, agent, worker]
SERVICES = pytest.mark.parametrize("service", ALL, ids=lambda f: f.__name__)
ATTACKS: dict[str, tuple[int, bytes, bytes, int]] = {
    "connections without a byte": (CONNECTIONS, b"", b"", 0),
    "whole requests, then nothing": (CONNECTIONS, HEAD + b"\r\n", b"", 0),
    "half heads": (CONNECTIONS, HEAD, b"", 0),
    "heads that come byte by byte": (CONNECTIONS, HEAD, b"a", 1_000),
    "fields without an end": (20, HEAD + b"A: ", b"a" * 65_536, 1_000),
    "fields without number": (20, HEAD, b"A: b\r\n" * 10_000, 1_000),
    "ranges without number": (
        CONNECTIONS,
        SHOW + b"Range: bytes=0-" + b",".join(b"5-%d" % end for end in range(1_000)) + b"\r\n\r\n",
        b"",
        0,
    ),
    "answers that nobody reads": (CONNECTIONS, 20 * (SHOW + b"\r\n"), b"", 0),
    "half bodies": (
        CONNECTIONS,
        b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nx",
        b"",
        0,
    ),
}


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda text: text)
@SERVICES
async def test_a_good_client_is_served_beside_a_stranger_and_memory_is_bounded(
    service: Callable[[], contextlib.AbstractAsyncContextManager[Service]], attack: str
) -> None:
    count, first, more, times = ATTACKS[attack]
    before = psutil.Process().memory_info().rss
    async with service() as served:
        strangers = [asyncio.create_task(send(served, first, more, times)) for _ in range(count)]
        until = time.monotonic() + 0.7
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


PAGES = {
    "a foreign name that leads here": ({421}, "Host: evil.example"),
    "a page of such a name with a token of its own": (
        {421, 401},
        "Host: evil.example\r\nSec-Fetch-Site: same-origin\r\nAuthorization: Bearer x",
    ),
    "a name that only begins as an address": ({421}, "Host: 127.0.0.1.evil.example"),
    "a form or script of another site": ({403}, "Host: localhost\r\nOrigin: http://evil.example"),
    "an image or frame of another site": ({403}, "Host: localhost\r\nSec-Fetch-Site: cross-site"),
    "a page of a neighbour": ({403}, "Host: localhost\r\nSec-Fetch-Site: same-site"),
    "a program": ({200}, "Host: localhost"),
    "a program by the address": ({200}, "Host: 127.0.0.1:8080"),
}


@pytest.mark.guarantee("pages-of-others-do-nothing")
@pytest.mark.parametrize("sender", PAGES, ids=lambda text: text)
@pytest.mark.parametrize(
    "service",
    [*ALL, gateways_health_on_all_addresses, worker_on_all_addresses],
    ids=lambda f: f.__name__,
)
async def test_no_page_of_another_site_reads_what_programs_read(
    service: Callable[[], contextlib.AbstractAsyncContextManager[Service]], sender: str
) -> None:
    codes, headers = PAGES[sender]
    async with service() as served:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(
            f"GET {served.shows} HTTP/1.1\r\n{headers}\r\nMB-Client: test\r\n\r\n".encode()
        )
        async with asyncio.timeout(WITHIN_S):
            line = await reader.readline()
        writer.transport.abort()
    assert int(line.split()[1]) in codes


@pytest.mark.parametrize(
    ("service", "name"),
    [
        (gateways_health_on_all_addresses, "gateway.example"),
        (worker_on_all_addresses, "worker.EXAMPLE:9102"),
    ],
)
async def test_a_health_port_on_all_addresses_answers_by_the_names_of_its_settings(
    service: Callable[[], contextlib.AbstractAsyncContextManager[Service]], name: str
) -> None:
    async with service() as served:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(f"GET {served.shows} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
        async with asyncio.timeout(WITHIN_S):
            line = await reader.readline()
        writer.transport.abort()
    assert b" 200 " in line
