from __future__ import annotations

import sys
from pathlib import Path

from ops.commands.supervise import LocalNodes, SystemdNodes
from ops.run.plan import Command


def test_a_local_node_is_a_part_of_the_local_cluster() -> None:
    nodes = LocalNodes(Path("/c"))
    local = (sys.executable, "-m", "ops", "local")
    assert nodes.provision("mb4") == (Command((*local, "provision", "mb4", "--dir", "/c")),)
    assert nodes.start_broker("mb4") == (Command((*local, "start", "mb4", "--dir", "/c")),)
    assert nodes.stop_agent("mb4") == (Command((*local, "stop", "mb4-agent", "--dir", "/c")),)
    assert nodes.forget("mb4") == (Command((*local, "forget", "mb4", "--dir", "/c")),)


def test_another_node_is_a_host_with_units() -> None:
    nodes = SystemdNodes({"mb4": "mb4.example"})
    assert nodes.provision("mb4") == ()
    assert nodes.start_broker("mb4") == (
        Command(("systemctl", "start", "rabbitmq-server"), "mb4.example"),
    )
    assert nodes.stop_agent("mb4") == (
        Command(("systemctl", "stop", "messagebus-agent"), "mb4.example"),
    )
    cookie, start = SystemdNodes({"mb4": "mb4.example"}, frozenset({"mb4"})).start_agent("mb4")
    assert cookie.argv[:4] == ("sudo", "-n", "--", "install")
    assert cookie.argv[-2:] == ("/var/lib/rabbitmq/.erlang.cookie", "/etc/messagebus/cookie")
    assert start.argv[-2:] == ("start", "messagebus-agent")


def test_installing_anew_leaves_nothing_that_the_node_has_learned() -> None:
    *stops, first, second, install = SystemdNodes({"mb4": "mb4.example"}).reinstall(
        "mb4", "3.12.1-1"
    )
    assert [stop.argv[:2] for stop in stops] == [("systemctl", "stop")] * 2
    assert [first.argv, second.argv] == [
        ("find", "/var/lib/rabbitmq/mnesia", "-mindepth", "1", "-delete"),
        ("find", "/var/lib/messagebus", "-mindepth", "1", "-delete"),
    ]
    assert install.argv[-2:] == ("install", "rabbitmq-server=3.12.1-1")
    assert {first.host, second.host, install.host} == {"mb4.example"}
    local = LocalNodes(Path("/c")).reinstall("mb4", "")
    assert [command.argv[4:6] for command in local] == [("forget", "mb4"), ("provision", "mb4")]


def test_the_files_of_a_broker_are_listed_where_there_may_be_none() -> None:
    argv = LocalNodes(Path("/c")).data("mb4").argv
    assert argv[:5] == ("find", "/c/nodes", "-path", "/c/nodes/mb4/data/*", "-type")
    there = SystemdNodes({"mb4": "mb4.example"}, frozenset({"mb4"})).data("mb4")
    assert there.host == "mb4.example"
    assert there.argv[3:7] == ("find", "/var/lib/rabbitmq", "-path", "/var/lib/rabbitmq/mnesia/*")


def test_whether_a_process_is_left_is_asked_in_the_words_of_systemd() -> None:
    show = ("systemctl", "show", "--property=ActiveState", "--value")
    nodes = SystemdNodes({"mb4": "mb4.example"})
    assert nodes.broker_state("mb4") == Command((*show, "rabbitmq-server"), "mb4.example")
    assert nodes.agent_state("mb4") == Command((*show, "messagebus-agent"), "mb4.example")
    local = LocalNodes(Path("/c"))
    assert local.broker_state("mb4").argv[3:] == ("local", "state", "mb4", "--dir", "/c")[0:]
    assert local.agent_state("mb4").argv[4:6] == ("state", "mb4-agent")
