from __future__ import annotations

from pathlib import Path

from ops.cluster.view import View
from ops.commands.supervise import LocalNodes
from ops.playbooks import replace
from ops.playbooks.add import Target
from ops.run.plan import Plan

FILE = Path("/c/inventory.toml")
TARGET = Target(name="mb2", address="127.0.0.12:5672", agent_port=8081)


def replacing() -> Plan:
    kept = Path("/c/journal/replaced-mb2.toml")
    return replace.plan(TARGET, FILE, View(FILE), LocalNodes(Path("/c")), kept=kept)


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
