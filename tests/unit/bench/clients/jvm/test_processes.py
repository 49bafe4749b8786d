from __future__ import annotations

import pytest

from bench.clients.jvm import processes
from bench.clients.jvm.processes import Node, hosts, wait_until
from bench.errors import BenchError


def test_every_node_has_an_address_of_its_own_that_no_local_cluster_has() -> None:
    assert hosts("127.0.80", 3) == ["127.0.80.201", "127.0.80.202", "127.0.80.203"]
    assert hosts("127.0.80", processes.NODES_MAX)[-1] == "127.0.80.209"


def test_a_node_is_named_by_what_its_clients_connect_to() -> None:
    node = Node(2, "127.0.0.202", (9092, 9093), ("-version",))
    assert (node.name, node.broker) == ("node-2", "127.0.0.202:9092")


def test_what_never_comes_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "UP_WITHIN_S", 0.0)
    with pytest.raises(BenchError, match="not up within 0 s: not all ports answer"):
        wait_until(lambda: False, "not all ports answer")


def test_a_node_that_ends_meanwhile_is_told_at_once() -> None:
    def check() -> None:
        raise BenchError("node-1 ended by itself")

    with pytest.raises(BenchError, match="ended by itself"):
        wait_until(lambda: False, "anything", check)
