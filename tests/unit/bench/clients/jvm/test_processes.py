from __future__ import annotations

from bench.clients.jvm import processes
from bench.clients.jvm.processes import Node, hosts


def test_every_node_has_an_address_of_its_own_that_no_local_cluster_has() -> None:
    assert hosts("127.0.80", 3) == ["127.0.80.201", "127.0.80.202", "127.0.80.203"]
    assert hosts("127.0.80", processes.NODES_MAX)[-1] == "127.0.80.209"


def test_a_node_is_named_by_what_its_clients_connect_to() -> None:
    node = Node(2, "127.0.0.202", (9092, 9093), ("-version",))
    assert (node.name, node.broker) == ("node-2", "127.0.0.202:9092")
