"""The conversation with a store of deduplication goes on, whatever the application does to its loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pika
import pytest

from messagebus import Subscription, Topic
from messagebus._io.amqp.properties import ALONE
from messagebus._io.consume.copies import CopiedAnswers
from messagebus._io.consume.pipeline import Pipeline
from messagebus.config import ConsumerConfig
from messagebus.core.claims import Answer, Rule, Turn
from messagebus.core.deliveries import Ledgers
from messagebus.message import Delivery
from messagebus.stores import Dedup
from messagebus.stores.memory import MemoryStore
from tests.support.eventually import eventually_async
from tests.unit._io.consume.test_inbox import FakeCopies

SOURCE = Subscription(Topic("orders"), "billing")


class Slow(MemoryStore):
    """A store whose first turns wait for `goes_on`. asked: how many turns it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on, self.asked = asyncio.Event(), 0

    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        self.asked += 1
        await self.goes_on.wait()
        return await super().turn(turn, rule)


class Consumer:
    """A consumer whose handler ends at once. handled: ids."""

    def __init__(self, store: MemoryStore) -> None:
        self.handled = list[str]()
        self.ledger = Ledgers().connected("mb1:5672")
        copies: Any = FakeCopies()
        self.pipeline = Pipeline(
            SOURCE,
            ConsumerConfig(),
            CopiedAnswers(copies, self._turn),
            dedup=Dedup(store),
            on_turn=self._turn,
            on_ready=self._turn,
            on_back=self._turn,
        )

    def arrived(self, tag: int, message_id: str) -> None:
        raw = b"".join(pika.BasicProperties(message_id=message_id).encode())
        self.ledger.delivered([tag])
        now_ns = time.monotonic_ns()
        made = Delivery._arrived(self.ledger, tag, 0, SOURCE, False, now_ns, raw, b"", ALONE)
        self.pipeline.first.arrived(self.ledger, [made])

    def _turn(self) -> None:
        while (delivery := self.pipeline.first.take()) is not None:
            self.handled.append(delivery.message_id)
            assert self.pipeline.first.ack(delivery)
        assert self.pipeline.turns is not None
        self.pipeline.turns.begin()


def cancel_all() -> None:
    """Cancel all other tasks of the loop, as an application may."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("when", ["while the store is asked", "while there is nothing to ask"])
async def test_an_application_that_cancels_all_tasks_of_its_loop_stops_no_deduplication(
    when: str,
) -> None:
    store = Slow()
    consumer = Consumer(store)
    if when == "while there is nothing to ask":
        store.goes_on.set()
        consumer.arrived(1, "first")
        await eventually_async(lambda: consumer.ledger.owed == 0, within_s=30)
        cancel_all()
        consumer.arrived(2, "second")  # before the cancelled task has ended
    else:
        consumer.arrived(1, "first")
        await eventually_async(lambda: store.asked == 1, within_s=30)
        cancel_all()
        await asyncio.sleep(0)
        store.goes_on.set()
        consumer.arrived(2, "second")
    await eventually_async(lambda: consumer.ledger.owed == 0, within_s=30)
    assert consumer.handled == ["first", "second"]
    await consumer.pipeline.finish(1)
