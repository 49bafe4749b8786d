from __future__ import annotations

from typing import Any

import pytest

from bench.clients.jvm.kafka import partitions_of, producer_options
from bench.clients.jvm.kafka_nodes import SERVERS
from bench.harness.interface import Where
from bench.load.profile import Profile

WHERE = Where("publisher-0", "load0", "", {SERVERS: "127.0.0.201:9092"})


def profile(topics: int = 1, **load: Any) -> Profile:
    load = {"schedule": {"kind": "constant", "rate_per_s": 1}} | load
    values = {
        "name": "x",
        "system": {"name": "kafka"},
        "load": load,
        "messages": {"topics": topics},
    }
    return Profile.from_values(values, "x")


def test_a_confirm_is_of_all_copies_and_a_retry_doubles_nothing() -> None:
    options = producer_options(profile(), WHERE)
    assert (options["acks"], options["enable.idempotence"]) == ("all", True)
    assert options["bootstrap.servers"] == "127.0.0.201:9092"


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
