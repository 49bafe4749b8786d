"""An inventory that contradicts itself is refused whole, and every contradiction is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lb.inventory import parse
from messagebus.errors import ConfigError
from tests.support.balancer import BASE, inventory_values, mirrored_values

Values = dict[str, Any]


def told(values: Values) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(values, base=BASE)
    return str(refused.value)


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("name", "broker mb1 is there twice"),
        ("address", "10.0.1.1:5672 is used twice, by mb1 and mb2"),
        ("agent", "10.0.1.1:8081 is used twice, by mb1 and mb2"),
        ("check", "10.0.1.1:8082 is used twice, by mb1 and mb2"),
        ("management", "10.0.1.1:15672 is used twice, by mb1 and mb2"),
    ],
)
def test_two_brokers_share_nothing(key: str, fault: str) -> None:
    values = inventory_values()
    values["brokers"][1][key] = values["brokers"][0][key]
    assert told(values) == f"inventory: {fault}"


def test_a_broker_of_an_unknown_host_names_the_nearest() -> None:
    values = mirrored_values()
    values["hosts"].append({"name": "front1", "ssh": "front1.example"})
    values["brokers"][1]["host"] = "front"
    assert told(values) == "inventory: mb2: no host 'front'; did you mean 'front1'?"


def test_each_user_has_one_role() -> None:
    values = inventory_values()
    values["users"] = [{"name": "probe", "role": "agent", "password_file": "secrets/agent"}]
    assert told(values) == "inventory: user probe is there twice"


def _renamed(values: Values) -> None:
    values["hosts"][3]["name"] = "b1"


def _host(key: str) -> Callable[[Values], None]:
    def change(values: Values) -> None:
        values["hosts"][1][key] = values["hosts"][0][key]

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_renamed, "host b1 is there twice"),
        (_host("ssh"), "ssh address root@10.77.0.1 is there twice"),
        (_host("replication"), "replication address 10.78.0.1 is there twice"),
        (_host("management"), "management address 10.77.0.1 is there twice"),
    ],
)
def test_two_hosts_share_nothing(change: Callable[[Values], None], fault: str) -> None:
    values = mirrored_values()
    change(values)
    assert told(values) == f"inventory: {fault}"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": "mb7"}, "mirror mb7: no broker of that name; did you mean 'mb2'?"),
        ({"hosts": ["a1", "a9"]}, "mirror mb1: no host 'a9'"),
        ({"hosts": ["a1", "b1"]}, "mirror mb1: host b1 has no replication address"),
        (
            {"hosts": ["a1", "b2"]},
            "mirror mb1: host b2 has no management address, by which it is fenced",
        ),
        (
            {"hosts": ["a1", "b3"]},
            "mirror mb1: host b3 has 10.78.0.5 for management and replication, one network",
        ),
    ],
)
def test_a_mirror_is_of_a_broker_and_of_hosts_that_can_fence(changes: Values, fault: str) -> None:
    assert told(mirrored_values(**changes)) == f"inventory: {fault}"


def test_a_host_is_in_one_mirror_and_a_broker_and_an_address_have_one() -> None:
    values = mirrored_values(address="10.77.0.100/24")
    values["mirrors"].append(dict(values["mirrors"][0]))
    assert told(values) == (
        "inventory: address 10.77.0.100/24 is there twice; host a1 is in two mirrors; "
        "host a2 is in two mirrors; broker mb1 has two mirrors"
    )


def test_a_balancer_is_on_a_host_that_is_reached_as_root() -> None:
    values = mirrored_values()
    values["hosts"].append({"name": "front1", "ssh": "op@front1.example", "sudo": "yes"})
    values["balancer"]["host"] = "front1"
    assert told(values).endswith(
        "; balancer haproxy: who logs in on front1 is not root, which a balancer wants"
    )
