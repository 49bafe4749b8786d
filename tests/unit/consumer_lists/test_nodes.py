from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumer_lists import nodes
from consumer_lists.nodes import Cluster, Node
from inventory.inventory import parse
from messagebus.tls import TlsFiles
from tests.support.agents_http import AgentsHttp, cluster_of
from tests.support.balancer import BASE, inventory_values, mirrored_values

A, B, C = cluster_of(Path("/x"), ["a", "b", "c"]).nodes


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch) -> AgentsHttp:
    return AgentsHttp(monkeypatch)


def _clients(*seen: tuple[str, int, float]) -> str:
    return json.dumps(
        {
            "clients": [
                {"id": name, "subscription": "orders/billing", "applied": applied, "age_s": age_s}
                for name, applied, age_s in seen
            ]
        }
    )


def test_every_node_is_told_in_order_also_those_that_do_not_answer(http: AgentsHttp) -> None:
    http.answers = {
        "a:8081/consumer-list": "# generation: 4\nmb1\n",
        "c:8081/consumer-list": "<html>",
    }
    one, two, three = nodes.served([A, B, C])
    assert (one.node, one.generation, one.fault) == ("a", 4, "")
    assert (two.node, two.generation, two.fault) == ("b", 0, "Connection refused")
    assert three.fault.startswith("no list: line 1: ")


def test_an_agent_without_a_list_is_told_in_its_words(http: AgentsHttp) -> None:
    http.answers = {"a:8081/consumer-list": 503}
    assert nodes.served([A])[0].fault == "503 no list"


def test_of_a_client_the_newest_word_counts(http: AgentsHttp) -> None:
    http.answers = {
        "a:8081/clients": _clients(("one", 3, 40.0), ("two", 4, 1.0)),
        "b:8081/clients": _clients(("one", 4, 2.0), ("two", 3, 30.0)),
    }
    known, silent = nodes.clients([A, B, C])
    assert [(client.id, client.applied) for client in known] == [("one", 4), ("two", 4)]
    assert silent == {"c": "Connection refused"}


def test_words_of_about_the_same_age_are_told_apart_by_the_generation(http: AgentsHttp) -> None:
    """A client that was answered by one agent asks another at once, with the new generation."""
    http.answers = {
        "a:8081/clients": _clients(("one", 3, 0.201), ("two", 2, 0.0)),
        "b:8081/clients": _clients(("one", 4, 0.204), ("two", 9, nodes.ANSWER_WITHIN_S + 0.1)),
    }
    known, _ = nodes.clients([A, B])
    assert [(client.id, client.applied) for client in known] == [("one", 4), ("two", 2)]


def test_a_client_that_left_an_agent_is_not_held_against_by_those_it_asked_before(
    http: AgentsHttp,
) -> None:
    """Unless it waits at one of them, or asked there since."""

    def known_to(agent: str, *clients: dict[str, object], left: object = ()) -> None:
        seen = [
            {"subscription": "orders/billing", "applied": 3, "age_s": 50.0, "waits": False, **each}
            for each in clients
        ]
        http.answers[f"{agent}:8081/clients"] = json.dumps({"clients": seen, "left": left})

    left = [
        {"id": name, "subscription": "orders/billing", "age_s": 20.0}
        for name in ("ended", "shared", "moved")
    ]
    known_to("a", left=left)
    known_to("b", {"id": "ended"}, {"id": "shared", "waits": True}, {"id": "moved", "age_s": 19.0})
    known_to("c", {"id": "other"})
    known, _ = nodes.clients([A, B, C])
    assert [client.id for client in known] == ["moved", "other", "shared"]


@pytest.mark.parametrize("answer", ["{}", "[]", "<html>", '{"clients": [{"id": "x"}]}', "null"])
def test_an_answer_that_makes_no_sense_is_no_client(http: AgentsHttp, answer: str) -> None:
    http.answers = {"a:8081/clients": answer}
    known, silent = nodes.clients([A])
    assert known == []
    assert list(silent) == ["a"]


def test_nobody_to_ask_is_no_answer() -> None:
    assert nodes.served([]) == []
    assert nodes.clients([]) == ([], {})


def test_a_cluster_is_made_of_what_the_inventory_says() -> None:
    cluster = Cluster.of(parse(inventory_values(brokers=1), base=BASE))
    assert (cluster.name, cluster.list_file) == ("test", BASE / "lists/test.txt")
    assert cluster.nodes == (
        Node(name="mb1", agent="10.0.1.1:8081", list_file=BASE / "nodes/mb1/list.txt"),
    )


def test_where_agents_speak_tls_they_are_asked_with_certificates() -> None:
    values = inventory_values(brokers=1)
    files = {"ca_file": "ca.pem", "cert_file": "o.pem", "key_file": "o.key"}
    values["tls"] = {**files, "server_name": "bus", "check_cert_file": "check.pem"}
    (node,) = Cluster.of(parse(values, base=BASE)).nodes
    assert node.agent_url == "https://10.0.1.1:8081"
    assert node.tls == TlsFiles(**{key: f"{BASE}/{name}" for key, name in files.items()})


@pytest.mark.parametrize(
    ("changes", "hosts"),
    [
        ({}, ((), ())),
        ({"supervisor": "systemd"}, (("10.0.1.1",), ("10.0.1.2",))),
    ],
)
def test_where_a_node_s_list_is(changes: dict[str, str], hosts: tuple[Any, ...]) -> None:
    values = inventory_values() | changes
    values["hosts"] = [{"name": "a1", "ssh": "root@a1:2222"}]
    assert tuple(node.hosts for node in Cluster.of(parse(values, base=BASE)).nodes) == hosts
    values["brokers"][0]["host"] = "a1"
    assert Cluster.of(parse(values, base=BASE)).nodes[0].hosts == ("root@a1:2222",)


def test_the_list_of_a_mirrored_node_is_on_both_hosts() -> None:
    values = mirrored_values()
    values["hosts"][1] |= {"ssh": "op@a2", "sudo": "yes"}
    node = Cluster.of(parse(values, base=BASE)).nodes[0]
    assert node.hosts == ("root@10.77.0.1", "op@a2")
    assert node.sudo == {"op@a2"}
