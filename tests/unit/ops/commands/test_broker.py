from __future__ import annotations

from pathlib import Path

from ops.commands import broker
from ops.local.layout import Layout

NODE = Layout(dir=Path("/c"), numbers=(2,)).nodes[0]


def test_a_broker_is_started_in_the_foreground_under_its_own_name() -> None:
    assert broker.start(NODE) == [
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
    environment = broker.environment(NODE, epmd_port=21000)
    assert environment["RABBITMQ_CONF_ENV_FILE"] == "/c/nodes/mb2/none"
    assert environment["RABBITMQ_MNESIA_BASE"] == "/c/nodes/mb2/data"
    assert environment["HOME"] == "/c/nodes/mb2/home"
    assert environment["ERL_EPMD_PORT"] == "21000"
    assert environment["ERL_EPMD_ADDRESS"] == "127.0.0.1"


def test_epmd_stays_in_the_foreground_on_loopback() -> None:
    assert broker.epmd(port=4) == ["/usr/bin/epmd", "-address", "127.0.0.1", "-port", "4"]
    assert broker.epmd(["127.0.7.11"], port=4)[2] == "127.0.0.1,127.0.7.11"
