"""A gateway over the bus in memory, behind real HTTP on a free port, and a client of it."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from messagebus import PublisherConfig
from messagebus.services.gateway import testing
from messagebus.services.gateway.service import Gateway
from messagebus.services.gateway.testing import MemoryGatewayBus
from messagebus.testing import MemoryBus


def make_bus(**how: Any) -> MemoryBus:
    """Return brokers in memory with the topic orders and its subscription billing."""
    bus = MemoryBus(**how)
    bus.declare("orders/billing")
    return bus


class Served:
    """A running gateway with an HTTP client of its own."""

    def __init__(self, gateway: Gateway, http: httpx.AsyncClient, bus: MemoryGatewayBus) -> None:
        self.gateway, self.http, self.bus = gateway, http, bus

    async def publish(self, body: bytes | str = b"x", to: str = "orders", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(f"/v1/topics/{to}/messages", content=body, headers=named)

    async def pull(self, source: str = "subscriptions/orders/billing", **how: Any) -> Any:
        answer = await self.http.post(f"/v1/{source}/pull", json=how, timeout=90)
        assert answer.status_code == 200, answer.text
        return answer.json()["deliveries"]

    async def answer(self, what: str, deliveries: Any, **how: Any) -> Any:
        leases = [each["lease"] for each in deliveries]
        return await self.http.post(f"/v1/leases/{what}", json={"leases": leases, **how})

    async def connect(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection of its own and send bytes as they are."""
        host, _, port = self.gateway.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        return reader, writer

    async def raw(
        self, line: str, *headers: str, body: bytes = b"", host: str = "localhost"
    ) -> str:
        """Send a request as it is, the last of its connection; return the whole answer."""
        head = "\r\n".join(
            [f"{line} HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", ""]
        )
        reader, writer = await self.connect(head.encode() + body)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        return answer.decode()


@asynccontextmanager
async def gateway_on(
    bus: MemoryBus, *, publisher: PublisherConfig | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """Serve. settings: of `GatewayConfig`; anybody may do anything where they say no one."""
    async with (
        testing.gateway_on(bus, publisher=publisher, **settings) as (gateway, way),
        httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as http,
    ):
        yield Served(gateway, http, way)


def token_entry(name: str, token: str, **rights: Any) -> str:
    """Return an entry of a file of tokens."""
    lines = [
        f'[[token]]\nname = "{name}"',
        f'sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"',
    ]
    lines += [f"{key} = {value!r}" for key, value in rights.items()]
    return "\n".join(lines) + "\n"


def write_tokens(path: Path, *entries: str) -> Path:
    path.write_text("\n".join(entries))
    return path


@contextmanager
def on_a_thread() -> Iterator[str]:
    """Run a gateway over two brokers in memory on a thread of its own; its URL."""
    bus = MemoryBus(brokers=2)
    found: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with gateway_on(bus) as served:
            found.append(served.gateway.url)
            begun.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert begun.wait(30)
    try:
        yield found[0]
    finally:
        ended.set()
        thread.join()
