"""Deliveries wait for the number of their link, and for nothing where it has ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from messagebus import Subscription, Topic
from messagebus._io.consume import dedup as module
from messagebus._io.consume.dedup import Deduplication
from messagebus.core.deliveries import Ledger
from messagebus.errors import LinkLost, StoreAway
from messagebus.stores import Dedup
from messagebus.stores.memory import MemoryStore
from tests.support.eventually import eventually_async

FIRST: Any = (1, False, b"", b"")
SECOND: Any = (2, False, b"", b"")


class Store(MemoryStore):
    """A store that is away at first. asked: keys, also then."""

    def __init__(self, away: int) -> None:
        super().__init__()
        self.away, self.asked = away, list[bytes]()

    async def next_fence(self, key: bytes) -> int:
        self.asked.append(key)
        if self.away:
            self.away -= 1
            raise StoreAway("not now")
        return await super().next_fence(key)


class Rig:
    """A link with a fence. got: what was handed out; trips: round trips on its channel."""

    def __init__(self, store: Store, broker: str = "mb1:5672#7.1", *, fence: bool = True) -> None:
        self.got: list[Any] = []
        self.trips = 0
        self.is_lost = False
        self.ledger = Ledger(broker, 1)
        parts: Any = SimpleNamespace(take_buffered=lambda: None)
        self.transport: Any = SimpleNamespace(on_contents=self.got.extend)
        Deduplication(
            Dedup(store, fence=fence),
            Subscription(Topic("orders"), "billing"),
            parts,
            chain=None,
            on_turn=lambda: None,
            on_back=lambda: None,
            timeout_s=1800,
        ).fence(self.ledger, self.transport, self.round_trip)

    async def round_trip(self) -> None:
        self.trips += 1
        if self.is_lost:
            raise LinkLost("mb1:5672", "cut")


async def test_nothing_is_handed_out_before_the_number_is_known_and_the_link_still_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FENCE_AGAIN_S", 0.001)
    store = Store(away=2)
    rig = Rig(store)
    await asyncio.sleep(0)
    assert store.asked == []  # who is served nothing has no number
    rig.transport.on_contents([FIRST])
    rig.transport.on_contents([SECOND])
    assert rig.got == []
    await eventually_async(lambda: rig.got == [FIRST, SECOND], within_s=10)
    assert (rig.ledger.fence, rig.trips, len(store.asked)) == (1, 1, 3)
    rig.transport.on_contents([FIRST])
    assert rig.got == [FIRST, SECOND, FIRST]


@pytest.mark.parametrize("how", ["in the round trip", "while the store is asked"])
async def test_what_came_over_a_link_that_has_ended_is_not_handed_out(how: str) -> None:
    store = Store(away=0)
    rig = Rig(store)
    rig.is_lost = how == "in the round trip"
    rig.transport.on_contents([FIRST])
    if not rig.is_lost:
        rig.ledger.end()
    await eventually_async(lambda: rig.trips or not rig.ledger.is_live, within_s=10)
    await asyncio.sleep(0)
    assert (rig.got, rig.ledger.fence) == ([], 0)


async def test_a_partition_counts_on_over_its_homes_and_others_have_their_own() -> None:
    store = Store(away=0)
    brokers = ("mb1:5672#7.1", "mb2:5672#7.2", "mb1:5672#8.1", "mb1:5672")
    rigs = [Rig(store, broker) for broker in brokers]
    for rig in rigs:
        rig.transport.on_contents([FIRST])
    await eventually_async(lambda: all(rig.got for rig in rigs), within_s=10)
    assert [rig.ledger.fence for rig in rigs] == [1, 2, 1, 1]


async def test_where_no_fence_is_wanted_nobody_is_asked() -> None:
    rig = Rig(store := Store(away=0), fence=False)
    rig.transport.on_contents([FIRST])
    assert (rig.got, rig.ledger.fence, store.asked) == ([FIRST], 0, [])
