"""Balancers, mirrors, users and limits of an inventory, and every fault in them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from inventory.inventory import Inventory, parse
from inventory.tables import Provision, Timers, User
from lb.lint import faults
from messagebus.errors import ConfigError
from tests.support.balancer import BASE, inventory, inventory_values, mirrored_values


def several(**second: Any) -> dict[str, Any]:
    """Return two balancers, of which the second is on another host."""
    values = inventory_values()
    values["hosts"] = [{"name": "front2", "ssh": "root@10.0.0.2"}]
    own = {key: values["balancer"].pop(key) for key in OWN}
    there = {
        "name": "lb2",
        "host": "front2",
        "amqp": "10.0.0.2:5672",
        "list": "10.0.0.2:8081",
        "stats": "10.0.0.2:8404",
        "config": "/etc/haproxy/haproxy.cfg",
        "socket": "/run/haproxy/admin.sock",
        "state_file": "/var/lib/haproxy/state",
        "master_pid_file": "/run/haproxy.pid",
    }
    values["balancers"] = [{"name": "lb1", **own}, there | second]
    return values


OWN = ("amqp", "list", "stats", "config", "socket", "state_file", "master_pid_file")


def test_several_balancers_share_what_stands_in_one_table() -> None:
    read = parse(several(sessions_max=99), base=BASE)
    assert [each.name for each in read.balancers] == ["lb1", "lb2"]
    assert [each.host for each in read.balancers] == ["", "front2"]
    assert [each.probe_user for each in read.balancers] == ["probe", "probe"]
    assert [each.sessions_max for each in read.balancers] == [8_000, 99]
    assert [each.server_sessions_max for each in read.balancers] == [8_000, 99]
    assert read.balancer.name == "lb1"
    assert read.at(read.find_balancer("lb2")).balancers == (read.balancers[1],)
    with pytest.raises(ConfigError, match=r"no balancer 'lb3'.*did you mean 'lb"):
        read.find_balancer("lb3")


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ({"name": "lb1"}, "balancer lb1 is there twice"),
        ({"host": "front9"}, "balancer lb2: no host 'front9'; did you mean 'front2'?"),
        (
            {"config": "haproxy.cfg"},
            "'haproxy.cfg' is on another host: it must be an absolute path",
        ),
        ({"amqp": "10.0.0.1:5672"}, "balancer address 10.0.0.1:5672 is there twice"),
        ({"host": "", "socket": "haproxy/admin.sock"}, "balancers[1].host: '' is not of the form"),
        ({"sokcet": "/x"}, "balancers[1].sokcet: unknown key; did you mean 'socket'?"),
    ],
)
def test_what_is_wrong_with_one_of_several_balancers_is_told(
    second: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as told:
        parse(several(**second), base=BASE)
    assert fault in str(told.value)


def test_two_balancers_of_this_machine_have_files_of_their_own() -> None:
    values = several()
    del values["balancers"][1]["host"]
    values["balancers"][1]["socket"] = "haproxy/admin.sock"
    with pytest.raises(ConfigError, match=r"admin socket .*/haproxy/admin.sock is there twice"):
        parse(values, base=BASE)


def test_the_defaults_go_together() -> None:
    assert faults(inventory()) == []


def test_every_timer_is_explained() -> None:
    told = Timers.__doc__ or ""
    assert all(field.name in told for field in dataclasses.fields(Timers))


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
        (
            {"hosts": ["a1", "a1"]},
            "mirrors[0].hosts: ['a1', 'a1']; two different hosts are required",
        ),
        ({"hosts": ["a1"]}, "two different hosts are required"),
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


def read(**tables: Any) -> Inventory:
    return parse(inventory_values() | tables, base=BASE)


def told(**tables: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        read(**tables)
    return str(refused.value)


FINE = {"name": "shop", "role": "publisher", "password_file": "secrets/shop"}
TLS = {
    "ca_file": "ca.pem",
    "cert_file": "o.pem",
    "key_file": "o.key",
    "server_name": "bus.example",
    "check_cert_file": "check.pem",
}


def test_a_user_has_a_role_and_its_password_in_a_file() -> None:
    assert read(users=[FINE]).users == (
        User(name="shop", role="publisher", password_file=Path(BASE, "secrets/shop")),
    )


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"role": "king"}, "users[0].role: 'king'; allowed: agent, application,"),
        ({"password": "x"}, "users[0].password: unknown key; did you mean 'password_file'?"),
        ({"name": "a b"}, "users[0].name: 'a b' is not of the form"),
    ],
)
def test_what_is_wrong_with_a_user_is_told(values: dict[str, Any], fault: str) -> None:
    assert fault in told(users=[FINE | values])


def test_limits_have_defaults() -> None:
    assert read(provision={"disk_free_mb": 5}).provision == Provision(disk_free_mb=5)
    assert read(provision={"old_publishers": True}).provision.old_publishers
    assert read().provision == Provision()


def test_tls_wants_certificates_of_brokers_where_hosts_are_provisioned() -> None:
    assert read(tls=TLS).provision.tls_dir is None
    assert read(tls=TLS, provision={"tls_dir": "x"}).provision.tls_dir == BASE / "x"
    assert told(tls=TLS, provision={}) == "inventory: provision.tls_dir: missing"


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"old_publishers": 1}, "provision.old_publishers: expected bool, not int"),
        ({"disk_free": 5}, "provision.disk_free: unknown key; did you mean 'disk_free_mb'?"),
        ({"tls_dir": "x"}, "provision.tls_dir: unknown key without [tls]"),
    ],
)
def test_what_is_wrong_with_limits_is_told(values: dict[str, Any], fault: str) -> None:
    assert told(provision=values) == f"inventory: {fault}"


@pytest.mark.parametrize("sudo", ["maybe", True, ["no"]])
def test_who_may_become_root_is_said_by_yes_or_no(sudo: object) -> None:
    hosts = [{"name": "a1", "ssh": "a1", "sudo": sudo}]
    assert told(hosts=hosts) == f"inventory: hosts[0].sudo: {sudo!r}; allowed: no, yes"
