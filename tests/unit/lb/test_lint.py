from __future__ import annotations

import dataclasses

import pytest

from lb.lint import faults
from messagebus.secret import Secret
from tests.support.balancer import inventory


@pytest.mark.parametrize(
    ("timers", "told"),
    [
        ({"client_s": 120}, "client_s 120: more than twice heartbeat_s"),
        ({"server_s": 60}, "server_s 60"),
        ({"heartbeat_s": 90}, "server_s 180"),
        ({"list_server_s": 60}, "waiting fetches are cut"),
        ({"connect_ms": 500}, "connect_ms 500: less than 500"),
        ({"check_fast_inter_ms": 1001}, "check_fast_inter_ms 1001"),
        ({"agent_inter_ms": 2000}, "a drain is seen late"),
        ({"hard_stop_s": 720}, "a reload cuts publishers"),
    ],
)
def test_a_time_that_cuts_healthy_clients_is_refused(timers: dict[str, int], told: str) -> None:
    assert any(told in fault for fault in faults(inventory(timers=timers)))


@pytest.mark.parametrize("heartbeat_s", [1, 10, 89])
def test_anything_above_twice_the_heartbeat_is_good(heartbeat_s: int) -> None:
    limit = 2 * heartbeat_s
    good = {"heartbeat_s": heartbeat_s, "client_s": limit + 1, "server_s": limit + 1}
    assert faults(inventory(timers=good)) == []
    assert len(faults(inventory(timers={**good, "client_s": limit, "server_s": limit}))) == 2


def test_no_broker_is_a_fault() -> None:
    assert faults(inventory(0)) == ["no broker in the inventory"]


def test_a_socket_path_that_haproxy_cannot_bind_is_a_fault() -> None:
    read = inventory()
    socket = read.balancer.socket.parent / ("x" * 98)
    moved = read.at(dataclasses.replace(read.balancer, socket=socket))
    assert "at most 97 bytes" in faults(moved)[0]


def test_one_address_for_two_services_is_a_fault() -> None:
    read = inventory()
    same = dataclasses.replace(read.balancer, stats=read.balancer.amqp)
    assert faults(read.at(same)) != []


def test_the_administrator_is_no_probe() -> None:
    read = inventory()
    same = dataclasses.replace(read.balancer, probe_user=read.admin_user)
    assert "administrator" in faults(read.at(same))[0]


def test_an_empty_password_is_a_fault() -> None:
    read = inventory()
    empty = dataclasses.replace(read.balancer, probe_password=Secret(""))
    assert "is empty" in faults(read.at(empty))[0]


def test_one_broker_takes_no_more_than_there_are_in_all() -> None:
    read = inventory()
    many = dataclasses.replace(read.balancer, server_sessions_max=8_001)
    assert "not above sessions_max (8000)" in faults(read.at(many))[0]


def test_all_balancers_together_do_not_swamp_a_broker() -> None:
    read = inventory()
    eight = tuple(dataclasses.replace(read.balancer, name=f"lb{n}") for n in range(2, 9))
    assert (
        "64000 from 8 balancers together"
        in faults(dataclasses.replace(read, balancers=(read.balancer, *eight)))[0]
    )


def test_a_fault_of_one_of_several_balancers_names_it() -> None:
    read = inventory()
    second = dataclasses.replace(read.balancer, name="lb2", probe_user=read.admin_user)
    (fault,) = faults(dataclasses.replace(read, balancers=(read.balancer, second)))
    assert fault.startswith("lb2: probe_user is the administrator")
