"""Random operators at random playbooks: no confirmed message of a live broker is ever erased."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import pytest

from consumer_lists.errors import ListsError
from messagebus.errors import MessageBusError
from ops import absent, carrying, checks, cli, lock, runner
from ops.absent import find_absent
from ops.journal import Journal, OpenRun, open_runs
from ops.playbooks import upgrade
from ops.playbooks.target import Target
from tests.support.simulated_cluster import (
    Killed,
    SimulatedCluster,
    SimulatedView,
    Violation,
    address,
)

RUNS = 150
# Looks and commands of a playbook, any of which may be its last.
KILL_POINTS = 80
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


class Quiet:
    """A console that shows nothing; status is a context."""

    def __init__(self, **_options: object) -> None: ...
    def print(self, *_words: object) -> None: ...
    def status(self, _text: str) -> Quiet:
        return self

    def update(self, _text: str) -> None: ...
    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_fault: object) -> None: ...


class OneByOne:
    """A pool of threads that has none."""

    def __init__(self, _count: int) -> None: ...
    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_fault: object) -> None: ...
    def map(self, call: Callable[[str], bool], words: list[str]) -> list[bool]:
        return [call(word) for word in words]


class Clock:
    """Time that passes only while somebody waits."""

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
        monkeypatch.setattr(cli, "_new_target", lambda _file, view, name: _target(name))
        monkeypatch.setattr(
            cli, "find_absent", lambda *words: find_absent(*words, runner=self.cluster)
        )
        monkeypatch.setattr(carrying, "HostRunner", lambda _show: self.cluster)
        self.told: list[str] = []
        self._depth = 0
        self.meanwhile: Callable[[], object] | None = None
        monkeypatch.setattr(carrying, "confirm", self._confirmed)

    def _view(self, absent: Any) -> SimulatedView:
        return SimulatedView(self.cluster, absent) if absent else SimulatedView(self.cluster)

    def play(self, word: str, name: str, **said: object) -> str:
        """Run a playbook as its command does. Returns how it ended, "" well."""
        options = {**UNSAID, **OPTIONS[word], **said, "file": self.file}
        options["names" if word == "restart" else "name"] = (name,) if word == "restart" else name
        try:
            getattr(cli, word).callback(**options)
        except (MessageBusError, ListsError, OSError) as fault:
            return f"{type(fault).__name__}: {fault}"
        except (Killed, click.exceptions.Exit) as end:
            return type(end).__name__
        finally:
            self.cluster.kill_in = None
        return ""

    def killed(self, kill_in: int, word: str, name: str, **said: object) -> None:
        """Run a playbook that is killed after so many looks and commands, or ends."""
        self.cluster.kill_in = kill_in
        self.play(word, name, **said)

    def publish(self) -> None:
        """More than is consumed from now on."""
        self.cluster.consuming = False
        for _ in range(20):
            self.cluster.publish()

    def act(self) -> None:
        """One thing that somebody does, or that happens."""
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
            self.told.append(f"{word} {name} {said or ''}")
            if word == "upgrade":
                said["version"] = chance.choice(("", "", "4.0.5"))
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
            self.cluster.balancer = not self.cluster.balancer
            self._happen("balancer", str(self.cluster.balancer))
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
        """A crash cuts the last line of a journal off."""
        file = self.file.parent / "journal" / f"{plan.replace(' ', '+')}.jsonl"
        if file.exists() and file.read_bytes().count(b"\n") > 1:
            file.write_bytes(file.read_bytes() + b'{"step": "st')

    def come_out(self) -> None:
        """All that died is back, and an operator ends every open run: forward, back, or as it stands.

        Raises Violation when one cannot be ended, or what is left of the cluster does not serve then.
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
        if left or set(self.cluster.serving) != set(self.cluster.inventory_names):
            raise Violation(f"open: {left}; serving: {self.cluster.serving}")

    def _is_open(self, plan: str) -> bool:
        return any(run.name == plan for run in open_runs(self.file.parent / "journal", but=""))

    def _bring_back(self) -> None:
        """What was abandoned halfway is brought to serve by the playbooks for it."""
        for name in list(self.cluster.inventory_names):
            self.cluster.mend()
            entry = self.cluster.listed.find(address(name))
            if entry is None:
                self.told.append(f"add {name} -> {self.play('add', name)}")
            elif name not in self.cluster.serving:
                for command in ("lists ready", "lists push", "lb apply", "lb ready"):
                    self.told.append(f"{command} -> {self.cluster.by_hand(command, name)}")

    def _confirmed(self) -> None:
        """The operator thinks about it, and another one is quicker."""
        if self.meanwhile:
            self.meanwhile()
        elif self.chance.random() < 0.5:
            self.told.append("meanwhile")
            self.act()

    def _happen(self, what: str, to: str) -> None:
        self.told.append(f"{what} {to}")


