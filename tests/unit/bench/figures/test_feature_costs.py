"""Costs of features: everything that is counted has been done."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from bench.figures import feature_costs
from messagebus.stores.sqlite import SqliteStore


async def test_every_message_is_claimed_and_done(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "claims")
    assert await asyncio.wait_for(feature_costs.claims_per_s(store, 250), 60) > 0
    assert (await store.count()).done == 250
    await store.close()


@pytest.mark.parametrize("kept", ["none", "key"])
def test_all_messages_are_handled_whatever_order_is_kept(kept: Literal["none", "key"]) -> None:
    assert feature_costs.handled_us(kept, 300) > 0


def test_what_is_spooled_without_a_broker_is_sent_when_there_is_one() -> None:
    found = feature_costs.spooled(640)
    assert found.accept > 0
    assert 0 < found.more_bytes < 1024


def test_a_recorded_publish_and_a_handled_delivery_cost_something_each() -> None:
    publish_us, handle_us = feature_costs.recorded_us(2_000)
    assert publish_us > 0
    assert handle_us > 0
