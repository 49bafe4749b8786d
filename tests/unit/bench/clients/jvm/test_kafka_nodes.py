from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.clients.jvm.kafka_nodes import durability, in_sync, partitions, properties
from bench.load.profile import Profile


def profile(**system: Any) -> Profile:
    load = {"schedule": {"kind": "constant", "rate_per_s": 1}, "consumers": 3}
    return Profile.from_values(
        {"name": "x", "system": {"name": "kafka"} | system, "load": load}, "x"
    )


def read(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_a_node_is_broker_and_controller_and_knows_all_voters() -> None:
    hosts = ["127.0.0.201", "127.0.0.202"]
    found = read(properties(2, hosts, Path("/data"), "page-cache"))
    assert found["node.id"] == "2"
    assert found["controller.quorum.voters"] == "1@127.0.0.201:9093,2@127.0.0.202:9093"
    assert found["listeners"] == "CLIENT://127.0.0.202:9092,CONTROLLER://127.0.0.202:9093"
    assert found["log.dirs"] == "/data"


def test_fsync_flushes_every_message_and_page_cache_none() -> None:
    synced = read(properties(1, ["127.0.0.201"], Path("/data"), "fsync"))
    assert synced["log.flush.interval.messages"] == "1"
    kept = read(properties(1, ["127.0.0.201"], Path("/data"), "page-cache"))
    assert kept == {k: v for k, v in synced.items() if k != "log.flush.interval.messages"}


def test_a_confirm_needs_more_than_half_of_three_copies_at_most() -> None:
    assert [in_sync(nodes) for nodes in (1, 2, 3, 5)] == [1, 2, 2, 2]


def test_what_a_confirm_means_is_said_with_its_copies() -> None:
    assert "one broker" in durability(profile(brokers=1))
    assert "fsynced by 2 or more of 3 copies" in durability(profile(brokers=3))
    assert "not fsynced" in durability(profile(brokers=3, durability="page-cache"))


def test_there_is_a_partition_for_every_node_and_every_consumer() -> None:
    assert partitions(profile(brokers=1)) == 3
    assert partitions(profile(brokers=5)) == 5
