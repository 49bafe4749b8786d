"""The table of a topic's partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from messagebus import BusConfig, Subscription, Topic
from messagebus._io.agents.subscriptions import SubscriptionCount, SubscriptionCounts
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.errors import LinkLost, NotFound
from messagebus.secret import Secret
from messagebus.topology import Wanted
from messagebus_tools import partitions
from messagebus_tools.partitions import chains_in, rows_of, spread

ONE, TWO = "mb1:5672", "mb2:5672"
BUS = BusConfig(broker="mb1", list_urls=("http://mb1:8081/consumer-list",))
LISTED = BrokerList(listed=tuple(ListedBroker(broker=Broker.parse(each)) for each in (ONE, TWO)))
ORDERS = Topic("orders", partitions=3, homes=f"{ONE} 2@{TWO}")


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topology(_bus: BusConfig) -> list[Wanted]:
        return [ORDERS, Topic("plain"), Subscription(ORDERS, "billing")]

    async def count(_bus: BusConfig, _brokers: BrokerList) -> SubscriptionCounts:
        counts = tuple(
            SubscriptionCount(
                name=f"orders/{name}",
                broker=ONE,
                ready=5,
                consumers=1,
                segments={"0.1": waiting, "2.1": 0},
            )
            for name, waiting in (("billing", 5), ("audit", 7))
        )
        return SubscriptionCounts(counts, unanswered={TWO: "no answer"}, answered=(ONE,))

    monkeypatch.setattr(partitions, "topology", topology)
    monkeypatch.setattr(partitions, "count", count)


async def test_each_partition_has_its_home_and_what_waits_there() -> None:
    rows = await rows_of(BUS, LISTED, "orders")
    assert [(row.partition, row.home, row.epoch) for row in rows] == [
        (0, ONE, 1),
        (1, TWO, 2),
        (2, ONE, 1),
    ]
    assert rows[0].waiting == {"billing": 5, "audit": 7}
    assert (rows[1].waiting, rows[1].fault) == ({}, "no answer")


async def test_one_subscription_is_shown_alone() -> None:
    rows = await rows_of(BUS, LISTED, "orders/billing")
    assert [dict(row.waiting) for row in rows] == [{"billing": 5}, {}, {"billing": 0}]


@pytest.mark.parametrize("name", ["plain", "nothing"])
async def test_a_topic_without_partitions_is_not_found(name: str) -> None:
    with pytest.raises(NotFound, match=f"no topic {name} with partitions"):
        await rows_of(BUS, LISTED, name)


def test_partitions_are_spread_with_the_fewest_moves() -> None:
    assert spread(["a", "a", "a", "a", "b", "a"], ["a", "b", "c"]) == {2: "c", 3: "b", 5: "c"}
    assert spread(["a", "b", "a", "b"], ["a", "b", "c"]) == {3: "c"}
    assert spread(["a", "b", "c"], ["a", "b", "c"]) == {}
    assert spread(["gone", "a"], ["a", "b"]) == {0: "b"}


def test_from_one_broker_only_its_own_move() -> None:
    assert spread(["a", "b", "b", "a"], ["a", "b", "c"], away="a") == {0: "c", 3: "c"}
    assert spread(["a"], ["a"], away="a") == {}


def test_what_agents_know_of_a_move_is_put_together() -> None:
    def entry(homes: str) -> dict[str, object]:
        return {"wanted": "orders", "alive": True, "homes": homes, "partitions": 2}

    other = {"wanted": "orders/billing", "alive": True, "partitions": 2}
    chains = chains_in([entry(f"{ONE} {TWO}"), other, entry(f"{ONE}>2@{TWO} {TWO}")])
    assert [len(each.homes) for each in chains["orders"]] == [2, 1]
    assert list(chains) == ["orders"]


async def test_a_partition_that_moves_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topology(_bus: BusConfig) -> list[Wanted]:
        return [replace(ORDERS, homes=f"{ONE}>2@{TWO} {ONE},2@{TWO} {ONE}")]

    monkeypatch.setattr(partitions, "topology", topology)
    rows = await rows_of(BUS, LISTED, "orders/billing")
    assert [row.moving for row in rows] == [
        f"moves from {ONE}, which takes its publishes",
        f"what is left on {ONE} comes first",
        "",
    ]
    assert rows[0].waiting == {"billing": 5}


async def test_what_was_lost_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topology(_bus: BusConfig) -> list[Wanted]:
        return [replace(ORDERS, homes=f"3@{ONE}/!{TWO} {ONE} {ONE}")]

    monkeypatch.setattr(partitions, "topology", topology)
    rows = await rows_of(BUS, LISTED, "orders")
    assert [row.lost for row in rows] == [(f"1@{TWO}",), (), ()]


async def test_a_lost_home_is_abandoned_by_the_first_agent_which_is_asked_until_nothing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Mapping[int, str] | Exception] = [
        {0: "its next home prepares"},
        LinkLost(ONE, "connection refused"),
        {0: ""},
    ]

    async def abandon(_bus: BusConfig, first: ListedBroker, *_: Any, **__: Any) -> Any:
        assert first.broker.name == ONE
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(partitions, "abandon", abandon)
    token, backwards = Secret("t"), BrokerList(listed=LISTED.listed[::-1])
    assert await partitions._abandoned(BUS, backwards, "orders", TWO, 60, token) == {0: ""}
    answers[:] = [{0: "its next home prepares"}]
    assert any((await partitions._abandoned(BUS, LISTED, "orders", TWO, 0, token)).values())
    answers[:] = [LinkLost(ONE, "connection refused")]
    with pytest.raises(LinkLost):
        await partitions._abandoned(BUS, LISTED, "orders", TWO, 0, token)
