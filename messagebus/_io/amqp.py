"""The wire to real brokers: AMQP links, agents over HTTP, the consumer list."""

from __future__ import annotations

import logging
from collections.abc import Callable

from messagebus._io.following import ListFollower
from messagebus._io.link import Link, dial
from messagebus._io.registering import credentials, topology_for
from messagebus._io.wire import Topology
from messagebus._namesake import namesake
from messagebus.broker import Broker, BrokerList
from messagebus.config import BusConfig

__all__ = ["AmqpWire"]

log = logging.getLogger("messagebus")


class AmqpWire:
    """As a configuration says."""

    redial_first_ms = 100

    def __init__(self, bus: BusConfig) -> None:
        self._bus = bus
        if told := namesake():
            log.warning("wrong environment reason=%r", told)

    def topology(self) -> Topology:
        return topology_for(self._bus)

    def follow(
        self, *, subscription: str, interval_s: int, on_list: Callable[[BrokerList], None]
    ) -> ListFollower:
        return ListFollower(
            self._bus, subscription=subscription, interval_s=interval_s, on_list=on_list
        )

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        return await dial(
            broker or self._bus.address, credentials(self._bus), timeout_ms=timeout_ms
        )
