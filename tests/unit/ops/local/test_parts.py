from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ops.errors import LocalFault
from ops.local.layout import Layout, ServerChoice
from ops.local.parts import broker_argv, broker_environment, epmd_argv, part, part_names

LAYOUT = Layout(dir=Path("/c"), numbers=(1, 2))


def test_parts_start_in_this_order() -> None:
    assert part_names(LAYOUT) == ["epmd", "mb1", "mb2", "mb1-agent", "mb2-agent", "haproxy"]


def test_servers_start_last_and_postgresql_does_not_wait_for_its_clients_to_leave() -> None:
    layout = replace(
        LAYOUT, choices=(ServerChoice("redis", 6379), ServerChoice("postgresql", 5432))
    )
    assert part_names(layout)[-3:] == ["haproxy", "redis", "postgresql"]
    assert part(layout, "redis").argv[-1] == "/c/servers/redis/redis.conf"
    assert part(layout, "redis").stop is signal.SIGTERM
    assert part(layout, "postgresql").stop is signal.SIGINT
    assert part(layout, "postgresql").address == ("127.0.0.10", 5432)


def test_an_agent_is_the_command_of_the_wheel() -> None:
    agent = part(LAYOUT, "mb2-agent")
    config = "/c/nodes/mb2/agent.toml"
    assert agent.argv == [sys.executable, "-m", "messagebus", "-v", "agent", "--config", config]
    assert agent.address == ("127.0.0.12", 8081)


def test_haproxy_runs_as_master_and_worker() -> None:
    assert part(LAYOUT, "haproxy").argv == [
        *("/usr/sbin/haproxy", "-W"),
        *("-f", "/c/haproxy/haproxy.cfg"),
        *("-p", "/c/haproxy/master.pid"),
    ]


@pytest.mark.parametrize("name", ["mb3", "mb3-agent", "balancer", ""])
def test_what_is_not_there_is_told(name: str) -> None:
    with pytest.raises(LocalFault):
        part(LAYOUT, name)


NODE = Layout(dir=Path("/c"), numbers=(2,)).nodes[0]


def test_a_broker_is_started_in_the_foreground_under_its_own_name() -> None:
    assert broker_argv(NODE) == [
        "/usr/lib/rabbitmq/bin/rabbitmq-server",
        "-noinput",
        *("+S", "2:2", "+SDcpu", "2:2", "+SDio", "4"),
        *("+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"),
        *("-start_epmd", "false"),
        *("-sname", "mb2@localhost"),
        *("-kernel", "inet_dist_listen_min", "21002"),
        *("-kernel", "inet_dist_listen_max", "21002"),
        *("-kernel", "inet_dist_use_interface", "{127,0,0,1}"),
    ]


def test_a_broker_sees_nothing_of_the_users_own_settings() -> None:
    environment = broker_environment(NODE, epmd_port=21000)
    assert environment["RABBITMQ_CONF_ENV_FILE"] == "/c/nodes/mb2/none"
    assert environment["RABBITMQ_MNESIA_BASE"] == "/c/nodes/mb2/data"
    assert environment["HOME"] == "/c/nodes/mb2/home"
    assert environment["ERL_EPMD_PORT"] == "21000"
    assert environment["ERL_EPMD_ADDRESS"] == "127.0.0.1"


def test_epmd_stays_in_the_foreground_on_loopback() -> None:
    assert epmd_argv(port=4) == ["/usr/bin/epmd", "-address", "127.0.0.1", "-port", "4"]
    assert epmd_argv(["127.0.7.11"], port=4)[2] == "127.0.0.1,127.0.7.11"
