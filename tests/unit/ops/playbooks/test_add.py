from __future__ import annotations

import sys
from pathlib import Path

from ops.cluster.view import View
from ops.commands.supervise import LocalNodes, SystemdNodes
from ops.playbooks import add
from ops.playbooks.add import Target
from ops.run.plan import Plan

FILE = Path("/c/inventory.toml")
TARGET = Target(name="mb4", address="127.0.0.14:5672", agent_port=8081)


def test_the_order_of_an_addition() -> None:
    plan = add.plan(TARGET, View(FILE), LocalNodes(Path("/c")))
    assert [step.name for step in plan.steps] == [
        "make node mb4",
        "start broker mb4",
        "start the agent of mb4",
        "tell mb4 of the others",
        "hold publishers back from mb4",
        "bring the topology to mb4",
        "put mb4 on the list",
        "bring the list with mb4 to every agent",
        "wait for the clients at mb4",
        "compare the topology of mb4 with the others",
        "send publishers to mb4",
        "verify that publishes arrive at mb4 and are consumed",
    ]
    assert plan.name == "add mb4"


def test_exactly_what_an_addition_runs() -> None:
    plan = add.plan(TARGET, View(FILE), LocalNodes(Path("/c")))
    local = f"{sys.executable} -m ops local"
    lists = f"{sys.executable} -m consumer_lists --inventory /c/inventory.toml"
    balancer = f"{sys.executable} -m lb --inventory /c/inventory.toml"
    ran = [" ".join(command.argv) for step in plan.steps for command in step.commands]
    assert ran == [
        f"{local} provision mb4 --dir /c",
        f"{local} start mb4 --dir /c",
        f"{local} start mb4-agent --dir /c",
        f"{lists} push",
        f"{sys.executable} -m ops hold mb4 --inventory /c/inventory.toml",
        f"{lists} add 127.0.0.14:5672 --agent-port 8081",
        f"{lists} push",
        f"{balancer} apply",
        f"{balancer} ready mb4",
    ]


def test_there_is_no_way_back_once_publishers_are_sent() -> None:
    plan = add.plan(TARGET, View(FILE), LocalNodes(Path("/c")))
    assert [step.name for step in plan.steps if step.is_final] == ["send publishers to mb4"]


def test_on_hosts_the_same_steps_run_over_ssh() -> None:
    local = add.plan(TARGET, View(FILE), LocalNodes(Path("/c")))
    remote = add.plan(TARGET, View(FILE), SystemdNodes({"mb4": "mb4.example"}))
    assert [step.name for step in remote.steps] == [step.name for step in local.steps]
    assert {command.host for step in remote.steps for command in step.commands} == {
        "",
        "mb4.example",
    }


def test_what_a_journal_keeps_makes_the_same_target_again() -> None:
    target = Target(name="mb2", address="127.0.0.12:5672", agent_port=8081)
    assert Target(name="mb2", **target.facts) == target
    far = Target(name="mb2", address="h2:5672", agent_port=8081, ssh="op@h2", sudo=True)
    assert Target(name="mb2", **far.facts) == far


def founding() -> Plan:
    nodes = SystemdNodes({"mb1": "h1", "mb2": "op@h2"}, frozenset({"mb2"}))
    return add.found(["mb1", "mb2"], View(FILE), nodes, balancers={"lb": "h1"})


def test_agents_begin_before_they_run_and_publishers_come_last() -> None:
    names = [step.name for step in founding().steps]
    order = [
        "see that there is no cluster yet",
        "write the first list",
        "let the agent of mb1 begin",
        "start broker mb1",
        "start the agent of mb2",
        "bring the list to every agent",
        "bring the topology to mb2",
        "start the balancers",
        "send publishers to all",
    ]
    assert sorted(order, key=names.index) == order
    assert len(set(names)) == len(names)


def test_who_is_not_root_becomes_it() -> None:
    commands = [command for step in founding().steps for command in step.commands if command.host]
    assert {command.host for command in commands} == {"h1", "op@h2"}
    for command in commands:
        assert (command.argv[:3] == ("sudo", "-n", "--")) is (command.host == "op@h2")
