"""Clients with one defect each: the Python library's driver of the conformance kit, broken on purpose.

python -m tests.support.conform_defects NAME
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from clients.conform import python_driver
from clients.conform.python_driver import Driver
from messagebus import BusConfig, Consumer, Publisher, PublisherConfig
from messagebus import destination as destinations
from messagebus._io.agents import consumer_list
from messagebus._io.amqp import link
from messagebus._io.publish.links import Links
from messagebus.broker import BrokerList
from messagebus.core.deliveries import Ledger
from messagebus.core.membership import HangUp, Membership
from messagebus.errors import LinkLost
from messagebus.tls import TlsFiles


class Early(Driver):
    """It says confirmed when a message was written."""

    def _publish(self, message_id: str, order: dict[str, Any]) -> None:
        super()._publish(message_id, order)
        self.tell(id=message_id, outcome="confirmed")


class Routed(Driver):
    """It takes an ack for all that there is to know, as without `mandatory`."""

    def tell(self, **event: Any) -> None:
        if event.get("outcome") == "unroutable":
            event["outcome"] = "confirmed"
        super().tell(**event)


class OtherId(Driver):
    """It publishes again what got no answer, under another id."""

    def __init__(self) -> None:
        super().__init__()
        self.publisher.stop(0)
        config = PublisherConfig(deadline_s=python_driver.DEADLINE_S, retry_unknown=False)
        self.publisher = Publisher(self.bus, config)
        self.publisher.start()

    def tell(self, **event: Any) -> None:
        if event.get("outcome") == "unknown":
            again = event["id"] + "-again"
            self.publisher.submit(
                event["id"].rpartition("-")[0], b"", message_id=again
            ).add_done_callback(lambda done: Driver.tell(self, **self._ended(event["id"], done)))
            return
        super().tell(**event)

    def _ended(self, message_id: str, done: Future[Any]) -> dict[str, Any]:
        return {"id": message_id, "outcome": done.result().outcome.value}


class Waiting(Driver):
    """It hands out nothing until every broker is attached."""

    def _receive(self) -> None:
        consumer = cast(Consumer, self.consumer)
        while not all(each.state == "open" for each in consumer.stats().brokers.values()):
            threading.Event().wait(0.05)
        super()._receive()


class Sure(Driver):
    """It says of every answer that it was sent."""

    def tell(self, **event: Any) -> None:
        super().tell(**event | ({"ok": True} if "ok" in event else {}))


class Greedy(Driver):
    """It sets a prefetch of its own."""

    def _consume(self, source: str, prefetch: int) -> None:
        super()._consume(source, 4 * prefetch)


class ToTopic(Driver):
    """It retries by publishing to the topic, after the ack."""

    def _answer(self, order: dict[str, Any]) -> None:
        if order["do"] != "retry":
            super()._answer(order)
            return
        delivery = self.open.pop(order["tag"])
        cast(Consumer, self.consumer).ack(delivery)
        topic = str(delivery.source).partition("/")[0]
        self.publisher.submit(topic, delivery.body, message_id=delivery.message_id)
        self.tell(answered=order["tag"], ok=True)


class Rejecting(Driver):
    """It parks by rejecting: nobody learns why."""

    def _answer(self, order: dict[str, Any]) -> None:
        if order["do"] != "park":
            super()._answer(order)
            return
        delivery = self.open.pop(order["tag"])
        cast(Consumer, self.consumer).nack(delivery, requeue=False)
        self.tell(answered=order["tag"], ok=True)


class Down(Driver):
    """It rounds a delay down."""

    def _answer(self, order: dict[str, Any]) -> None:
        if order["do"] == "retry":
            order["delay_ms"] = order["delay_ms"] // 1000 * 1000
        super()._answer(order)


class Hasty(Driver):
    """It ends where it stands."""

    def stop(self) -> None:
        os._exit(0)


class Texts(Driver):
    """It makes a text of every header."""

    def tell(self, **event: Any) -> None:
        if "headers" in event:
            event["headers"] = {key: str(value) for key, value in event["headers"].items()}
        super().tell(**event)


def _any_status() -> None:
    async def read(answer: Any) -> BrokerList | None:
        if answer.status_code == consumer_list.NOT_MODIFIED:
            return None
        return BrokerList.parse((await answer.aread()).decode())

    consumer_list._read_list = read


def _applied_at_once() -> None:
    Membership.untried = property(lambda self: False)  # type: ignore[method-assign, assignment]


def _hanging_up() -> None:
    def let_go(self: Membership, broker: str, now_ms: int) -> list[Any]:
        del self._members[broker]
        return [HangUp(broker)]

    Membership._let_go = let_go  # type: ignore[method-assign]


def _never_again() -> None:
    refresh, gone = Membership.refresh, set[str]()

    def once(self: Membership, listed: Any, now_ms: int) -> list[Any]:
        wanted = set(listed)
        gone.update(self._members.keys() - wanted)
        return refresh(self, wanted - gone, now_ms)

    Membership.refresh = once  # type: ignore[method-assign]


def _batch_acked_early() -> None:
    delivered = Ledger.batch_delivered

    def early(self: Ledger, tag: int, parts: int, content: tuple[bytes, bytes]) -> None:
        delivered(self, tag, parts, content)
        self._parts[tag].undone = 2

    Ledger.batch_delivered = early  # type: ignore[method-assign]


def _staying() -> None:
    Links._on_blocked = lambda self, number, blocked: None  # type: ignore[method-assign]
    config = PublisherConfig(deadline_s=python_driver.DEADLINE_S, confirm_slow_s=600)
    vars(python_driver)["PublisherConfig"] = lambda **settings: config


def _trusting() -> None:
    context = TlsFiles.client_context

    def any_certificate(self: TlsFiles) -> ssl.SSLContext:
        made = context(self)
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
        return made

    TlsFiles.client_context = any_certificate  # type: ignore[method-assign]


def _password_once() -> None:
    read, known = BusConfig.current_password, list[Any]()

    def first(self: BusConfig) -> Any:
        known.append(read(self))
        return known[0]

    BusConfig.current_password = first  # type: ignore[method-assign]


def _any_name() -> None:
    destinations.check_name = lambda kind, name: name


def _limits_for_good() -> None:
    link.FOR_NOW = re.compile("(?!)")


def _refused_for_now() -> None:
    link._refused = lambda address, text: LinkLost(address.name, text)


def nothing() -> None:
    """Leave the library as it is."""


DEFECTS: dict[int, tuple[type[Driver], Callable[[], None]]] = {
    1: (Early, nothing),
    2: (Routed, nothing),
    3: (OtherId, nothing),
    4: (Driver, _any_status),
    5: (Driver, _applied_at_once),
    6: (Driver, _hanging_up),
    7: (Driver, _never_again),
    8: (Waiting, nothing),
    9: (Sure, nothing),
    10: (Greedy, nothing),
    11: (Driver, _batch_acked_early),
    12: (ToTopic, nothing),
    13: (Rejecting, nothing),
    14: (Down, nothing),
    15: (Driver, _staying),
    16: (Driver, _trusting),
    17: (Driver, _password_once),
    18: (Hasty, nothing),
    19: (Driver, _any_name),
    20: (Texts, nothing),
    21: (Driver, _limits_for_good),
    22: (Driver, _refused_for_now),
}
"""Number of a case -> the driver, and the fault of the library, that it must find."""

if __name__ == "__main__":
    made, plant = DEFECTS[int(sys.argv[1])]
    plant()
    python_driver.Driver = made  # type: ignore[misc]
    python_driver.main()
