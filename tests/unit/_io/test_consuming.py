"""_io.consuming: what a consumer that starts is told, whatever its links do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from messagebus import BusConfig, ConsumerConfig, Queue, TopologyMismatch
from messagebus._io.consuming import ConsumeDriver
from messagebus._io.link import Link
from messagebus._io.wire import Registration, Topology
from messagebus.broker import Broker
from messagebus.consumer import fulfilled
from messagebus.testing.brokers import MemoryBrokers
from messagebus.testing.links import MemoryWire
from messagebus.topology import Wanted

TOLD = "queue:q: durability is wanted page-cache and exists fsync"
WAIT_S = 10.0


class RefusedFirst(MemoryWire):
    """Registration is refused at once; links open only after that."""

    def __init__(self, brokers: MemoryBrokers) -> None:
        super().__init__(brokers)
        self.refused = asyncio.Event()

    def topology(self) -> Topology:
        topology, refused = super().topology(), self.refused

        async def register(
            wanted: Sequence[Wanted], *, timeout_ms: int, enough: bool = False
        ) -> Registration:
            refused.set()
            raise TopologyMismatch(TOLD)

        topology.register = register  # type: ignore[method-assign]
        return topology

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        await self.refused.wait()
        return await super().dial(broker, timeout_ms=timeout_ms)


async def test_a_mismatch_is_told_even_where_links_open_after_it() -> None:
    brokers = MemoryBrokers(["mb1:5672", "mb2:5672"])
    brokers.declare(Queue("q"))
    driver = ConsumeDriver(
        BusConfig(broker="mb1"), Queue("q"), ConsumerConfig(), lambda: None, RefusedFirst(brokers)
    )
    driver.start()
    try:
        assert await driver.wait_until(
            lambda: [each.state for each in driver.stats().brokers.values()] == ["open"] * 2, WAIT_S
        )
        with pytest.raises(TopologyMismatch, match=TOLD):
            await fulfilled(driver, "all", timeout_s=0)
    finally:
        await driver.stop(0)
