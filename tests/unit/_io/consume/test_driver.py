"""_io.consume.driver: answers at a consumer's start, and the order of ends and dials."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from messagebus import (
    BusConfig,
    ConsumerConfig,
    Delivery,
    Message,
    Queue,
    Subscription,
    Topic,
    TopologyMismatch,
)
from messagebus._io.amqp.link import Link
from messagebus._io.amqp.properties import encode
from messagebus._io.consume.driver import ConsumeDriver
from messagebus._io.wire import Registration, Topology
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.consumer import fulfilled
from messagebus.testing.brokers import MemoryBrokers, Route
from messagebus.testing.links import MemoryWire
from messagebus.testing.queues import MemoryQueue, Stored
from messagebus.topology import Wanted

TOLD = "queue:q: durability is wanted page-cache and exists fsync"
WAIT_S = 10.0


def nothing(_before_ns: int, _all_if_any: bool) -> list[Delivery]:
    return []


class RefusedFirst(MemoryWire):
    """Wire that refuses the registration at once; links open only after that."""

    def __init__(self, brokers: MemoryBrokers) -> None:
        super().__init__(brokers)
        self.refused = asyncio.Event()

    def topology(self) -> Topology:
        topology, refused = super().topology(), self.refused

        async def register(
            wanted: Sequence[Wanted], *, timeout_ms: int, enough: bool = False, told: object = None
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
        BusConfig(broker="mb1"),
        Queue("q"),
        ConsumerConfig(),
        lambda: None,
        RefusedFirst(brokers),
        withdraw=nothing,
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


ORDERED = Subscription(Topic("orders"), "billing", single_active=True)


@pytest.mark.guarantee("single-active-keeps-order")
async def test_of_a_removed_broker_a_single_active_consumer_finishes_what_it_has_and_keeps_the_order() -> (
    None
):
    brokers = MemoryBrokers(["mb1:5672", "mb2:5672"])
    brokers.declare(ORDERED)
    queue = brokers.all["mb1:5672"].queues[ORDERED.amqp_queue]
    _put(brokers, queue, 0, 4)
    first, second = [
        ConsumeDriver(
            BusConfig(),
            ORDERED,
            ConsumerConfig(),
            lambda: None,
            MemoryWire(brokers),
            withdraw=nothing,
        )
        for _ in range(2)
    ]
    first.start()
    assert await first.wait_until(lambda: _owed(first) == 4, WAIT_S)
    second.start()
    try:
        assert await second.wait_until(second.is_attached_to_all, WAIT_S)
        held = [first.take(), first.take()]
        first._on_list(_listed("mb2:5672"))
        _put(brokers, queue, 4, 6)
        assert await first.wait_until(lambda: _owed(first) == 6, WAIT_S), "not cancelled"
        held += [first.take(), first.take()]
        assert first.take() is None, "what came later goes back"
        assert _owed(second) == 0
        for delivery in held:
            assert delivery is not None
            assert first.ack(delivery)
        assert await second.wait_until(lambda: _owed(second) == 2, WAIT_S)
        assert await first.wait_until(lambda: list(first.stats().brokers) == ["mb2:5672"], WAIT_S)
        rest = [second.take(), second.take()]
        bodies = [each.body for each in [*held, *rest] if each is not None]
        assert bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    finally:
        await first.stop(0)
        await second.stop(0)


def _put(brokers: MemoryBrokers, queue: MemoryQueue, begin: int, end: int) -> None:
    with brokers.lock:
        for number in range(begin, end):
            raw = encode(Message(body=b""), str(number), 0)
            queue.put(
                Stored(next(brokers.places), Route("", queue.name), raw, str(number).encode())
            )
        queue.hand_out()


def _owed(driver: ConsumeDriver) -> int:
    return sum(each.owed for each in driver.stats().brokers.values())


def _listed(*names: str) -> BrokerList:
    return BrokerList(listed=tuple(ListedBroker(broker=Broker.parse(name)) for name in names))


class SwallowsSome(MemoryWire):
    """Wire with some brokers that never answer a dial."""

    def __init__(self, brokers: MemoryBrokers, deaf: frozenset[str]) -> None:
        super().__init__(brokers)
        self._deaf = deaf

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        if broker is not None and broker.name in self._deaf:
            await asyncio.sleep(timeout_ms / 1000 + WAIT_S)
        return await super().dial(broker, timeout_ms=timeout_ms)


async def test_brokers_that_swallow_their_dials_do_not_keep_others_from_being_dialled() -> None:
    deaf = [f"mb{number:02d}:5672" for number in range(40)]
    brokers = MemoryBrokers([*deaf, "mb99:5672"])
    brokers.declare(Queue("q"))
    wire = SwallowsSome(brokers, frozenset(deaf))
    driver = ConsumeDriver(
        BusConfig(dial_timeout_ms=8_000),
        Queue("q"),
        ConsumerConfig(),
        lambda: None,
        wire,
        withdraw=nothing,
    )
    driver.start()
    try:
        assert await driver.wait_until(driver.is_attached_to_one, WAIT_S)
        assert [
            broker for broker, each in driver.stats().brokers.items() if each.state == "open"
        ] == ["mb99:5672"]
    finally:
        await driver.stop(0)
