from __future__ import annotations

import sys
from pathlib import Path

from ops.cluster.view import View
from ops.commands.supervise import LocalNodes
from ops.playbooks import remove
from ops.playbooks.add import Target
from ops.playbooks.remove import Drain
from ops.run.plan import Plan

FILE = Path("/c/inventory.toml")
TARGET = Target(name="mb2", address="127.0.0.12:5672", agent_port=8081)


WAITS = Drain(statistics_s=1.5)


def removal(how: Drain = WAITS) -> Plan:
    return remove.plan(TARGET, View(FILE), LocalNodes(Path("/c")), how)


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
        "wait until others have taken what was given back on mb2",
        "take mb2 off the list",
        "bring the list without mb2 to every agent",
        "wait for the clients to let go of mb2",
        "hang up on the clients that are left on mb2",
        "see that nothing is left on mb2",
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
        f"{ops} local stop mb2 --dir /c",
        f"{ops} local stop mb2-agent --dir /c",
        f"{ops} local forget mb2 --dir /c",
        f"{ops} inventory drop mb2 --inventory /c/inventory.toml",
        f"{balancer} apply",
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
        "which takes 2 h at most, 10800 s at most"
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
    assert steps[names[seen]].is_fresh
    assert names[seen + 1] == "stop broker mb2"
    erases = steps["clear node mb2 away"]
    assert erases.sealed_by == "stop broker mb2"
    assert erases.seal == steps["stop broker mb2"].seal
    assert erases.guard
