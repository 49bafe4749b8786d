from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ops.errors import LocalFault
from ops.local.layout import (
    BALANCERS_MAX,
    BLOCK_SIZE,
    NODES_MAX,
    Layout,
    ServerChoice,
    node_number,
)

DIR = Path("/tmp/cluster")


def layout(**changes: object) -> Layout:
    return Layout(**{"dir": DIR, "numbers": (1, 2, 3), **changes})  # type: ignore[arg-type]


def test_every_node_has_an_address_of_its_own_and_the_ports_of_a_real_host() -> None:
    assert [node.broker for node in layout().nodes] == [
        "127.0.0.11:5672",
        "127.0.0.12:5672",
        "127.0.0.13:5672",
    ]
    first = layout().node("mb1")
    assert (first.management, first.agent, first.check) == (
        "127.0.0.11:15672",
        "127.0.0.11:8081",
        "127.0.0.11:8082",
    )
    assert (layout().front.amqp, layout().front.list_address, layout().front.stats) == (
        "127.0.0.10:5672",
        "127.0.0.10:8081",
        "127.0.0.10:8404",
    )


def test_an_offset_moves_all_ports_together() -> None:
    plain, moved = layout(), layout(offset=2000)
    assert [(host, port + 2000) for host, port in plain.sockets] == list(moved.sockets)


def test_blocks_of_two_clusters_do_not_touch() -> None:
    last = layout(numbers=(NODES_MAX,)).nodes[0].distribution_port
    assert last < layout(block=1).epmd_port
    assert layout(block=1).epmd_port - layout().epmd_port == BLOCK_SIZE


def test_a_node_comes_and_goes() -> None:
    assert layout().with_node("mb4").numbers == (1, 2, 3, 4)
    assert layout().with_node("mb2").numbers == (1, 2, 3)
    assert layout().without_node("mb2").numbers == (1, 3)


def test_a_written_layout_is_read_back() -> None:
    wanted = layout(network="127.0.7", offset=1000, block=3, tls=True, root=Path("/r"), balancers=2)
    wanted = replace(wanted, choices=(ServerChoice("redis", 6379, "always"),))
    assert Layout.from_json(DIR, wanted.to_json()) == wanted


def test_a_server_has_a_folder_and_a_password_file_of_its_own() -> None:
    wanted = layout(choices=(ServerChoice("redis", 6380), ServerChoice("mariadb", 3307)))
    assert [(server.host, server.port, str(server.dir)) for server in wanted.servers] == [
        ("127.0.0.10", 6380, "/tmp/cluster/servers/redis"),
        ("127.0.0.10", 3307, "/tmp/cluster/servers/mariadb"),
    ]
    assert wanted.servers[0].password_file == DIR / "secrets" / "redis.password"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"numbers": [1], "colour": 1}', '{"numbers": 3}']
)
def test_a_damaged_state_file_is_told_in_one_line(text: str) -> None:
    with pytest.raises(LocalFault, match=r"cluster\.json is damaged"):
        Layout.from_json(DIR, text)


@pytest.mark.parametrize("network", ["10.0.0", "127.0", "127.0.0.1", "127.0.256", "127.0.x", ""])
def test_a_network_is_loopback(network: str) -> None:
    with pytest.raises(LocalFault, match="network"):
        layout(network=network)


@pytest.mark.parametrize("numbers", [(), (0,), (NODES_MAX + 1,)])
def test_the_number_of_brokers_has_bounds(numbers: tuple[int, ...]) -> None:
    with pytest.raises(LocalFault, match="brokers"):
        layout(numbers=numbers)


@pytest.mark.parametrize("name", ["mb", "mb0", "mb01", "mb100", "rabbit", "../mb1", "mb1-agent"])
def test_a_node_is_called_mb_and_a_number(name: str) -> None:
    with pytest.raises(LocalFault, match="are called"):
        node_number(name)


def test_an_unknown_node_is_told_with_those_that_there_are() -> None:
    with pytest.raises(LocalFault, match="no broker mb7 here; there are mb1, mb2, mb3"):
        layout().node("mb7")


def test_a_cluster_from_before_tls_has_none() -> None:
    assert not Layout.from_json(DIR, '{"numbers": [1]}').tls


def test_each_balancer_has_an_address_and_a_folder_of_its_own() -> None:
    assert [front.amqp for front in layout(balancers=2).fronts] == [
        "127.0.0.10:5672",
        "127.0.0.9:5672",
    ]
    assert [front.config for front in layout(balancers=2).fronts] == [
        DIR / "haproxy" / "haproxy.cfg",
        DIR / "haproxy2" / "haproxy.cfg",
    ]
    for count in (0, BALANCERS_MAX + 1):
        with pytest.raises(LocalFault, match="balancers"):
            layout(balancers=count)
