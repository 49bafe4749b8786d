from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from messagebus.errors import ConfigError
from ops.cluster.absent import dead_balancers, find_absent
from ops.cluster.view import Absent, View
from ops.commands.supervise import LocalNodes
from ops.errors import CommandFailed, NoAnswer, OpsError
from ops.run.plan import Command


class Node:
    def __init__(self, name: str, host: str = "") -> None:
        self.name, self.host = name, host


class Cluster:
    """Cluster. answering: parts that answer. processes: part -> its supervisor's report.

    silent: balancers that do not answer -> whether their host says that they have ended.
    """

    def __init__(self, answering: set[str], processes: dict[str, str]) -> None:
        self.answering, self.processes = answering, processes
        self.nodes = tuple(map(Node, ("mb1", "mb2", "mb3")))
        self.inventory = SimpleNamespace(balancers=(Node("lb1"), Node("lb2", "hostB")))
        self.silent: dict[str, bool] = {}

    def silent_balancers(self) -> list[str]:
        return list(self.silent)

    def balancer_has_ended(self, name: str) -> bool:
        return self.silent[name]

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise ConfigError(f"no broker {name!r}")

    def overview(self, name: str) -> dict[str, object]:
        return self._ask(name)

    def health(self, name: str) -> dict[str, object]:
        return self._ask(f"{name}-agent")

    def _ask(self, part: str) -> dict[str, object]:
        if part not in self.answering:
            raise NoAnswer(part)
        return {}

    def run(self, command: Command) -> str:
        part = command.argv[5]
        if part not in self.processes:
            raise CommandFailed(command.argv, 255, "no SSH")
        return self.processes[part] + "\n"

    def absent(self, *dead: str) -> Absent:
        nodes = LocalNodes(Path("/c"))
        return find_absent(cast(View, self), lambda _: nodes, ["mb3"], dead, runner=self)


def test_who_answers_is_there_whatever_a_supervisor_says() -> None:
    cluster = Cluster({"mb1", "mb1-agent", "mb2", "mb2-agent"}, {"mb1": "failed"})
    assert cluster.absent() == Absent()


def test_who_is_silent_and_has_no_process_left_is_dead_part_by_part() -> None:
    cluster = Cluster({"mb1-agent", "mb2"}, {"mb1": "inactive", "mb2-agent": "failed"})
    assert cluster.absent() == Absent(frozenset({"mb1"}), frozenset({"mb2"}))


def test_who_is_only_silent_is_not_dead() -> None:
    silent = {"mb1": "active", "mb1-agent": "deactivating"}  # and nothing is known about mb2
    assert Cluster(set(), silent).absent() == Absent()


def test_an_operator_has_seen_that_a_host_is_off() -> None:
    assert Cluster(set(), {}).absent("mb2") == Absent(frozenset({"mb2"}), frozenset({"mb2"}))


def test_the_word_of_an_operator_is_not_believed_of_who_answers() -> None:
    with pytest.raises(OpsError, match="mb2 is not dead: it answers"):
        Cluster({"mb2-agent"}, {}).absent("mb2")
    with pytest.raises(ConfigError):
        Cluster(set(), {}).absent("mb9")


@pytest.mark.guarantee("playbooks-beside-the-dead")
@pytest.mark.parametrize(
    ("silent", "dead", "found"),
    [
        ({}, (), set()),
        ({"lb2": True}, (), {"lb2"}),
        ({"lb2": False}, (), set()),  # it is only silent
        ({"lb2": False}, ("lb2",), {"lb2"}),
        ({"lb1": True, "lb2": True}, (), set()),  # the balancers' state is unknown
    ],
)
def test_a_balancer_is_dead_by_proof_or_word_while_another_one_is_there(
    silent: dict[str, bool], dead: tuple[str, ...], found: set[str]
) -> None:
    cluster = Cluster({"mb1", "mb1-agent", "mb2", "mb2-agent"}, {})
    cluster.silent = silent
    assert cluster.absent(*dead) == Absent(balancers=frozenset(found))


def test_a_balancer_that_answers_is_not_dead_by_any_word() -> None:
    with pytest.raises(OpsError, match="lb2 is not dead: it answers"):
        Cluster(set(), {}).absent("lb2")


def test_a_balancer_is_dead_with_its_host() -> None:
    cluster = Cluster(set(), {})
    cluster.silent = {"lb2": False}
    assert dead_balancers(cast(View, cluster), ["hostB"]) == {"lb2"}


def test_who_is_left_out_is_told_in_words() -> None:
    absent = Absent(frozenset({"mb1"}), frozenset({"mb2"}), frozenset({"lb2"}))
    assert absent.in_words() == "broker mb1, agent of mb2, balancer lb2"
    assert Absent().in_words() == ""
