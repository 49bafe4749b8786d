from __future__ import annotations

from pathlib import Path

from ops.cluster.view import View
from ops.commands.supervise import SystemdNodes
from ops.playbooks import found
from ops.run.plan import Plan

FILE = Path("/c/inventory.toml")


def founding() -> Plan:
    nodes = SystemdNodes({"mb1": "h1", "mb2": "op@h2"}, frozenset({"mb2"}))
    return found.plan(["mb1", "mb2"], FILE, View(FILE), nodes, balancers={"lb": "h1"})


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
