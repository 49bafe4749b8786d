from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.clients.kafka import (
    SERVERS,
    durability,
    partitions_of,
    producer_options,
    properties,
)
from bench.clients.nodes import in_sync
from bench.harness.interface import Where
from bench.load.profile import Profile
from tests.support.results import profile_with


def of_system(**system: Any) -> Profile:
    return profile_with({"consumers": 3}, system={"name": "kafka"} | system)


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_a_node_is_broker_and_controller_and_knows_all_voters() -> None:
    hosts = ["127.0.0.201", "127.0.0.202"]
    found = settings(properties(2, hosts, Path("/data"), "page-cache"))
    assert found["node.id"] == "2"
    assert found["controller.quorum.voters"] == "1@127.0.0.201:9093,2@127.0.0.202:9093"
    assert found["listeners"] == "CLIENT://127.0.0.202:9092,CONTROLLER://127.0.0.202:9093"
    assert found["log.dirs"] == "/data"


def test_fsync_flushes_every_message_and_page_cache_none() -> None:
    synced = settings(properties(1, ["127.0.0.201"], Path("/data"), "fsync"))
    assert synced["log.flush.interval.messages"] == "1"
    kept = settings(properties(1, ["127.0.0.201"], Path("/data"), "page-cache"))
    assert kept == {k: v for k, v in synced.items() if k != "log.flush.interval.messages"}


def test_a_confirm_needs_more_than_half_of_three_copies_at_most() -> None:
    assert [in_sync(nodes) for nodes in (1, 2, 3, 5)] == [1, 2, 2, 2]


def test_what_a_confirm_means_is_said_with_its_copies() -> None:
    assert "one broker" in durability(of_system(brokers=1))
    assert "fsynced by 2 or more of 3 copies" in durability(of_system(brokers=3))
    assert "not fsynced" in durability(of_system(brokers=3, durability="page-cache"))


WHERE = Where("publisher-0", "load0", "", {SERVERS: "127.0.0.201:9092"})


def profile(topics: int = 1, **load: Any) -> Profile:
    return profile_with(load, system={"name": "kafka"}, messages={"topics": topics})


def test_it_batches_as_it_does_by_itself_unless_the_profile_says_how_many() -> None:
    assert "batch.num.messages" not in producer_options(profile(), WHERE)
    assert producer_options(profile(batch=50), WHERE)["batch.num.messages"] == 50


@pytest.mark.parametrize(("consumers", "topics"), [(1, 1), (3, 1), (4, 2), (5, 2), (3, 3)])
def test_every_partition_has_one_consumer_of_a_subscription(consumers: int, topics: int) -> None:
    wanted = profile(topics, publishers=topics, consumers=consumers)
    for topic in range(topics):
        own = range(topic, consumers, topics)
        found = [each for number in own for each in partitions_of(wanted, number, 6)]
        assert sorted(found) == list(range(6))
