"""Faults of the store of a bus in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from messagebus import Topic
from messagebus.core.claims import (
    ENDED,
    KEY_BYTES,
    NOBODY,
    RUN,
    TOKEN_BYTES,
    Held,
    Record,
    Rule,
    Turn,
)
from messagebus.errors import StoreAway
from messagebus.secret import Secret
from messagebus.stores import Dedup
from messagebus.testing import MemoryBus
from messagebus.testing.store import FaultyStore

WITHIN_S = 60.0
RULE = Rule(30_000, 60_000, 2)
ONE, TWO, TOKEN = b"1" * KEY_BYTES, b"2" * KEY_BYTES, b"t" * TOKEN_BYTES
CLAIM = Turn(claim=[ONE], token=TOKEN)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(lambda: 0)


async def verdict(store: FaultyStore, key: bytes = ONE) -> str:
    return (await store.turn(Turn(claim=[key], token=TOKEN), RULE)).verdicts[0].kind


async def test_the_last_change_is_undone_and_nothing_before_it(store: FaultyStore) -> None:
    await store.turn(Turn(done=[TWO]), RULE)
    await store.turn(CLAIM, RULE)
    await store.turn(Turn(done=[ONE]), RULE)
    assert store.forget_last() == 1
    assert await verdict(store) == RUN  # by the claim's own token
    assert await verdict(store, TWO) == ENDED
    assert store.forget_last() == 0


async def test_a_first_claim_that_is_undone_was_never_made(store: FaultyStore) -> None:
    await store.turn(CLAIM, RULE)
    assert store.forget_last() == 1
    assert await store.show([ONE]) == [None]


async def test_a_turn_that_changes_nothing_is_not_the_last_change(store: FaultyStore) -> None:
    await store.turn(Turn(done=[ONE]), RULE)
    await store.turn(Turn(extend=[Held(TWO, TOKEN)]), RULE)
    assert store.forget_last() == 1


async def test_a_lost_reply_is_of_a_turn_that_was_carried_out(store: FaultyStore) -> None:
    store.reply_lost()
    with pytest.raises(StoreAway, match="reply"):
        await store.turn(Turn(done=[ONE]), RULE)
    assert await verdict(store) == ENDED


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.turn(CLAIM, RULE),
        lambda store: store.show([ONE]),
        lambda store: store.forget([ONE]),
        lambda store: store.count(),
        lambda store: store.next_fence(ONE),
    ],
    ids=["turn", "show", "forget", "count", "next_fence"],
)
async def test_a_store_that_is_lost_answers_nothing_and_keeps_all(
    store: FaultyStore, call: Callable[[FaultyStore], Awaitable[object]]
) -> None:
    await store.turn(Turn(done=[ONE]), RULE)
    store.lose()
    with pytest.raises(StoreAway, match="lost"):
        await call(store)
    store.restore()
    [record] = await store.show([ONE])
    assert isinstance(record, Record)
    assert record.owner == NOBODY
    assert (await store.count()).done == 1


async def test_an_application_whose_dedup_has_fences_runs_on_a_bus_in_memory() -> None:
    bus = MemoryBus(brokers=1)
    bus.declare(Topic("orders", partitions=1))
    bus.declare("orders/billing")
    dedup = Dedup(Secret("redis://elsewhere"), fence=True)
    fences = []
    for _ in range(2):
        async with bus.async_consumer(
            "orders", subscription="billing", order="key", dedup=dedup
        ) as consumer:
            async with bus.async_publisher() as publisher:
                await publisher.send_safe("orders", b"x", key="k")
            delivery = await consumer.receive(WITHIN_S)
            assert delivery is not None
            fences.append(delivery.fence)
            consumer.ack(delivery)
    assert fences == [1, 2]
