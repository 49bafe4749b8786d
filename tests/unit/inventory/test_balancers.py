"""Several balancers in one inventory, and every fault in them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from inventory.balancers import Timers
from inventory.inventory import parse
from lb.lint import faults
from messagebus.errors import ConfigError
from tests.support.balancer import BASE, inventory, inventory_values


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
        ({"config": "haproxy.cfg"}, "'haproxy.cfg' is on another host: an absolute path wanted"),
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
