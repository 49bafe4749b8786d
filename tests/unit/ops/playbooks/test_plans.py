"""Plans to add, remove and rejoin brokers: the order of the steps and their commands."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ops.cluster import checks
from ops.cluster.members import NOBODY
from ops.cluster.view import View
from ops.commands.supervise import LocalNodes, SystemdNodes
from ops.local import files, secrets
from ops.local.layout import Layout
from ops.playbooks import add, rejoin, remove
from ops.playbooks.add import Target
from ops.playbooks.remove import Drain
from ops.run.plan import Command, Plan
from tests.support.fake_view import view_of

FILE = Path("/c/inventory.toml")
ADDED = Target(name="mb4", address="127.0.0.14:5672", agent_port=8081)


def test_the_order_of_an_addition() -> None:
    plan = add.plan(ADDED, View(FILE), LocalNodes(Path("/c")))
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
    plan = add.plan(ADDED, View(FILE), LocalNodes(Path("/c")))
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
        f"{sys.executable} -m ops quota share --in-playbook --inventory /c/inventory.toml",
        f"{balancer} apply",
        f"{balancer} ready mb4",
    ]


def test_there_is_no_way_back_once_publishers_are_sent() -> None:
    plan = add.plan(ADDED, View(FILE), LocalNodes(Path("/c")))
    assert [step.name for step in plan.steps if step.is_final] == ["send publishers to mb4"]


def test_on_hosts_the_same_steps_run_over_ssh() -> None:
    local = add.plan(ADDED, View(FILE), LocalNodes(Path("/c")))
    remote = add.plan(ADDED, View(FILE), SystemdNodes({"mb4": "mb4.example"}))
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
    return add.bootstrap(["mb1", "mb2"], View(FILE), nodes, balancers={"lb": "h1"})


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


REMOVED = Target(name="mb2", address="127.0.0.12:5672", agent_port=8081)


WAITS = Drain(statistics_s=1.5)


def removal(how: Drain = WAITS) -> Plan:
    return remove.plan(REMOVED, View(FILE), LocalNodes(Path("/c")), how)


def test_the_order_of_a_removal() -> None:
    assert [step.name for step in removal().steps] == [
        "see that others take publishes without mb2",
        "mark mb2 as draining in the list",
        "bring the list that drains mb2 to every agent",
        "move the partitions of mb2 to other brokers",
        "send no publishers to mb2",
        "wait for publishers to leave mb2",
        "hang up on the publishers that are left on mb2",
        "wait until mb2 is empty",
        "hang up on whoever keeps deliveries of mb2 without an answer",
        "wait until others have consumed the messages given back on mb2",
        "take mb2 off the list",
        "bring the list without mb2 to every agent",
        "wait for the clients to let go of mb2",
        "hang up on the clients that are left on mb2",
        "see that nothing is left on mb2",
        "shut the doors of mb2, and look once more",
        "stop broker mb2",
        "stop the agent of mb2",
        "clear node mb2 away",
        "take mb2 out of the balancer",
    ]


def test_exactly_what_a_removal_runs() -> None:
    ops = f"{sys.executable} -m ops"
    lists = f"{sys.executable} -m consumer_lists --inventory /c/inventory.toml"
    balancer = f"{sys.executable} -m lb --inventory /c/inventory.toml"
    ran = [" ".join(command.argv) for step in removal().steps for command in step.commands]
    assert ran == [
        f"{lists} drain 127.0.0.12:5672",
        f"{lists} push",
        f"{ops} rehome mb2 --inventory /c/inventory.toml",
        f"{balancer} drain mb2",
        f"{ops} hangup mb2 --inventory /c/inventory.toml",
        f"{ops} hangup mb2 --holding --inventory /c/inventory.toml",
        f"{lists} remove 127.0.0.12:5672",
        f"{lists} push",
        f"{ops} hangup mb2 --all --inventory /c/inventory.toml",
        f"{ops} local start mb2 --dir /c",
        f"{ops} local shut mb2 127.0.0.12:5672 --dir /c",
        f"{ops} local stop mb2 --dir /c",
        f"{ops} local stop mb2-agent --dir /c",
        f"{ops} local forget mb2 --dir /c",
        f"{ops} inventory drop mb2 --inventory /c/inventory.toml",
        f"{balancer} apply",
        f"{ops} quota share --in-playbook --inventory /c/inventory.toml",
    ]


def test_a_removal_is_taken_back_in_the_list_before_the_balancer() -> None:
    undo = [" ".join(command.argv[3:]) for step in removal().steps for command in step.undo]
    assert undo == [
        "--inventory /c/inventory.toml ready 127.0.0.12:5672 --if-needed",
        "--inventory /c/inventory.toml push",
        "--inventory /c/inventory.toml ready mb2",
    ]


def test_the_plan_says_which_delayed_messages_it_waits_for() -> None:
    made = removal(Drain(statistics_s=1.5, delayed=(1200, 7200.0)))
    told = [line.strip() for line in made.lines() if "delayed" in line]
    assert told == [
        "until every queue is empty, counted twice and tried, 1,200 delayed messages too, "
        "which takes 2 h at most, 10800 s without progress at most"
    ]


def test_what_nobody_takes_is_moved_when_no_consumer_is_there_any_more() -> None:
    moves = removal(Drain(statistics_s=1.5, delayed=(1, 7200.0), moves=True))
    ran = [" ".join(command.argv[2:]) for step in moves.steps for command in step.commands]
    move = ran.index("ops move mb2 --inventory /c/inventory.toml")
    assert ran.index("ops hangup mb2 --all --inventory /c/inventory.toml") < move
    assert move < ran.index("ops inventory drop mb2 --inventory /c/inventory.toml")
    assert not any("delayed" in line for line in moves.lines())


def test_a_run_that_was_blocked_is_taken_up_as_one_that_moves() -> None:
    """A step done under one set of options has the same name, and stands first, under the other."""
    plain = [step.name for step in removal().steps]
    moves = [step.name for step in removal(Drain(statistics_s=1.5, moves=True)).steps]
    assert plain == moves


def test_what_a_removal_erases_was_seen_empty_by_whoever_stopped_it() -> None:
    steps = {step.name: step for step in removal().steps}
    names = list(steps)
    seen = names.index("see that nothing is left on mb2")
    assert names[seen + 1 : seen + 3] == [
        "shut the doors of mb2, and look once more",
        "stop broker mb2",
    ]
    assert all(steps[names[at]].is_fresh for at in (seen, seen + 1))
    erases = steps["clear node mb2 away"]
    assert erases.sealed_by == "stop broker mb2"
    assert erases.seal == steps["stop broker mb2"].seal
    assert erases.guard


def test_a_removal_that_was_killed_behind_a_local_clusters_forgetting_may_forget_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the node out of the inventory at once, and the journal does not know yet."""
    monkeypatch.setattr(checks, "off_the_list", lambda *_: lambda: "")
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    secrets.ensure(layout.secrets_dir)
    for file in (layout.list_file, layout.inventory):
        file.parent.mkdir(parents=True, exist_ok=True)
    left = layout.without_node("mb2")
    layout.list_file.write_text(files.first_list(left, 2).render())
    layout.inventory.write_text(files.inventory_toml(left))
    target = Target(name="mb2", address=layout.node("mb2").broker, agent_port=8081)
    nodes, how = LocalNodes(tmp_path), Drain(statistics_s=1.5)
    steps = remove.plan(target, View(layout.inventory), nodes, how).steps
    (erases,) = (step for step in steps if step.name == "clear node mb2 away")
    assert erases.guard
    assert erases.guard() == ""


