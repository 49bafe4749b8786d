from __future__ import annotations

import asyncio
from pathlib import Path

from bench.figures import once
from messagebus.stores.memory import MemoryStore
from messagebus.stores.sqlite import SqliteStore


async def test_every_message_is_claimed_and_done(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "claims")
    found = await once.cost(store, 250)
    assert found.per_s > 0
    assert (await store.count()).done == 250
    await store.close()


async def test_all_that_was_published_is_timed_with_a_store_and_without() -> None:
    for store in (None, MemoryStore()):
        found = await once.latencies_ms(store, 0.02)
        assert len(found) == 60
        assert min(found) > 0


async def test_all_messages_are_consumed_with_a_store() -> None:
    store = MemoryStore()
    await asyncio.wait_for(once.consumed_us(store, 700), 60)
    assert (await store.count()).done == 700
