"""Random operators at random playbooks: no confirmed message of a live broker is ever erased."""

from __future__ import annotations

import dataclasses
import functools
import getpass
import itertools
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from consumer_lists.errors import ListsError
from messagebus.errors import MessageBusError
from ops.cluster import absent, brokers, checks
from ops.cluster.absent import find_absent
from ops.cluster.members import NOBODY
from ops.commands.supervise import LocalNodes
from ops.mirror import storage_cli
from ops.mirror.failover import Arrival
from ops.playbooks import cli, rejoin
from ops.playbooks.add import Target
from ops.run import command, runner
from ops.run import journal as journals
from ops.run.command import RunOptions
from ops.run.journal import Journal, OpenRun, open_runs
from ops.run.plan import Command, Plan, Step
from tests.model.simulated_cluster import (
    Broker,
    Killed,
    SimulatedCluster,
    SimulatedView,
    Violation,
    address,
)

# Schedules; of each several playbooks are run. MESSAGEBUS_MODEL_RUNS=23000 is 100,000 of them.
RUNS = int(os.environ.get("MESSAGEBUS_MODEL_RUNS", "500"))
# Looks and commands of a playbook, any of which may be its last.
KILL_POINTS = 80
# The longest playbook of a night has some more commands.
NIGHT_POINTS = 88
ACTS = 6
KILLED_IN = 120
NAMES = ("mb1", "mb2", "mb3", "mb4")
OPTIONS: dict[str, dict[str, Any]] = {
    "add": {"dead": ()},
    "remove": {"dead": (), "moves": False, "held_within_s": 600.0},
    "restart": {"dead": (), "rolling": False, "held_within_s": 600.0},
    "upgrade": {"dead": (), "moves": False, "held_within_s": 600.0, "version": ""},
    "replace": {"dead": "", "give_up": "", "lose_messages": True},
}
UNSAID = {"dry_run": False, "yes": True, "undo": False, "resume": True, "abandon": False}


class OneByOne:
    """Pool of threads that has none."""

    def __init__(self, _count: int) -> None: ...
    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_fault: object) -> None: ...
    def map(self, call: Callable[[str], bool], words: list[str]) -> list[bool]:
        return [call(word) for word in words]


