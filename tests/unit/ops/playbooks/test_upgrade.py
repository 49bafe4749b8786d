from __future__ import annotations

import sys
from pathlib import Path

from ops.cluster.view import View
from ops.commands.supervise import LocalNodes
from ops.playbooks import upgrade
from ops.playbooks.add import Target
from ops.playbooks.remove import Drain
from ops.run.plan import Plan

FILE = Path("/c/inventory.toml")
TARGET = Target(name="mb2", address="127.0.0.12:5672", agent_port=8081)


def upgrading(version: str = "") -> Plan:
    nodes, how = LocalNodes(Path("/c")), Drain(statistics_s=1.5)
    return upgrade.plan(TARGET, FILE, View(FILE), nodes, how, version=version)


def test_a_broker_is_empty_before_it_is_installed_anew_and_full_of_topology_before_it_is_listed() -> (
    None
):
    names = [step.name for step in upgrading("3.12.1-1").steps]
    order = [
        "wait until mb2 is empty",
        "take mb2 off the list",
        "see that nothing is left on mb2",
        "stop broker mb2",
        "stop the agent of mb2",
        "install mb2 anew, empty",
        "start broker mb2",
        "bring the topology to mb2",
        "put mb2 on the list",
        "send publishers to mb2",
    ]
    assert sorted(order, key=names.index) == order
    assert len(set(names)) == len(names)


def test_a_local_broker_is_made_anew() -> None:
    (step,) = (step for step in upgrading().steps if step.name.startswith("install"))
    local = (sys.executable, "-m", "ops", "local")
    assert [command.argv for command in step.commands] == [
        (*local, "forget", "mb2", "--dir", "/c"),
        (*local, "provision", "mb2", "--dir", "/c"),
    ]


def test_the_version_is_no_part_of_a_steps_name_so_that_a_journal_knows_the_step() -> None:
    assert [step.name for step in upgrading("3.12.1-1").steps] == [
        step.name for step in upgrading().steps
    ]


def test_an_upgrade_erases_what_was_seen_empty_by_whoever_stopped_it() -> None:
    (step,) = (step for step in upgrading().steps if step.name.startswith("install"))
    assert (step.sealed_by, bool(step.guard)) == ("stop broker mb2", True)