TARGETS = [Target(name=f"mb{n}", address=f"127.0.0.1{n}:5672", agent_port=8081) for n in (1, 2)]
REJOINED = TARGETS[1]


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
        "see that mb1 on its host is the one at its addresses",
        "stop broker mb1",
        "start broker mb1",
        "bring the topology to mb1",
        "put mb1 on the list",
        "wait for the clients at mb1",
        "send publishers to mb1",
    ]
    assert sorted(order, key=names.index) == order


def test_a_broker_that_was_put_back_on_the_list_meanwhile_stops_the_run_at_once() -> None:
    listed = {"127.0.0.11:5672"}
    steps = {
        step.name: step
        for step in remove.released(
            TARGETS[0],
            view_of(listed=SimpleNamespace(names=listed), absent=NOBODY, file=FILE),
            Drain(statistics_s=1.5),
        )
    }
    for waits in (
        "wait for the clients to let go of mb1",
        "hang up on the clients that are left on mb1",
    ):
        guard = steps[waits].guard
        assert guard
        assert "the list names mb1 again: `python -m consumer_lists remove mb1`" in guard()
        listed.clear()
        assert guard() == ""
        listed.add("127.0.0.11:5672")


def test_step_names_are_unique_so_that_a_journal_can_tell_them_apart() -> None:
    names = [step.name for step in restarting().steps]
    assert len(set(names)) == len(names)


