"""Questions of a gateway whether a subscription is there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from messagebus import BusConfig, ListUnavailable, PublisherConfig, Subscription, Topic
from messagebus_gateway import clients
from messagebus_gateway.clients import RealBus

BILLING = Subscription(Topic("orders"), "billing")


async def test_agents_are_counted_once_for_all_who_ask_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "COUNT_EVERY_MS", 100)
    counts: list[BusConfig] = []

    def count(asked: BusConfig) -> object:
        counts.append(asked)
        return SimpleNamespace(counts=[SimpleNamespace(name="orders/billing")], answered=("mb1",))

    monkeypatch.setattr(clients, "count_subscriptions", count)
    bus = RealBus(BusConfig(), PublisherConfig())
    assert await bus.exists(BILLING)
    names = [Subscription(Topic("orders"), f"n{number}") for number in range(100)]
    found = await asyncio.gather(*(bus.exists(each) for each in (BILLING, *names)))
    assert found == [True] + [False] * 100
    assert len(counts) <= 3


@pytest.mark.parametrize("answered", [None, ()])
async def test_where_nobody_can_say_it_may_be_there(
    monkeypatch: pytest.MonkeyPatch, answered: tuple[str, ...] | None
) -> None:
    def count(_bus: BusConfig) -> object:
        if answered is None:
            raise ListUnavailable("no agent answers")
        return SimpleNamespace(counts=[], answered=answered)

    monkeypatch.setattr(clients, "count_subscriptions", count)
    assert await RealBus(BusConfig(), PublisherConfig()).exists(BILLING)
