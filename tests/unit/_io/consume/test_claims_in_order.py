"""Claims of two single active consumers that have copies of the same messages, each in another order."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest

from messagebus import Subscription, Topic
from messagebus._io.amqp.properties import ALONE
from messagebus._io.consume.copies import CopiedAnswers
from messagebus._io.consume.pipeline import Pipeline
from messagebus.config import ConsumerConfig
from messagebus.core.claims import Answer, Held, Rule, Turn, key_of
from messagebus.core.deliveries import Ledgers
from messagebus.message import Delivery
from messagebus.stores import Dedup
from messagebus.stores.memory import MemoryStore
from tests.support.eventually import eventually_async
from tests.unit._io.consume.test_inbox import FakeCopies

SOURCE = Subscription(Topic("orders"), "billing", single_active=True)
DEAD = b"crashed!"


class Store(MemoryStore):
    """The shared records as one consumer sees them: a dead claim ends when this one asks for it."""

    def __init__(self, shared: MemoryStore, ends: str) -> None:
        super().__init__()
        self._shared, self._key = shared, key_of(str(SOURCE), ends)

    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        if self._key in turn.claim:
            await self._shared.turn(Turn(release=[Held(self._key, DEAD)]), rule)
        return await self._shared.turn(turn, rule)


class Consumer:
    """A single active consumer; its handler ends at once. handled: ids. waits: how many were deferred."""

    def __init__(self, broker: str, store: MemoryStore) -> None:
        self.ledger, self.handled = Ledgers().connected(broker), list[str]()
        copies: Any = FakeCopies()
        self.pipeline = Pipeline(
            SOURCE,
            ConsumerConfig(),
            CopiedAnswers(copies, self._turn),
            dedup=Dedup(store, lease_s=600),
            on_turn=self._turn,
            on_ready=self._turn,
            on_back=self._turn,
        )

    def arrived(self, *ids: str) -> None:
        raws = [b"".join(pika.BasicProperties(message_id=each or None).encode()) for each in ids]
        made, now_ns = Delivery._arrived, time.monotonic_ns()
        self.ledger.delivered(range(1, len(ids) + 1))
        self.pipeline.first.arrived(
            self.ledger,
            [
                made(self.ledger, tag, 0, SOURCE, False, now_ns, raw, b"", ALONE)
                for tag, raw in enumerate(raws, 1)
            ],
        )
        self._turn()

    def _turn(self) -> None:
        while (delivery := self.pipeline.first.take()) is not None:
            self.handled.append(delivery.message_id)
            assert self.pipeline.first.ack(delivery)
        assert self.pipeline.claimed is not None
        self.pipeline.claimed.claims.talk()

    @property
    def waits(self) -> int:
        return int(self.pipeline.stats()["deferred"])

    @property
    def owed(self) -> int:
        """The number of deliveries without an answer: handled, or acked as duplicates, are the others."""
        return self.ledger.owed


@pytest.mark.guarantee("handled-once")
async def test_consumers_that_each_hold_what_the_other_one_needs_first_do_not_wait_for_each_other() -> (
    None
):
    shared = MemoryStore()
    key = key_of(str(SOURCE), "x")
    await shared.turn(Turn(claim=[key], token=DEAD), Dedup(shared, lease_s=600).rule)
    first, second = Consumer("mb1:5672", shared), Consumer("mb2:5672", Store(shared, ends="x"))
    first.arrived("x", "y")
    await eventually_async(lambda: first.waits == 1, within_s=10)
    second.arrived("y", "x")
    await eventually_async(lambda: first.owed == second.owed == 0, within_s=30)
    assert sorted(first.handled + second.handled) == ["x", "y"]
    for each in (first, second):
        await each.pipeline.finish(1)


@pytest.mark.parametrize(
    "ids", [("x", "", "y", ""), ("", "x", "", "y"), ("", "", "x", "y")], ids=str
)
@pytest.mark.parametrize(
    "is_dead", [False, True], ids=["", "the claim of a crashed consumer first"]
)
async def test_a_message_without_an_id_keeps_its_place_behind_those_that_wait_for_their_claims(
    ids: tuple[str, ...], is_dead: bool
) -> None:
    shared = MemoryStore()
    if is_dead:
        key = key_of(str(SOURCE), "x")
        await shared.turn(Turn(claim=[key], token=DEAD), Dedup(shared, lease_s=600).rule)
    consumer = Consumer("mb1:5672", shared)
    consumer.arrived(*ids)
    if is_dead:
        await eventually_async(lambda: consumer.waits == 1, within_s=10)
        assert consumer.handled == list(ids[: ids.index("x")])
        await shared.turn(Turn(release=[Held(key, DEAD)]), Dedup(shared, lease_s=600).rule)
    await eventually_async(lambda: len(consumer.handled) == len(ids), within_s=30)
    assert consumer.handled == list(ids)
    await consumer.pipeline.finish(1)
