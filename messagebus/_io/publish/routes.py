"""Route policies of a publisher's driver: to which broker it publishes.

`AnyBroker` takes whichever the balancer gives. `AnotherBroker` keeps away from the broker of a first driver,
for the second copy of a redundant publish. `_io.publish.partitions.HomeBroker` stays with one broker,
whatever happens. `core.route` decides when to dial, move and hang up; a policy answers where to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from messagebus._io.amqp.link import Link
from messagebus._io.wire import Follower, Wire
from messagebus.broker import Broker, BrokerList
from messagebus.core.ends import DEADLINE_PASSED

FOLLOW_INTERVAL_S = 30


class RoutePolicy(Protocol):
    """The choice of a driver's broker, with the consumer list that it follows.

    stays: no other broker will do, so that a slow or draining one is not left. ordered: as of
    `PendingPublishes`, which then also waits for a moved partition. sends_anywhere: `may_send` is always
    True. follower: there from `bind` on.
    """

    stays: bool
    ordered: bool
    sends_anywhere: bool
    follower: Follower

    def bind(self, wire: Wire, on_list: Callable[[BrokerList], None]) -> None:
        """Prepare the follower of the consumer list. on_list: called with each new list of its own."""

    def start(self) -> None:
        """Begin to follow."""

    async def stop(self) -> None:
        """End what `start` began."""

    def avoids(self) -> str | None:
        """Return the broker that must not be adopted, nor one without a name; None: any will do."""

    def may_send(self, broker: str) -> bool:
        """Return whether publishes may go out to the broker of this name now, "" for none."""

    def choose(self, number: int) -> Broker | None:
        """Return the broker that this dial goes to by its name; None for any that the balancer gives."""

    async def verify(self, link: Link) -> None:
        """Look whether a new link has what this route needs. Raises MessageBusError."""

    def why_late(self, last_fault: str) -> str:
        """Return why a publish was not answered before its deadline."""


class AnyBroker:
    """Whichever broker the balancer gives."""

    stays = ordered = False
    sends_anywhere = True
    follower: Follower

    def bind(self, wire: Wire, on_list: Callable[[BrokerList], None]) -> None:
        self.follower = wire.follow(subscription="", interval_s=FOLLOW_INTERVAL_S, on_list=on_list)

    def start(self) -> None:
        self.follower.start()

    async def stop(self) -> None:
        await self.follower.stop()

    def avoids(self) -> str | None:
        return None

    def may_send(self, broker: str) -> bool:
        return True

    def choose(self, number: int) -> Broker | None:
        return None

    async def verify(self, link: Link) -> None: ...

    def why_late(self, last_fault: str) -> str:
        return f"{DEADLINE_PASSED}{last_fault}"


class FirstDriver(Protocol):
    """The part of a publisher's own driver that the policies of its others look at."""

    policy: RoutePolicy

    @property
    def broker(self) -> str:
        """The name of the current link's broker, "" without one."""


class AnotherBroker:
    """Another broker than that of a first driver, whose consumer list it shares."""

    stays = ordered = sends_anywhere = False

    def __init__(self, first: FirstDriver) -> None:
        self._first = first
        self.follower = first.policy.follower
        self._dialed: dict[str, int] = {}  # broker -> number of the last such dial

    def bind(self, wire: Wire, on_list: Callable[[BrokerList], None]) -> None: ...

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def avoids(self) -> str | None:
        return self._first.broker

    def may_send(self, broker: str) -> bool:
        return broker not in ("", self._first.broker)

    def choose(self, number: int) -> Broker | None:
        """Return the listed broker whose turn it is; None without one."""
        brokers = self.follower.brokers
        listed = () if brokers is None else brokers.listed
        names = {
            each.broker.name: each.broker
            for each in listed
            if not each.draining and each.broker.name != self._first.broker
        }
        if not names:
            return None
        name = min(names, key=lambda name: self._dialed.get(name, 0))
        self._dialed[name] = number
        return names[name]

    async def verify(self, link: Link) -> None: ...

    def why_late(self, last_fault: str) -> str:
        return f"{DEADLINE_PASSED}{last_fault}"
