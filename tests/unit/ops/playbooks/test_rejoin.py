from __future__ import annotations

import sys
from pathlib import Path

from ops.cluster.view import View
from ops.commands.supervise import LocalNodes
from ops.playbooks import rejoin
from ops.playbooks.add import Target
from ops.playbooks.remove import Drain
from ops.run.plan import Plan

FILE = Path("/c/inventory.toml")
TARGETS = [Target(name=f"mb{n}", address=f"127.0.0.1{n}:5672", agent_port=8081) for n in (1, 2)]
TARGET = TARGETS[1]


def restarting() -> Plan:
    nodes = LocalNodes(Path("/c"))
    how = Drain(statistics_s=1.5)
    return rejoin.restart(TARGETS, View(FILE), nodes, how, name="restart all")


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


def upgrading(version: str = "") -> Plan:
    nodes, how = LocalNodes(Path("/c")), Drain(statistics_s=1.5)
    return rejoin.upgrade(TARGET, View(FILE), nodes, how, version=version)


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


def replacing() -> Plan:
    kept = Path("/c/journal/replaced-mb2.toml")
    return rejoin.replace(TARGET, View(FILE), LocalNodes(Path("/c")), kept=kept)


def test_nobody_knows_the_dead_broker_before_a_new_one_has_its_address() -> None:
    names = [step.name for step in replacing().steps]
    assert names[:8] == [
        "see that mb2 is dead",
        "stop whatever is left of mb2",
        "take mb2 off the list",
        "take mb2 out of the balancer",
        "bring the list without mb2 to every agent",
        "enter mb2 again",
        "make node mb2 anew, empty",
        "start broker mb2",
    ]
    assert len(set(names)) == len(names)


def test_its_entry_of_the_inventory_is_kept_and_put_back() -> None:
    ran = [" ".join(command.argv[2:]) for step in replacing().steps for command in step.commands]
    where = "/c/journal/replaced-mb2.toml"
    drop = ran.index(f"ops inventory drop mb2 --keep {where} --inventory /c/inventory.toml")
    assert drop < ran.index(f"ops inventory put {where} --inventory /c/inventory.toml")
