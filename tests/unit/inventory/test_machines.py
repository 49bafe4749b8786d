from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inventory.inventory import parse
from inventory.machines import Provision, User, read_provision, read_user
from inventory.tables import Table
from messagebus.errors import ConfigError
from tests.support.balancer import BASE, mirrored_values


def test_a_mirror_names_its_broker_and_two_hosts() -> None:
    read = parse(mirrored_values(), base=BASE)
    mirror = read.mirror("mb1")
    assert mirror.hosts == ("a1", "a2")
    assert (mirror.address, mirror.resync_rate) == ("", "100M")
    assert read.host("a2").ssh == "10.77.0.2:2222"
    assert (read.find("mb1").host, read.find("mb2").host) == ("a1", "")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"hosts": ["a1", "a1"]}, "mirrors[0].hosts: ['a1', 'a1']; 2 different ones wanted"),
        ({"hosts": ["a1"]}, "2 different ones wanted"),
        ({"address": "10.77.0.9"}, "mirrors[0].address: '10.77.0.9' is not of the form"),
        ({"resync_rate": "fast"}, "mirrors[0].resync_rate: 'fast' is not of the form"),
        ({"device": "drbd0"}, "mirrors[0].device: 'drbd0' is not of the form"),
        ({"port": 0}, "mirrors[0].port: 0 is not a whole number"),
        ({"disks": "/dev/vdb"}, "mirrors[0].disks: unknown key; did you mean 'disk'?"),
    ],
)
def test_a_wrong_mirror_is_told(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse(mirrored_values(**changes), base=BASE)
    assert fault in str(told.value)


def table(values: dict[str, Any], faults: list[str]) -> Table:
    return Table(values, "", Path("/inv"), faults)


def test_a_user_has_a_role_and_its_password_in_a_file() -> None:
    faults: list[str] = []
    values = {"name": "shop", "role": "publisher", "password_file": "secrets/shop"}
    assert read_user(table(values, faults)) == User(
        name="shop", role="publisher", password_file=Path("/inv/secrets/shop")
    )
    assert faults == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"role": "king"}, "role: 'king'; allowed: agent, application,"),
        ({"password": "x"}, "password: unknown key; did you mean 'password_file'?"),
        ({"name": "a b"}, "name: 'a b' is not of the form"),
    ],
)
def test_what_is_wrong_with_a_user_is_told(values: dict[str, Any], told: str) -> None:
    faults: list[str] = []
    fine = {"name": "shop", "role": "publisher", "password_file": "x"}
    read_user(table({**fine, **values}, faults))
    assert any(told in fault for fault in faults), faults


def test_limits_have_defaults_and_tls_wants_certificates() -> None:
    faults: list[str] = []
    assert read_provision(table({"disk_free_mb": 5}, faults), tls=False) == Provision(
        disk_free_mb=5
    )
    assert read_provision(table({"old_publishers": True}, faults), tls=False).old_publishers
    assert faults == []
    assert not read_provision(table({"old_publishers": 1}, faults), tls=False).old_publishers
    assert faults.pop() == "old_publishers: bool wanted, not int"
    read_provision(table({}, faults), tls=True)
    assert faults == ["tls_dir: missing"]
    faults.clear()
    read_provision(table({"disk_free": 5, "tls_dir": "x"}, faults), tls=False)
    assert len(faults) == 2