def upgrading(version: str = "") -> Plan:
    nodes, how = LocalNodes(Path("/c")), Drain(statistics_s=1.5)
    return rejoin.upgrade(REJOINED, View(FILE), nodes, how, version=version)


def test_a_broker_is_empty_before_it_is_installed_anew_and_full_of_topology_before_it_is_listed() -> (
    None
):
    names = [step.name for step in upgrading("3.12.1-1").steps]
    order = [
        "see that the package can be installed on every host of mb2",
        "wait until mb2 is empty",
        "take mb2 off the list",
        "see that nothing is left on mb2",
        "shut the doors of mb2, and look once more",
        "stop broker mb2",
        "stop the agent of mb2",
        "reinstall mb2, empty",
        "write down the version of mb2",
        "start broker mb2",
        "bring the topology to mb2",
        "put mb2 on the list",
        "send publishers to mb2",
    ]
    assert sorted(order, key=names.index) == order
    assert len(set(names)) == len(names)


def test_a_local_broker_is_made_anew() -> None:
    (step,) = (step for step in upgrading().steps if step.name.startswith("reinstall"))
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
    (step,) = (step for step in upgrading().steps if step.name.startswith("reinstall"))
    assert (step.sealed_by, bool(step.guard)) == ("stop broker mb2", True)


def replacing() -> Plan:
    kept = Path("/c/journal/replaced-mb2.toml")
    return rejoin.replace(REJOINED, View(FILE), LocalNodes(Path("/c")), kept=kept, runner=Process())


class Process:
    """Runner that says of every process that it lives."""

    def run(self, command: Command) -> str:
        assert command.argv[4] == "state"
        return "active\n"


def test_a_broker_that_runs_on_its_host_is_not_replaced_though_nobody_answers_at_its_addresses() -> (
    None
):
    (stops,) = (step for step in replacing().steps if step.name.startswith("stop whatever"))
    assert stops.guard
    assert stops.guard() == "its process is active: end it there, if it is the dead one"


@pytest.mark.parametrize(
    ("words", "erases"),
    [("remove", "clear node mb2 away"), ("upgrade", "reinstall mb2, empty")],
)
def test_before_anything_is_erased_the_node_on_the_host_has_shut_its_doors_and_its_addresses_are_silent(
    words: str, erases: str
) -> None:
    """By its own name, after everybody has left, with nothing but its stop behind."""
    steps = (removal() if words == "remove" else upgrading()).steps
    names = [step.name for step in steps]
    shuts, stops, ends = (steps[names.index(erases) - count] for count in (3, 2, 1))
    (shut,) = shuts.commands
    assert shut.argv[4:7] == ("shut", "mb2", "127.0.0.12:5672")
    assert all((shuts.guard, shuts.check, shuts.is_fresh, stops.guard, stops.seal, ends.check))
    assert stops.name == "stop broker mb2"
    assert ends.name == "stop the agent of mb2"


def test_a_plan_has_no_step_twice() -> None:
    with pytest.raises(AssertionError, match="restart all: a step is there twice"):
        rejoin.restart(
            [*TARGETS, TARGETS[0]], View(FILE), LocalNodes(Path("/c")), WAITS, name="restart all"
        )


def test_nobody_knows_the_dead_broker_before_a_new_one_has_its_address() -> None:
    names = [step.name for step in replacing().steps]
    assert names[:8] == [
        "see that mb2 is dead",
        "stop whatever is left of mb2",
        "take mb2 off the list",
        "take mb2 out of the balancer",
        "bring the list without mb2 to every agent",
        "enter mb2 again",
        "recreate node mb2, empty",
        "start broker mb2",
    ]
    assert len(set(names)) == len(names)


def test_its_entry_of_the_inventory_is_kept_and_put_back() -> None:
    ran = [" ".join(command.argv[2:]) for step in replacing().steps for command in step.commands]
    where = "/c/journal/replaced-mb2.toml"
    drop = ran.index(f"ops inventory drop mb2 --keep {where} --inventory /c/inventory.toml")
    assert drop < ran.index(f"ops inventory put {where} --inventory /c/inventory.toml")
