"""`MemoryBus`: brokers in memory and the clients on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from messagebus._io.consuming import ConsumeDriver
from messagebus._io.publishing import PublishDriver
from messagebus.aio import AsyncConsumer, AsyncPublisher
from messagebus.config import BusConfig, ConsumerConfig, PublisherConfig
from messagebus.consumer import Consumer, as_source
from messagebus.destination import Destination, Source
from messagebus.hooks import Hooks
from messagebus.message import Message
from messagebus.publisher import Publisher
from messagebus.testing.brokers import MemoryBrokers
from messagebus.testing.consuming import MemoryConsumeDriver
from messagebus.testing.publishing import MemoryPublishDriver
from messagebus.topology import parse_wanted

__all__ = ["MemoryBus"]


class MemoryBus:
    """As many brokers as wanted. Any thread may call any method; clients as their own classes say."""

    def __init__(self, brokers: int = 1) -> None:
        self._brokers = MemoryBrokers([f"memory-{number}:5672" for number in range(1, brokers + 1)])

    def publisher(
        self, config: PublisherConfig | None = None, *, hooks: Sequence[Hooks] = ()
    ) -> Publisher:
        """A `Publisher`, not started."""
        return _MemoryPublisher(self._brokers, config, hooks)

    def async_publisher(
        self, config: PublisherConfig | None = None, *, hooks: Sequence[Hooks] = ()
    ) -> AsyncPublisher:
        return _AsyncMemoryPublisher(self._brokers, config, hooks)

    def consumer(
        self,
        destination: Destination | Source | str,
        *,
        subscription: str = "",
        config: ConsumerConfig | None = None,
    ) -> Consumer:
        """A `Consumer`, not started."""
        return _MemoryConsumer(self._brokers, destination, subscription, config)

    def async_consumer(
        self,
        destination: Destination | Source | str,
        *,
        subscription: str = "",
        config: ConsumerConfig | None = None,
    ) -> AsyncConsumer:
        return _AsyncMemoryConsumer(self._brokers, destination, subscription, config)

    def declare(self, *wanted: str) -> None:
        """Make ``orders/billing`` or ``queue:jobs`` exist without a consumer."""
        for each in wanted:
            self._brokers.declare(parse_wanted(each))

    def waiting(self, destination: Destination | str, subscription: str = "") -> int:
        """How many messages nobody has taken, over all brokers."""
        return self._brokers.waiting(as_source(destination, subscription))

    def parked(self, destination: Destination | str, subscription: str = "") -> list[Message]:
        """What was rejected, over all brokers."""
        return self._brokers.parked(as_source(destination, subscription))

    def freeze(self) -> None:
        """From now on no broker answers a publish: backlogs fill, deadlines pass."""
        self._brokers.freeze()

    def thaw(self) -> None:
        self._brokers.thaw()


class _MemoryPublisher(Publisher):
    def __init__(
        self, brokers: MemoryBrokers, config: PublisherConfig | None, hooks: Sequence[Hooks]
    ) -> None:
        super().__init__(BusConfig(), config, hooks=hooks)
        self._brokers = brokers

    async def _make_driver(self) -> PublishDriver:
        driver = MemoryPublishDriver(self._brokers, self._config, self._take_inbox)
        driver.start()
        return cast(PublishDriver, driver)


class _AsyncMemoryPublisher(AsyncPublisher):
    def __init__(
        self, brokers: MemoryBrokers, config: PublisherConfig | None, hooks: Sequence[Hooks]
    ) -> None:
        super().__init__(BusConfig(), config, hooks=hooks)
        self._brokers = brokers

    def _make_driver(self) -> PublishDriver:
        driver = MemoryPublishDriver(self._brokers, self._config, self._on_room)
        return cast(PublishDriver, driver)


class _MemoryConsumer(Consumer):
    def __init__(
        self,
        brokers: MemoryBrokers,
        destination: Destination | Source | str,
        subscription: str,
        config: ConsumerConfig | None,
    ) -> None:
        super().__init__(BusConfig(), destination, subscription=subscription, config=config)
        self._brokers = brokers

    async def _make_driver(self) -> ConsumeDriver:
        driver = MemoryConsumeDriver(self._brokers, self._source, self._config, self._on_ready)
        driver.start()
        return cast(ConsumeDriver, driver)


class _AsyncMemoryConsumer(AsyncConsumer):
    def __init__(
        self,
        brokers: MemoryBrokers,
        destination: Destination | Source | str,
        subscription: str,
        config: ConsumerConfig | None,
    ) -> None:
        super().__init__(BusConfig(), destination, subscription=subscription, config=config)
        self._brokers = brokers

    def _make_driver(self) -> ConsumeDriver:
        driver = MemoryConsumeDriver(self._brokers, self._source, self._config, self._ready.set)
        return cast(ConsumeDriver, driver)
