"""State and runtime socket of HAProxy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from haproxyadmin import haproxy
from haproxyadmin.exceptions import CommandFailed

from inventory.inventory import Address
from lb import runtime
from lb.errors import BalancerUnreachable, LbError
from lb.state import cold, rows, warm
from tests.support.balancer import inventory

SOCKET = Path("/somewhere/admin.sock")
INFO = ["Name: HAProxy", "Version: 2.6.12", "Pid: 4711", "Uptime_sec: 12", "description: marker"]
STATES = [
    "1",
    "# be_id be_name srv_id srv_name ...",
    "3 mb_brokers 1 mb1 10.0.1.1 2 0 100 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - 10.0.1.1 8082",
    "3 mb_brokers 2 mb2 10.0.1.2 0 8 100 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - 10.0.1.2 8082",
]
HEADS = (
    "# pxname,svname,qcur,scur,stot,status,weight,lastchg,check_status,last_chk,agent_status,"
    "last_agt,addr,"
)
STATS = [
    HEADS,
    "mb_amqp,FRONTEND,,7,9,OPEN,,,,,,,,",
    "mb_brokers,mb1,0,7,9,UP 1/2,100,5,L7OK,(tcp-check),CHECKED,,10.0.1.1:5672,",
    'mb_brokers,mb2,1,0,0,DOWN (agent),100,6,L7RSP,"the gate, shut",L4CON,refused,10.0.1.2:5672,',
    "mb_brokers,BACKEND,0,7,9,UP,100,5,,,,,,",
    "mb_agents,mb1,0,0,0,UP,1,5,L7OK,,,,10.0.1.1:8081,",
]


class FakeServer:
    def __init__(self) -> None:
        self.orders: list[object] = []

    def setstate(self, state: str) -> bool:
        self.orders.append(state)
        return True

    def setweight(self, weight: int) -> bool:
        if weight == 13:
            raise CommandFailed("unlucky")
        self.orders.append(weight)
        return True


class FakeHAProxy:
    """HAProxy of one process, as haproxyadmin would give it."""

    mb1 = FakeServer()

    def __init__(self, **_: object) -> None: ...

    def command(self, command: str) -> list[tuple[int, list[str]]]:
        answers = {"show info": INFO, "show servers state": STATES, "show stat": STATS}
        return [(1, answers[command])]

    def server(self, name: str, backend: str) -> list[FakeServer]:
        if (name, backend) != ("mb1", "mb_brokers"):
            raise ValueError(f"could not find server {name}")
        return [self.mb1]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    monkeypatch.setattr(haproxy, "HAProxy", FakeHAProxy)
    monkeypatch.setattr(FakeHAProxy, "mb1", FakeServer())
    return FakeHAProxy.mb1


def test_the_process_that_serves() -> None:
    assert runtime.process(SOCKET) == runtime.Process(pid=4711, uptime_s=12, description="marker")


def test_brokers_alone_are_servers() -> None:
    assert list(runtime.servers(SOCKET)) == ["mb1", "mb2"]


def test_a_server_has_verdict_reasons_and_counts() -> None:
    servers = runtime.servers(SOCKET)
    one, two = servers["mb1"], servers["mb2"]
    assert (one.verdict, one.drained, one.sessions, one.agent) == ("up", False, 7, "says ready")
    assert (two.verdict, two.drained, two.queue) == ("down", True, 1)
    assert two.agent == "L4CON refused"
    assert (two.check, two.changed_s) == ("L7RSP the gate, shut", 6)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("UP", "up"),
        ("UP 1/2", "up"),
        ("DRAIN", "drain"),
        ("DRAIN (agent)", "drain"),
        ("MAINT", "maint"),
        ("MAINT (via mb1)", "maint"),
        ("DOWN", "down"),
        ("DOWN 1/2", "down"),
        ("NOLB", "drain"),
        ("no check", "up"),
        ("", "down"),
    ],
)
def test_haproxys_status_in_one_word(
    status: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"mb_brokers,mb1,0,7,9,{status},100,5,L7OK,,CHECKED,,10.0.1.1:5672,"
    monkeypatch.setitem(globals(), "STATS", [HEADS, line])
    assert runtime.servers(SOCKET)["mb1"].verdict == verdict


def test_orders_go_to_the_named_server(fake: FakeServer) -> None:
    runtime.maint(SOCKET, "mb1", on=False)
    runtime.set_weight(SOCKET, "mb1", 40)
    assert fake.orders == ["ready", 40]


def test_a_broker_whose_agent_is_dead_is_taken_out(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "mb_brokers,mb1,0,7,9,UP,100,5,L7OK,,L4CON,refused,10.0.1.1:5672,"
    monkeypatch.setitem(globals(), "STATS", [HEADS, line])
    runtime.maint(SOCKET, "mb1", on=True)
    assert fake.orders == ["maint"]


@pytest.mark.parametrize(
    ("order", "told"),
    [
        (lambda: runtime.maint(SOCKET, "mb9", on=True), "knows no server 'mb9'"),
        (lambda: runtime.maint(SOCKET, "mb1", on=True), "agent of mb1 answers and would undo it"),
        (lambda: runtime.set_weight(SOCKET, "mb1", 256), "weight 256: 0 to 255"),
        (lambda: runtime.set_weight(SOCKET, "mb1", 13), "HAProxy refuses: unlucky"),
    ],
)
def test_an_order_that_fails_is_told(order: Callable[[], None], told: str) -> None:
    with pytest.raises(LbError, match=told):
        order()


@pytest.mark.parametrize("fault", [FileNotFoundError("no file"), ValueError("no socket")])
def test_nobody_there_is_told_with_the_socket(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise fault

    monkeypatch.setattr(haproxy, "HAProxy", refuse)
    with pytest.raises(BalancerUnreachable, match=r"/somewhere/admin\.sock"):
        runtime.process(SOCKET)


def test_a_frozen_process_is_told_as_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: Any) -> None:
        raise ValueError("UNIX socket file was not set")

    monkeypatch.setattr(haproxy, "HAProxy", refuse)
    with pytest.raises(BalancerUnreachable, match="ended, or is frozen: no answer in 2 s"):
        runtime.process(SOCKET)


# Written by HAProxy 2.6.12: mb1 up, mb2 drained, mb7 of no inventory; and the agents' backend.
SAVED = """\
1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight \
srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state \
srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl \
srv_check_port srv_check_addr srv_agent_addr srv_agent_port
3 mb_brokers 1 mb1 10.0.1.1 2 0 100 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - 10.0.1.1 8082
3 mb_brokers 2 mb2 10.0.1.2 2 8 40 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - 10.0.1.2 8082
3 mb_brokers 3 mb7 10.0.1.7 2 0 100 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - 10.0.1.7 8082
5 mb_agents 1 mb1 10.0.1.1 0 0 1 1 3 8 2 0 6 0 0 0 - 8081 - 0 0 - - 0
"""
UP, DOWN = "2", "0"


def _states(text: str) -> dict[str, tuple[str, int]]:
    """Return name -> (operational state, administrative state)."""
    return {name: (row.text.split()[5], row.admin_state) for name, row in rows(text).items()}


def test_rows_are_those_of_the_brokers() -> None:
    read = rows(SAVED)
    assert list(read) == ["mb1", "mb2", "mb7"]
    assert read["mb2"].address == Address("10.0.1.2", 5672)


def test_over_a_reload_brokers_stay_as_they_are() -> None:
    assert _states(warm(SAVED, inventory(2).brokers)) == {"mb1": (UP, 0), "mb2": (UP, 8)}
    assert rows(SAVED)["mb2"].text in warm(SAVED, inventory(2).brokers)


def test_a_new_broker_is_down_until_its_first_check() -> None:
    assert _states(warm(SAVED, inventory(3).brokers))["mb3"] == (DOWN, 0)


def test_a_broker_that_moved_is_down_until_its_first_check() -> None:
    node = dataclasses.replace(inventory().brokers[0], address=Address("10.0.9.9", 5672))
    assert _states(warm(SAVED, [node])) == {"mb1": (DOWN, 0)}
    node = dataclasses.replace(inventory().brokers[0], address=Address("10.0.1.1", 5673))
    assert _states(warm(SAVED, [node])) == {"mb1": (DOWN, 0)}


def test_a_host_name_is_taken_to_mean_the_same_host() -> None:
    node = dataclasses.replace(inventory().brokers[0], address=Address("mb1.example", 5672))
    assert _states(warm(SAVED, [node])) == {"mb1": (UP, 0)}


def test_a_start_from_nothing_takes_nobody_as_up() -> None:
    assert _states(cold("", inventory(2).brokers)) == {"mb1": (DOWN, 0), "mb2": (DOWN, 0)}


def test_a_start_from_nothing_keeps_drains() -> None:
    assert _states(cold(SAVED, inventory(2).brokers)) == {"mb1": (DOWN, 0), "mb2": (DOWN, 8)}


def test_what_was_written_is_read_again() -> None:
    once = cold(SAVED, inventory(3).brokers)
    assert warm(once, inventory(3).brokers) == once


def test_a_broken_file_is_no_state() -> None:
    assert rows("1\n3 mb_brokers 1 mb1\n\x00 garbage " + "x " * 40) == {}
