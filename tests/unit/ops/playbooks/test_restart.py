from __future__ import annotations

from pathlib import Path

from ops.cluster.view import View
from ops.commands.supervise import LocalNodes
from ops.playbooks import restart
from ops.playbooks.add import Target
from ops.playbooks.remove import Drain
from ops.run.plan import Plan

FILE = Path("/c/inventory.toml")
TARGETS = [Target(name=f"mb{n}", address=f"127.0.0.1{n}:5672", agent_port=8081) for n in (1, 2)]


def restarting() -> Plan:
    nodes = LocalNodes(Path("/c"))
    how = Drain(statistics_s=1.5)
    return restart.plan(TARGETS, FILE, View(FILE), nodes, how, name="restart all")


def test_one_broker_is_back_before_the_next_is_touched() -> None:
    names = [step.name for step in restarting().steps]
    half = len(names) // 2
    assert all("mb1" in name for name in names[:half])
    assert [name.replace("mb1", "mb2") for name in names[:half]] == names[half:]
    assert names[half - 1] == "verify that publishes arrive at mb1 and are consumed"


def test_nobody_is_connected_when_a_broker_stops() -> None:
    names = [step.name for step in restarting().steps]
    order = [
        "wait for publishers to leave mb1",
        "take mb1 off the list",
        "wait for the clients to let go of mb1",
        "stop broker mb1",
        "start broker mb1",
        "bring the topology to mb1",
        "put mb1 on the list",
        "wait for the clients at mb1",
        "send publishers to mb1",
    ]
    assert sorted(order, key=names.index) == order


def test_step_names_are_unique_so_that_a_journal_can_tell_them_apart() -> None:
    names = [step.name for step in restarting().steps]
    assert len(set(names)) == len(names)
