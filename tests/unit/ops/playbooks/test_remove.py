from __future__ import annotations

import sys
from pathlib import Path

from ops.commands.supervise import LocalNodes
from ops.plan import Plan
from ops.playbooks import remove
from ops.playbooks.target import Target
from ops.view import View

FILE = Path("/c/inventory.toml")
TARGET = Target(name="mb2", address="127.0.0.12:5672", agent_port=8081)


def removal() -> Plan:
    return remove.plan(TARGET, FILE, View(FILE), LocalNodes(Path("/c")), statistics_s=1.5)


def test_the_order_of_a_removal() -> None:
    assert [step.name for step in removal().steps] == [
        "mark mb2 as draining in the list",
        "bring that list to every agent",
        "send no publishers to mb2",
        "wait for publishers to leave mb2",
        "hang up on the publishers that are left on mb2",
        "wait until mb2 is empty",
        "take mb2 off the list",
        "bring the list without mb2 to every agent",
        "wait for the clients to let go of mb2",
        "see that nothing is left on mb2",
        "take mb2 out of the balancer",
        "stop broker mb2",
        "stop the agent of mb2",
        "clear node mb2 away",
    ]


def test_exactly_what_a_removal_runs() -> None:
    ops = f"{sys.executable} -m ops"
    lists = f"{sys.executable} -m consumer_lists --inventory /c/inventory.toml"
    balancer = f"{sys.executable} -m lb --inventory /c/inventory.toml"
    ran = [" ".join(command.argv) for step in removal().steps for command in step.commands]
    assert ran == [
        f"{lists} drain 127.0.0.12:5672",
        f"{lists} push",
        f"{balancer} drain mb2",
        f"{ops} hangup mb2 --inventory /c/inventory.toml",
        f"{lists} remove 127.0.0.12:5672",
        f"{lists} push",
        f"{ops} inventory drop mb2 --inventory /c/inventory.toml",
        f"{balancer} apply",
        f"{ops} local stop mb2 --dir /c",
        f"{ops} local stop mb2-agent --dir /c",
        f"{ops} local forget mb2 --dir /c",
    ]


def test_a_removal_is_taken_back_in_the_list_before_the_balancer() -> None:
    undo = [" ".join(command.argv[3:]) for step in removal().steps for command in step.undo]
    assert undo == [
        "--inventory /c/inventory.toml ready 127.0.0.12:5672",
        "--inventory /c/inventory.toml push",
        "--inventory /c/inventory.toml ready mb2",
    ]


def test_the_plan_says_which_delayed_messages_it_waits_for() -> None:
    made = remove.plan(
        TARGET, FILE, View(FILE), LocalNodes(Path("/c")), statistics_s=1.5, delayed=(1200, 7200.0)
    )
    told = [line.strip() for line in made.lines() if "delayed" in line]
    assert told == [
        "until every queue is empty, counted twice and tried, 1,200 delayed messages too, "
        "which takes 2 h at most, 10800 s at most"
    ]