class Clock:
    """Clock that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class World:
    """One cluster, one inventory, one schedule."""

    def __init__(self, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        self.cluster = SimulatedCluster.of(self.chance)
        self.file = folder / "inventory.toml"
        self.folder = folder
        monkeypatch.setattr(cli, "View", lambda _file, absent=None: self._view(absent))
        monkeypatch.setattr(cli, "_new_target", lambda view, name: _target(name))
        monkeypatch.setattr(
            cli, "find_absent", lambda *words: find_absent(*words, runner=self.cluster)
        )
        monkeypatch.setattr(cli, "_version", lambda _view, _name, said: said)
        monkeypatch.setattr(cli, "HostRunner", lambda: self.cluster)
        monkeypatch.setattr(command, "HostRunner", lambda _show, keeps: self.cluster)
        self.told: list[str] = []
        self._depth = 0
        self.meanwhile: Callable[[], object] | None = None
        monkeypatch.setattr(command, "confirm", self._confirmed)

    def _view(self, absent: Any) -> SimulatedView:
        return SimulatedView(self.cluster, self.file, absent or NOBODY)

    def play(self, word: str, name: str, **said: object) -> str:
        """Run a playbook as its command does. Returns how it ended, "" for well."""
        options = {**UNSAID, **OPTIONS[word], **said, "file": self.file}
        options["names" if word == "restart" else "name"] = (
            tuple(name.split()) if word == "restart" else name
        )
        try:
            getattr(cli, word).callback(**options)
        except (MessageBusError, ListsError, OSError, click.UsageError) as fault:
            return f"{type(fault).__name__}: {fault}"
        except (Killed, click.exceptions.Exit) as end:
            return type(end).__name__
        finally:
            self.cluster.kill_in = None
        return ""

    def rehearse(self, word: str, name: str, **said: object) -> None:
        """Run a playbook with --dry-run, whatever stands beside it.

        Raises Violation when it changes anything.
        """
        kill_in, self.cluster.kill_in = self.cluster.kill_in, None
        before = self._written()
        self.told.append(f"dry run: {self.play(word, name, **{**said, 'dry_run': True})}")
        if self._written() != before:
            raise Violation(f"a dry run of {word} {name} {said} wrote something")
        self.cluster.kill_in = kill_in

    def _written(self) -> dict[str, bytes]:
        """Return the journals, and what was run."""
        files = {file.name: file.read_bytes() for file in self.folder.glob("journal/*")}
        ran = [words for words in self.cluster.ran if not words.startswith("ops local state")]
        return {**files, "ran": " ".join(ran).encode()}

    def killed(self, kill_in: int, word: str, name: str, **said: object) -> None:
        """Run a playbook that is killed after this many looks and commands, or ends."""
        self.cluster.kill_in = kill_in
        self.play(word, name, **said)

    def publish(self) -> None:
        """Publish more than is consumed from now on."""
        self.cluster.consuming = False
        for _ in range(20):
            self.cluster.publish()

    def act(self) -> None:
        """Do one thing that an operator does, or that happens."""
        chance = self.chance
        name = chance.choice(NAMES)
        there = [one for one in self.cluster.brokers if one in self.cluster.inventory_names]
        what = chance.random()
        if what < 0.6:
            word = chance.choice(("add", "remove", "remove", "restart", "upgrade", "replace"))
            if chance.random() < 0.6:
                self.cluster.kill_in = chance.randrange(KILLED_IN)
            said: dict[str, object] = {"yes": self._depth > 0 or chance.random() < 0.7}
            if word in ("remove", "upgrade"):
                said["moves"] = chance.random() < 0.3
            if chance.random() < 0.25:
                said["undo"] = True
            elif chance.random() < 0.05:
                said["abandon"] = True
            if word != "replace" and chance.random() < 0.5:
                off = [one.name for one in self.cluster.fronts.values() if one.state == "off"]
                said["dead"] = tuple(off)
            if word == "restart" and chance.random() < 0.2:
                name = " ".join(chance.choices(NAMES, k=3))
            self.told.append(f"{word} {name} {said or ''}")
            if word == "upgrade":
                said["version"] = chance.choice(("", "", "4.0.5"))
            if chance.random() < 0.1:
                self.rehearse(word, name, **said)
            self._depth += 1
            self.told.append(f"-> {self.play(word, name, **said)}")
            self._depth -= 1
            if chance.random() < 0.2:
                self.tear(f"{word} {name}")
        elif there and what < 0.7:
            self._happen("die", name := chance.choice(there))
            self.cluster.die(name)
        elif there and what < 0.8:
            self._happen("agent", name := chance.choice(there))
            self.cluster.brokers[name].agent = chance.random() < 0.5
        elif what < 0.85:
            front = chance.choice(list(self.cluster.fronts.values()))
            front.state = chance.choice(("up", "frozen", "ended", "off"))
            self._happen(f"balancer {front.state}", front.name)
        elif there and what < 0.9:
            self._happen("foreign", name := chance.choice(there))
            broker = self.cluster.brokers[name]
            if broker.running:
                broker.foreign += 1
                broker.data += 1
        else:
            self._happen("mend", "")
            self.cluster.mend()
            for _ in range(5):
                self.cluster.tick()

    def tear(self, plan: str) -> None:
        """Cut off the last line of a journal, as a crash does."""
        file = self.file.parent / "journal" / f"{plan.replace(' ', '+')}.jsonl"
        if file.exists() and file.read_bytes().count(b"\n") > 1:
            file.write_bytes(file.read_bytes() + b'{"step": "st')

    def come_out(self) -> None:
        """Bring all dead parts back and end every open run: forward, back, or as it stands.

        Raises Violation when one cannot be ended, or the rest of the cluster does not serve then.
        """
        self.cluster.mend()
        for broker in self.cluster.brokers.values():
            broker.foreign = 0
        for run in open_runs(self.file.parent / "journal", but=""):
            word, name = run.name.split(" ", 1)
            ended = [self.play(word, name, **how) for how in ({}, {"undo": True})]
            if self._is_open(run.name) and self.play(word, name, abandon=True) != "Exit":
                raise Violation(f"no way out of {run.name!r}: {ended}")
        self._bring_back()
        left = [run.name for run in open_runs(self.file.parent / "journal", but="")]
        names = self.cluster.inventory_names
        serving = {name for name in names if self.cluster.sent_by_all(name)}
        if left or serving != set(names):
            raise Violation(f"open: {left}; serving: {self.cluster.serving}")

    def _is_open(self, plan: str) -> bool:
        return any(run.name == plan for run in open_runs(self.file.parent / "journal", but=""))

    def _bring_back(self) -> None:
        """Bring brokers that were abandoned halfway to serve by the playbooks for it."""
        for name in list(self.cluster.inventory_names):
            self.cluster.mend()
            entry = self.cluster.listed.find(address(name))
            if entry is None:
                self.told.append(f"add {name} -> {self.play('add', name)}")
            elif not self.cluster.sent_by_all(name):
                for command in ("lists ready", "lists push", "lb apply", "lb ready"):
                    self.told.append(f"{command} -> {self.cluster.by_hand(command, name)}")

    def _confirmed(self) -> None:
        """Let another operator act while this one considers the question."""
        if self.meanwhile:
            self.meanwhile()
        elif self.chance.random() < 0.5:
            self.told.append("meanwhile")
            self.act()

    def _happen(self, what: str, to: str) -> None:
        self.told.append(f"{what} {to}")


def _target(name: str) -> Target:
    return Target(name=name, address=address(name), agent_port=8081)


MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for journals and locks: in memory, where there is such a place."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as made:
        yield Path(made)


@pytest.fixture
def world_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], World]:
    monkeypatch.setattr(click, "echo", lambda *_, **__: None)
    monkeypatch.setattr(cli, "STATISTICS_LOCAL_S", -1.0)
    monkeypatch.setattr(storage_cli, "dead_balancers", lambda *_: frozenset())
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(getpass, "getuser", lambda: "op")
    monkeypatch.setattr(absent, "ThreadPoolExecutor", OneByOne)
    monkeypatch.setattr(runner, "time", Clock())
    monkeypatch.setattr(runner, "POLL_S", 60.0)

    numbers = itertools.count()

    def world(seed: int) -> World:
        own = folder / str(next(numbers))
        own.mkdir()
        return World(seed, own, monkeypatch)

    return world


def violations(world_of: Callable[[int], World], runs: int) -> Iterator[str]:
    for seed in range(runs):
        world = world_of(seed)
        try:
            for _ in range(ACTS):
                world.act()
            world.come_out()
        except Violation as fault:
            ran = " | ".join(world.cluster.ran[-12:])
            yield f"seed {seed}: {fault}; {'; '.join(world.told)}; ran {ran}"


@pytest.mark.guarantee(
    "playbook-killed-anywhere", "erased-by-its-own-word", "restart-upgrade-replace"
)
def test_no_operator_ever_erases_a_confirmed_message_of_a_live_broker_and_each_run_has_a_way_out(
    world_of: Callable[[int], World],
) -> None:
    assert next(violations(world_of, RUNS), "") == ""


@pytest.mark.guarantee("playbook-killed-anywhere")
@pytest.mark.parametrize("word", ["restart", "remove", "upgrade"])
def test_nothing_is_begun_with_a_dead_broker_and_the_command_for_it_is_said(
    word: str, world_of: Callable[[int], World]
) -> None:
    world = world_of(1)
    world.cluster.die("mb2")
    listed = world.cluster.listed_text
    assert "`ops replace mb2`" in world.play(word, "mb2", yes=True)
    assert not open_runs(world.file.parent / "journal", but="")
    assert world.cluster.listed_text == listed
    assert world.play("replace", "mb2", yes=True) == ""


@pytest.mark.guarantee("playbooks-beside-the-dead")
@pytest.mark.parametrize(
    ("word", "name"),
    [("add", "mb5"), ("remove", "mb4"), ("restart", "mb4"), ("upgrade", "mb4"), ("replace", "mb4")],
)
def test_each_playbook_goes_on_while_a_broker_an_agent_and_a_balancer_are_dead(
    word: str, name: str, world_of: Callable[[int], World]
) -> None:
    world = world_of(1)
    assert world.play("add", "mb4") == ""
    world.cluster.die("mb1")
    world.cluster.brokers["mb2"].agent = False
    world.cluster.fronts["lb2"].state = "ended"
    if word == "replace":
        world.cluster.die(name)
    assert world.play(word, name) == ""
    told = " ".join(world.cluster.ran)
    assert "--without mb2" in told
    assert "--without lb2" in told


@pytest.mark.guarantee("playbook-killed-anywhere")
@pytest.mark.parametrize("away", ["agent", "balancer", "broker"])
def test_where_an_agent_a_balancer_or_the_broker_is_silent_it_stops_and_is_taken_up_again(
    away: str, world_of: Callable[[int], World]
) -> None:
    world = world_of(1)
    other, broker, front = (
        world.cluster.brokers["mb1"],
        world.cluster.brokers["mb3"],
        world.cluster.fronts["lb1"],
    )
    match away:
        case "agent":
            other.agent, other.silent = False, True
        case "balancer":
            front.state = "frozen"
        case _:
            broker.running = False
    stopped = world.play("restart", "mb3")
    assert {"agent": "mb1", "balancer": "lb1", "broker": "mb3"}[away] in stopped
    other.silent = False
    world.cluster.mend()
    assert world.play("restart", "mb3") == ""
    assert world.cluster.sent_by_all("mb3")


def test_an_undo_that_a_dead_broker_stops_says_how_the_run_is_closed(
    world_of: Callable[[int], World],
) -> None:
    world = world_of(1)
    world.killed(20, "restart", "mb2", yes=True)
    world.cluster.die("mb2")
    assert "--abandon" in world.play("restart", "mb2", yes=True, undo=True)
    assert world.play("restart", "mb2", yes=True, abandon=True) == "Exit"
    assert world.play("replace", "mb2", yes=True) == ""


@pytest.mark.guarantee("playbook-killed-anywhere")
@pytest.mark.parametrize("ticks", range(0, KILL_POINTS, 4))
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_rolling_restart_that_meets_a_dead_broker_halfway_names_it_and_has_a_way_on(
    comes_back: bool, ticks: int, world_of: Callable[[int], World]
) -> None:
    world = world_of(1)
    world.cluster.dies = ("mb2", ticks)
    assert "mb2" in world.play("restart", "", rolling=True)
    assert world._is_open("restart --rolling")
    if comes_back:
        world.cluster.mend()
        assert world.play("restart", "", rolling=True) == ""
    else:
        assert "mb2" in world.play("restart", "", rolling=True)
        assert world.cluster.sent_by_all("mb1"), "the one before it is back"
        assert "'restart --rolling' is not finished" in (refused := world.play("replace", "mb2"))
        assert "--abandon" in refused
        assert world.play("restart", "", rolling=True, abandon=True) == "Exit"
        assert world.play("replace", "mb2") == ""
        assert world.play("restart", "mb3") == ""
    for name in world.cluster.inventory_names:
        assert world.cluster.sent_by_all(name)


def nothing(*_words: object, **_more: object) -> Any:
    return None


def unguarded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runner, "_check_guard", nothing)
    patch.setattr(runner, "_check_seal", nothing)


def by_name_alone(patch: pytest.MonkeyPatch) -> None:
    for module in (runner, command):
        patch.setattr(
            module,
            "done_before",
            lambda plan, kept: [one.name for one in plan.steps if one.name in kept.done],
        )


def others_are_only_a_note(patch: pytest.MonkeyPatch) -> None:
    unguarded(patch)
    patch.setattr(OpenRun, "concerns", lambda _self, _brokers: False)
    by_name_alone(patch)


def options_are_no_part_of_a_run(patch: pytest.MonkeyPatch) -> None:
    others_are_only_a_note(patch)
    patch.setattr(cli, "options_of_run", lambda _journal, options, *_, **__: options)
    plain = rejoin.upgrade

    def named_by_version(*words: Any, version: str = "") -> Any:
        plan = plain(*words, version=version)
        steps = tuple(
            dataclasses.replace(step, name=f"{step.name} {version}")
            if "install" in step.name
            else step
            for step in plan.steps
        )
        return dataclasses.replace(plan, steps=steps)

    patch.setattr(rejoin, "upgrade", named_by_version)


def the_journal_is_read_before_the_question(patch: pytest.MonkeyPatch) -> None:
    unguarded(patch)
    patch.setattr(command, "file_lock", lambda _file, _what: nullcontext(0))


def an_undo_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    unguarded(patch)
    patch.setattr(Journal, "take_back", nothing)
    made = SimulatedCluster.of
    patch.setattr(
        SimulatedCluster,
        "of",
        lambda chance: dataclasses.replace(made(chance), agents_read_lists=False),
    )


def other_words_of_death_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storage_cli, "options_of_run", lambda _journal, options, *_, **__: options)


def what_cannot_be_looked_into_is_a_fault(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(brokers, "NOT_FETCHABLE", ())


def nobody_asks_who_is_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "misnamed", lambda *_, **__: "")
    patch.setattr(checks, "fell_silent", lambda *_: lambda: "")
    patch.setattr(checks, "off_the_list", lambda *_: lambda: "")
    patch.setattr(LocalNodes, "shut", nothing_run)
    patch.setattr(LocalNodes, "named", nothing_run)


def other_virtual_hosts_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    nobody_asks_who_is_there(patch)
    patch.setattr(SimulatedView, "all_queues", lambda self, name: self.queues_of_the_bus(name))


def nothing_run(*_words: object) -> tuple[Command, ...]:
    return ()


def a_name_may_be_there_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Plan, "__post_init__", nothing)
    patch.setattr(cli, "twice_in", lambda _names: [])


def a_dry_run_may_close_a_run(patch: pytest.MonkeyPatch) -> None:
    is_open = journals.is_open

    def closed(folder: Path, name: str) -> bool:
        there = is_open(folder, name)
        journals.abandon(folder, name)
        return there

    patch.setattr(journals, "is_open", closed)


def nobody_looks_at_the_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "others_serve", lambda *_, **__: lambda: "")


def what_was_proved_before_is_still_so(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runner, "_check_seal", nothing)
    by_name_alone(patch)


def a_torn_line_is_appended_to(patch: pytest.MonkeyPatch) -> None:
    def append(self: Journal, line: dict[str, Any], _flags: int = 0) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps({**line, "at": "2026-08-02T10:00:00+0000"}) + "\n")

    patch.setattr(Journal, "_append", append)


# Operators' nights, each with the defect of old that made it end badly. Every kill point is tried.


def add_comes_between(world: World, kill_in: int) -> None:
    world.killed(kill_in, "remove", "mb2")
    world.play("add", "mb2")
    world.publish()
    world.play("remove", "mb2")


def another_version_is_said(world: World, kill_in: int) -> None:
    world.killed(kill_in, "upgrade", "mb2", version="3.12.1-1")
    world.publish()
    world.play("upgrade", "mb2")


def somebody_is_quicker(world: World, kill_in: int) -> None:
    world.killed(kill_in, "add", "mb4")

    def quicker() -> None:
        world.play("add", "mb4")
        world.publish()

    world.meanwhile = quicker
    world.play("add", "mb4", undo=True, yes=False)


def an_undo_stops_halfway(world: World, kill_in: int) -> None:
    world.killed(kill_in, "add", "mb4")
    first = world.cluster.brokers["mb1"]
    first.agent, first.silent = False, True
    world.play("add", "mb4", undo=True)
    first.agent, first.silent = True, False
    world.play("add", "mb4")
    world.publish()


def it_was_started_again(world: World, kill_in: int) -> None:
    world.killed(kill_in, "remove", "mb2")
    if broker := world.cluster.brokers.get("mb2"):
        world.cluster.start(broker)
        world.publish()
        broker.messages += 1  # by a client that connects to it directly
        broker.data += 1
        broker.running = broker.gate = False
    world.play("remove", "mb2")


def a_virtual_host_of_others(world: World, _kill_in: int) -> None:
    world.cluster.brokers["mb2"].foreign = 10
    world.play("remove", "mb2")


def a_queue_that_somebody_has_for_himself(world: World, kill_in: int) -> None:
    world.cluster.brokers["mb2"].is_locked = True
    world.killed(kill_in, "remove", "mb2")
    ended = world.play("remove", "mb2")
    if "mb2" in world.cluster.brokers:
        raise Violation(f"it never leaves: {ended}")


def the_others_are_dead(world: World, kill_in: int) -> None:
    world.killed(kill_in, "restart", "mb3")
    world.cluster.die("mb1")
    world.cluster.die("mb2")
    world.play("restart", "mb3")


def addresses_are_swapped(world: World, kill_in: int) -> None:
    """The management of a broker with messages, and that of an empty one that no list names."""
    text = world.cluster.listed_text
    world.cluster.brokers["mb4"] = Broker("mb4", running=True, agent=True, served=text)
    world.cluster.inventory_names.append("mb4")
    world.cluster.brokers["mb2"].foreign = 10
    world.cluster.swapped = {"mb2": "mb4", "mb4": "mb2"}
    world.killed(kill_in, "remove", "mb2")
    world.play("remove", "mb2")


def hosts_are_swapped(world: World, kill_in: int) -> None:
    world.cluster.brokers["mb3"].foreign = 10
    world.cluster.hosts = {"mb2": "mb3", "mb3": "mb2"}
    world.killed(kill_in, "remove", "mb2")
    world.play("remove", "mb2")


def a_client_dials_the_broker_itself(world: World, kill_in: int) -> None:
    """It publishes, and is confirmed, after the last look and before the stop."""
    world.cluster.dials = ("mb2", "local stop mb2")
    world.killed(kill_in, "remove", "mb2")
    world.play("remove", "mb2")


def a_client_dials_a_broker_whose_addition_is_undone(world: World, kill_in: int) -> None:
    world.cluster.dials = ("mb4", "local stop mb4")
    world.killed(kill_in, "add", "mb4")
    world.killed(kill_in, "add", "mb4", undo=True)
    world.play("add", "mb4", undo=True)


def a_broker_is_named_twice(world: World, kill_in: int) -> None:
    twice = "mb1 mb3 mb1"
    world.killed(4 * kill_in, "restart", twice)
    if not world.play("restart", twice) and not world.cluster.sent_by_all("mb1"):
        raise Violation("the restart is said to be done, and nobody is sent to mb1")


def somebody_rehearses_the_end_of_a_run(world: World, kill_in: int) -> None:
    world.killed(kill_in, "remove", "mb2")
    world.rehearse("remove", "mb2", abandon=True)


class Pair:
    """A broker with a mirror, and the relevant steps of its failover, run by the real runner.

    runs_on: the host that it was last started on.
    """

    def __init__(self, cluster: SimulatedCluster, file: Path) -> None:
        self._cluster, self._file = cluster, file
        self.name, self.inventory = "mb1", SimpleNamespace(host=lambda name: name)
        self.runs_on = "db1"

    def fail_over(self, dead: str, kill_in: int | None = None) -> str:
        """Run the failover. Returns how it ended, "" for well."""
        self._cluster.kill_in = kill_in
        go = RunOptions(file=self._file, dry_run=False, yes=True, undo=False)
        decided = {"host": "db2" if dead == "db1" else "db1", "agent": False}
        try:
            storage_cli._carry(
                go, cast(Any, self), "failover", self._plan, lambda: decided, {"dead": dead}
            )
        except MessageBusError as fault:
            return str(fault)
        except Killed:
            return "killed"
        finally:
            self._cluster.kill_in = None
        return ""

    def _plan(self, _view: Any, host: str, _how: Arrival) -> Plan:
        words = ("promote the mirror", "start the broker", "bring the list", "forget the proof")
        steps = (Step(name=word, check=functools.partial(self._did, word, host)) for word in words)
        return Plan(name="storage failover mb1", steps=tuple(steps))

    def _did(self, word: str, host: str) -> str:
        self._cluster.tick()
        if word == "start the broker":
            self.runs_on = host
        return ""


def the_other_host_dies_later(world: World, kill_in: int) -> None:
    pair = Pair(world.cluster, world.file)
    pair.fail_over("db1", kill_in)
    if not pair.fail_over("db2") and pair.runs_on == "db2":
        raise Violation("it is said to have failed over, and the broker stays on the dead host")


def a_line_is_torn(world: World, kill_in: int) -> None:
    world.killed(kill_in, "restart", "mb3")
    world.tear("restart mb3")
    world.killed(20, "restart", "mb3")
    if "JournalUnreadable" in world.play("restart", "mb3"):
        raise Violation("a journal that nobody can read")


@pytest.mark.parametrize(
    ("night", "defect"),
    [
        (add_comes_between, others_are_only_a_note),
        (another_version_is_said, options_are_no_part_of_a_run),
        (somebody_is_quicker, the_journal_is_read_before_the_question),
        (an_undo_stops_halfway, an_undo_is_not_kept),
        (it_was_started_again, what_was_proved_before_is_still_so),
        (a_virtual_host_of_others, other_virtual_hosts_are_not_looked_at),
        (a_queue_that_somebody_has_for_himself, what_cannot_be_looked_into_is_a_fault),
        (the_others_are_dead, nobody_looks_at_the_others),
        (the_other_host_dies_later, other_words_of_death_are_passed_over),
        (a_line_is_torn, a_torn_line_is_appended_to),
        (addresses_are_swapped, nobody_asks_who_is_there),
        (hosts_are_swapped, nobody_asks_who_is_there),
        (a_client_dials_the_broker_itself, nobody_asks_who_is_there),
        (a_client_dials_a_broker_whose_addition_is_undone, nobody_asks_who_is_there),
        (a_broker_is_named_twice, a_name_may_be_there_twice),
        (somebody_rehearses_the_end_of_a_run, a_dry_run_may_close_a_run),
    ],
    ids=lambda each: each.__name__,
)
def test_a_bad_night_ends_well_wherever_a_playbook_is_killed_and_not_with_the_defect_of_old(
    world_of: Callable[[int], World],
    monkeypatch: pytest.MonkeyPatch,
    night: Callable[[World, int], None],
    defect: Callable[[pytest.MonkeyPatch], None],
) -> None:
    for kill_in in range(0, NIGHT_POINTS, 4):
        night(world_of(kill_in), kill_in)

    def every_night() -> None:
        for kill_in in range(NIGHT_POINTS):
            night(world_of(1000 + kill_in), kill_in)

    defect(monkeypatch)
    with pytest.raises(Violation):
        every_night()
