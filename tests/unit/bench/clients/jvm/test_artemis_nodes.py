from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.clients.jvm.artemis_nodes import broker_xml, durability
from bench.load.profile import Profile

CORE = "{urn:activemq:core}"
HOSTS = ["127.0.0.201", "127.0.0.202"]


def profile(**system: Any) -> Profile:
    return Profile.from_values(
        {
            "name": "x",
            "system": {"name": "artemis", "brokers": 2} | system,
            "load": {
                "schedule": {"kind": "constant", "rate_per_s": 1},
                "publishers": 2,
                "consumers": 4,
            },
            "messages": {"topics": 2, "subscriptions": 2},
        },
        "x",
    )


def core(number: int = 1, **system: Any) -> ElementTree.Element:
    text = broker_xml(number, HOSTS, Path("/own"), profile(**system))
    found = ElementTree.fromstring(text).find(f"{CORE}core")
    assert found is not None
    return found


def test_every_topic_is_an_address_with_a_queue_for_every_subscription() -> None:
    addresses = core().findall(f"{CORE}addresses/{CORE}address")
    queues = {
        each.get("name"): [queue.get("name") for queue in each.iter(f"{CORE}queue")]
        for each in addresses
    }
    assert queues == {
        "load0": ["load0.sink0", "load0.sink1"],
        "load1": ["load1.sink0", "load1.sink1"],
    }


def test_all_it_writes_is_below_its_own_folder() -> None:
    folders = [each.text or "" for each in core() if each.tag.endswith("-directory")]
    assert len(folders) == 4
    assert all(each.startswith("/own/") for each in folders)


def test_durability_decides_whether_the_journal_is_synced_and_is_said() -> None:
    for level, syncs in (("fsync", "true"), ("page-cache", "false")):
        assert core(durability=level).findtext(f"{CORE}journal-datasync") == syncs
    assert durability(profile()).startswith("fsynced by one broker")
    assert "not fsynced" in durability(profile(durability="page-cache"))


def test_nodes_of_a_cluster_know_the_others_and_standalone_nodes_nobody() -> None:
    assert core().find(f"{CORE}cluster-connections") is None
    found = core(2, name="artemis-cluster")
    hosts = [each.text for each in found.findall(f"{CORE}connectors/{CORE}connector")]
    assert hosts == ["tcp://127.0.0.201:61616", "tcp://127.0.0.202:61616"]
    (connection,) = found.iter(f"{CORE}cluster-connection")
    own = connection.findtext(f"{CORE}connector-ref")
    others = [each.text for each in connection.iter(f"{CORE}connector-ref")]
    assert own == "node-2"
    assert others == ["node-2", "node-1"]
