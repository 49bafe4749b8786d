"""Claims of two single active consumers that have copies of the same messages, each in another order."""

from __future__ import annotations

from typing import Any

import pika
import pytest

from messagebus import Subscription, Topic
from messagebus._io.amqp.properties import ALONE
from messagebus._io.consume.dedup import Deduplication
from messagebus.core.claims import Answer, Held, Rule, Turn, key_of
from messagebus.core.deliveries import Ledger
from messagebus.message import Delivery
from messagebus.stores import Dedup
from messagebus.stores.memory import MemoryStore
from tests.support.eventually import eventually_async

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
    """A single active consumer; its handler ends at once. seen: ids that it handled, or acked unseen."""

    in_order = True

    def __init__(self, broker: str, store: MemoryStore) -> None:
        self.ledger, self.handled, self.seen = Ledger(broker, 1), list[str](), list[str]()
        inbox: Any = self
        self.dedup = Deduplication(
            Dedup(store, lease_s=600),
            SOURCE,
            inbox,
            chain=None,
            on_turn=lambda: None,
            on_back=lambda: None,
            timeout_s=1800,
        )

    def take_buffered(self) -> None:
        return None

    def arrived(self, *ids: str) -> None:
        raws = [b"".join(pika.BasicProperties(message_id=each or None).encode()) for each in ids]
        made = Delivery._arrived
        self.dedup.arrived(
            self.ledger,
            [
                made(self.ledger, tag, 0, SOURCE, False, 0, raw, b"", ALONE)
                for tag, raw in enumerate(raws, 1)
            ],
        )

    def hand_out(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            assert self.dedup.may_start(delivery)
            self.handled.append(delivery.message_id)
            self.dedup.ended(delivery, live=True)

    def acked(self, delivery: Delivery) -> None:
        self.seen.append(delivery.message_id)

    def ack_duplicate(self, delivery: Delivery) -> bool:
        self.seen.append(delivery.message_id)
        return True


@pytest.mark.guarantee("handled-once")
async def test_consumers_that_each_hold_what_the_other_one_needs_first_do_not_wait_for_each_other() -> (
    None
):
    shared = MemoryStore()
    key = key_of(str(SOURCE), "x")
    await shared.turn(Turn(claim=[key], token=DEAD), Dedup(shared, lease_s=600).rule)
    first, second = Consumer("mb1:5672", shared), Consumer("mb2:5672", Store(shared, ends="x"))
    first.arrived("x", "y")
    await eventually_async(lambda: first.dedup._once.counters.deferred == 1, within_s=10)
    second.arrived("y", "x")
    await eventually_async(
        lambda: sorted(first.seen) == sorted(second.seen) == ["x", "y"], within_s=30
    )
    assert sorted(first.handled + second.handled) == ["x", "y"]
    for each in (first, second):
        await each.dedup.finish(1)


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
        await eventually_async(lambda: consumer.dedup._once.counters.deferred == 1, within_s=10)
        assert consumer.handled == list(ids[: ids.index("x")])
        await shared.turn(Turn(release=[Held(key, DEAD)]), Dedup(shared, lease_s=600).rule)
    await eventually_async(lambda: len(consumer.handled) == len(ids), within_s=30)
    assert consumer.handled == list(ids)
    await consumer.dedup.finish(1)
