from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.clients.kafka import (
    SERVERS,
    durability,
    in_sync,
    options,
    parse,
    partitions,
    partitions_of,
    producer_options,
    properties,
    started,
)
from bench.errors import BenchError, InputInvalid
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


def test_there_is_a_partition_for_every_node_and_every_consumer() -> None:
    assert partitions(of_system(brokers=1)) == 3
    assert partitions(of_system(brokers=5)) == 5


WHERE = Where("publisher-0", "load0", "", {SERVERS: "127.0.0.201:9092"})


def profile(topics: int = 1, **load: Any) -> Profile:
    return profile_with(load, system={"name": "kafka"}, messages={"topics": topics})


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


SAID = """\
250 records sent, 49.8 records/sec (0.05 MB/sec), 9.1 ms avg latency, 301.0 ms max latency.
400 records sent, 49.962528 records/sec (0.05 MB/sec), 7.61 ms avg latency, 301.00 ms max latency, \
6 ms 50th, 12 ms 95th, 40 ms 99th, 301 ms 99.9th.
"""


def of_java(consumers: int = 0) -> Profile:
    time = {"warm_up_s": 2, "measured_s": 8}
    return profile_with({"consumers": consumers}, 50, system={"name": "kafka-java"}, time=time)


def test_its_last_line_is_read() -> None:
    rate, percentiles = parse(SAID)
    assert rate == pytest.approx(49.96, abs=0.01)
    assert percentiles == {"p50": 6, "p95": 12, "p99": 40, "p99.9": 301}


def test_without_a_last_line_there_is_no_result() -> None:
    with pytest.raises(BenchError, match="no total"):
        parse(SAID.splitlines()[0])


def test_its_command_line_has_the_load_of_the_profile() -> None:
    found = options(of_java(), "127.0.0.201:9092")
    assert found[found.index("--throughput") + 1] == "50"
    assert found[found.index("--num-records") + 1] == "500"
    assert {"bootstrap.servers=127.0.0.201:9092", "acks=all"} <= set(found)


def test_a_load_that_it_cannot_make_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputInvalid, match=r"load\.consumers = 0"):
        started(of_java(consumers=1), "127.0.0", print).__enter__()