def _target(name: str) -> Target:
    return Target(name=name, address=address(name), agent_port=8081)


@pytest.fixture
def world_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], World]:
    monkeypatch.setattr(carrying, "Console", Quiet)
    monkeypatch.setattr(click, "echo", lambda *_, **__: None)
    monkeypatch.setattr(cli, "STATISTICS_LOCAL_S", -1.0)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(absent, "ThreadPoolExecutor", OneByOne)
    monkeypatch.setattr(runner, "time", Clock())
    monkeypatch.setattr(runner, "POLL_S", 60.0)

    def world(seed: int) -> World:
        folder = tmp_path / str(seed)
        folder.mkdir()
        return World(seed, folder, monkeypatch)

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


def test_no_operator_ever_erases_a_confirmed_message_of_a_live_broker_and_each_run_has_a_way_out(
    world_of: Callable[[int], World],
) -> None:
    assert next(violations(world_of, RUNS), "") == ""


def nothing(*_words: object, **_more: object) -> Any:
    return None


def unguarded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runner, "_see", nothing)
    patch.setattr(runner, "_see_seal", nothing)


def others_are_only_a_note(patch: pytest.MonkeyPatch) -> None:
    unguarded(patch)
    patch.setattr(OpenRun, "concerns", lambda _self, _brokers: False)
    patch.setattr(
        runner,
        "_done_before",
        lambda plan, kept: [one.name for one in plan.steps if one.name in kept.done],
    )


def options_are_no_part_of_a_run(patch: pytest.MonkeyPatch) -> None:
    others_are_only_a_note(patch)
    patch.setattr(cli, "settled", lambda _journal, options, *_, **__: options)
    plain = upgrade.plan

    def named_by_version(*words: Any, version: str = "") -> Any:
        plan = plain(*words, version=version)
        steps = tuple(
            dataclasses.replace(step, name=f"{step.name} {version}")
            if "install" in step.name
            else step
            for step in plan.steps
        )
        return dataclasses.replace(plan, steps=steps)

    patch.setattr(upgrade, "plan", named_by_version)


def the_journal_is_read_before_the_question(patch: pytest.MonkeyPatch) -> None:
    unguarded(patch)
    patch.setattr(lock, "held", lambda _file, _what: nullcontext())


def an_undo_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    unguarded(patch)
    patch.setattr(Journal, "take_back", nothing)
    made = SimulatedCluster.of
    patch.setattr(
        SimulatedCluster,
        "of",
        lambda chance: dataclasses.replace(made(chance), agents_read_lists=False),
    )


def other_virtual_hosts_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedView, "all_queues", lambda self, name: self.queues_of_the_bus(name))


def nobody_looks_at_the_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "others_serve", lambda *_, **__: lambda: "")


def what_was_proved_before_is_still_so(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runner, "_see_seal", nothing)
    patch.setattr(
        runner,
        "_done_before",
        lambda plan, kept: [one.name for one in plan.steps if one.name in kept.done],
    )


def a_torn_line_is_appended_to(patch: pytest.MonkeyPatch) -> None:
    def append(self: Journal, line: dict[str, Any]) -> None:
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


def the_others_are_dead(world: World, kill_in: int) -> None:
    world.killed(kill_in, "restart", "mb3")
    world.cluster.die("mb1")
    world.cluster.die("mb2")
    world.play("restart", "mb3")


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
        (the_others_are_dead, nobody_looks_at_the_others),
        (a_line_is_torn, a_torn_line_is_appended_to),
    ],
    ids=lambda each: each.__name__,
)
def test_a_bad_night_ends_well_wherever_a_playbook_is_killed_and_not_with_the_defect_of_old(
    world_of: Callable[[int], World],
    monkeypatch: pytest.MonkeyPatch,
    night: Callable[[World, int], None],
    defect: Callable[[pytest.MonkeyPatch], None],
) -> None:
    for kill_in in range(0, KILL_POINTS, 2):
        night(world_of(kill_in), kill_in)

    def every_night() -> None:
        for kill_in in range(KILL_POINTS):
            night(world_of(1000 + kill_in), kill_in)

    defect(monkeypatch)
    with pytest.raises(Violation):
        every_night()
