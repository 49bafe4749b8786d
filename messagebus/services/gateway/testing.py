"""A gateway on brokers in memory, for testers in other languages; also a fixture of pytest.

``pytest -p messagebus.services.gateway.testing`` gives the fixture `messagebus_gateway`; from a test's own
loop use `gateway_on`. Anybody may do anything there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    ConsumerConfig,
    LoginRefused,
    PublisherConfig,
    Secret,
    Source,
)
from messagebus.services.gateway.config import GatewayConfig
from messagebus.services.gateway.service import Gateway
from messagebus.testing import MemoryBus

__all__ = ["MemoryGatewayBus", "gateway_on", "messagebus_gateway"]

STOP_S = 30.0
WRONG = "wrong"


class MemoryGatewayBus:
    """A gateway's way to a `MemoryBus`; logins with the password "wrong" are refused."""

    def __init__(self, bus: MemoryBus, publisher: PublisherConfig | None = None) -> None:
        self._bus, self._publisher = bus, publisher
        self.logins: list[str] = []
        self.refused: set[tuple[str, str]] = set()

    def publisher(self, login: tuple[str, Secret] | None) -> AsyncPublisher:
        self._note(login)
        return self._bus.async_publisher(self._publisher)

    def consumer(
        self, source: Source, config: ConsumerConfig, login: tuple[str, Secret] | None
    ) -> AsyncConsumer:
        self._note(login)
        return self._bus.async_consumer(source, config=config)

    async def declare(self, name: str, login: tuple[str, Secret] | None) -> dict[str, str]:
        self._bus.declare(name)
        return {}

    async def exists(self, source: Source) -> bool:
        return self._bus.exists(source)

    async def takes(self, user: str, password: Secret) -> bool:
        return password.reveal() != WRONG and (user, password.reveal()) not in self.refused

    async def may_read(self, source: Source, login: tuple[str, Secret]) -> bool:
        return True

    def _note(self, login: tuple[str, Secret] | None) -> None:
        if login is not None:
            self.logins.append(login[0])
            if login[1].reveal() == WRONG:
                raise LoginRefused("memory-1:5672", "wrong password")


@asynccontextmanager
async def gateway_on(
    bus: MemoryBus, *, publisher: PublisherConfig | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, MemoryGatewayBus]]:
    """Serve on free ports. settings: of `GatewayConfig`."""
    given = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"} | settings
    if not {"tokens_file", "bus_login", "anonymous"} & set(settings):
        given["anonymous"] = "all"
    way = MemoryGatewayBus(bus, publisher)
    gateway = Gateway(GatewayConfig.from_mapping(given), way)
    await gateway.start()
    try:
        yield gateway, way
    finally:
        bus.thaw()
        await asyncio.wait_for(gateway.stop(0, 0), STOP_S)


@pytest.fixture
def messagebus_gateway(messagebus_bus: MemoryBus) -> Iterator[str]:
    """The address of a gateway on `messagebus_bus`, which runs on a thread of its own."""
    found: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with gateway_on(messagebus_bus) as (gateway, _):
            found.append(gateway.url)
            begun.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert begun.wait(STOP_S)
    try:
        yield found[0]
    finally:
        ended.set()
        thread.join()
