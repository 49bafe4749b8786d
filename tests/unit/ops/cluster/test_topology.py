from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inventory.tables import Provision
from messagebus.topology import LADDER, declarations, parse_wanted
from ops.__main__ import main
from ops.cluster import topology
from ops.cluster.topology import Difference, differences, foreign, latest, newer_than, wanted_items


def entry(wanted: str, number: int = 1, *, alive: bool = True, **options: Any) -> dict[str, Any]:
    return {
        "wanted": wanted,
        "number": number,
        "origin": "a:1",
        "alive": alive,
        "tomb": 0,
        "changed_at_ms": 0,
        **options,
    }


def test_the_newest_word_counts_also_when_it_is_a_deletion() -> None:
    maps = {
        "mb1": {"orders": entry("orders", 3), "jobs": entry("jobs", 1)},
        "mb2": {"orders": entry("orders", 4, alive=False)},
    }
    assert {name: each["number"] for name, each in latest(maps).items()} == {"orders": 4, "jobs": 1}
    assert newer_than(maps["mb1"], maps["mb2"]) == ["orders"]
    assert newer_than(maps["mb2"], maps["mb1"]) == ["jobs"]
    assert differences(maps, {}, {}) == [
        Difference("mb1", "orders", "is deleted: its agent has an older word"),
        Difference("mb2", "jobs", "is wanted: its agent does not know"),
    ]


def test_agents_that_know_the_same_and_brokers_that_have_it_differ_in_nothing() -> None:
    maps = {name: {"orders": entry("orders", 3)} for name in ("mb1", "mb2")}
    settled = {name: {"mb.sub/orders/a": True} for name in maps}
    queues = {name: {"mb.sub/orders/a": 5, "mine": 1, "mb.settle": 0} for name in maps}
    assert differences(maps, settled, queues) == []


def test_a_queue_that_is_missing_and_one_that_nobody_wants_are_told() -> None:
    found = differences(
        {}, {"mb1": {"mb.sub/orders/a": False}}, {"mb1": {"mb.sub/orders/old": 1200}}
    )
    assert [str(each) for each in found] == [
        "mb1: mb.sub/orders/a is not there, or not settled",
        "mb1: mb.sub/orders/old is wanted by nobody; it holds 1,200 messages",
    ]


def test_agents_are_asked_for_what_is_alive_with_its_options() -> None:
    entries = [entry("orders/a", 1, single_active=True), entry("gone", 2, alive=False)]
    assert wanted_items(entries) == [{"name": "orders/a", "single_active": True}]


def test_a_binding_that_nobody_wants_is_told() -> None:
    entries = {name: entry(name, 1) for name in ("orders", "orders/a", "queue:jobs", "delay:1000")}
    wanted = [
        (each.exchange, each.queue, each.routing_key)
        for name in entries
        for each in (*declarations(parse_wanted(name)).bindings, *LADDER.bindings)
    ]
    others = [("", "mb.sub/orders/a", "mb.sub/orders/a"), ("mine", "my.queue", "")]
    marked = [("mb.settled/mb.queue/jobs", "mb.queue/jobs", "")]
    assert list(foreign("mb1", entries, [*wanted, *others, *marked])) == []
    strange = [("mb.topic/orders", "mb.queue/jobs", ""), ("mb.out", "mb.sub/orders/a", "mb.to/x")]
    before = [("mb.queue/jobs", "mb.queue/jobs", "")]
    assert list(foreign("mb1", entries, [*wanted, *before], old_publishers=True)) == []
    assert [str(each) for each in foreign("mb1", entries, [*wanted, *strange, *before])] == [
        "mb1: exchange mb.out leads to mb.sub/orders/a under mb.to/x, and nobody wants that",
        "mb1: exchange mb.queue/jobs is of an earlier version: "
        "delete it when no publisher needs it any more",
        "mb1: exchange mb.topic/orders leads to mb.queue/jobs, and nobody wants that",
    ]


class Agents:
    """Agents whose brokers have all that they know. merged: agents that were told, in order."""

    def __init__(self, **entries: list[dict[str, Any]]) -> None:
        self.maps = {
            name: {each["wanted"]: each for each in known} for name, known in entries.items()
        }
        self.nodes = [SimpleNamespace(name=name) for name in entries]
        self.inventory = SimpleNamespace(provision=Provision())
        self.merged: list[str] = []

    def snapshots(self) -> dict[str, Any]:
        return {name: {"entries": list(known.values())} for name, known in self.maps.items()}

    def merge(self, name: str, snapshot: Mapping[str, Any]) -> None:
        self.merged.append(name)
        for each in snapshot["entries"]:
            if each["number"] >= self.maps[name].get(each["wanted"], entry("", 0))["number"]:
                self.maps[name][each["wanted"]] = each

    def settled(self, _name: str) -> dict[str, Any]:
        return {"queues": {}}

    def queues(self, _name: str) -> list[Any]:
        return []

    def bindings(self, _name: str) -> list[Any]:
        return []

    def mismatch(self, _name: str, _items: object) -> str:
        return ""


def test_each_agent_is_told_once_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [entry("orders"), entry("orders/billing", 2)]
    agents = Agents(mb1=whole, mb2=whole, mb3=[entry("orders")])
    monkeypatch.setattr(topology, "View", lambda _file: agents)
    assert main(["topology", "diff", "--inventory", str(tmp_path / "i.toml")]) == 7
    told = "mb3: orders/billing is wanted: its agent does not know\n"
    assert capsys.readouterr().out == told
    assert main(["topology", "sync", "--inventory", str(tmp_path / "i.toml")]) == 0
    assert agents.merged == ["mb3"]
    assert capsys.readouterr().out == "1 entry was told to agents that did not know them\n"
    assert main(["topology", "diff", "--inventory", str(tmp_path / "i.toml")]) == 0
    assert capsys.readouterr().out == "3 agents and brokers have the same\n"


class Lost(Agents):
    """Agents of which some have lost their maps, and some do not answer."""

    def __init__(self, intact: set[str], silent: set[str], **entries: list[dict[str, Any]]) -> None:
        super().__init__(**entries)
        self.intact, self.silent = intact, silent

    def answering_snapshots(self) -> tuple[dict[str, Any], dict[str, str]]:
        told = {
            name: {"intact": name in self.intact, **snapshot}
            for name, snapshot in self.snapshots().items()
            if name not in self.silent
        }
        return told, {name: f"agent of {name}: refused" for name in self.silent}

    def adopt(self, name: str, snapshot: Mapping[str, Any]) -> None:
        self.merge(name, snapshot)
        self.intact.add(name)


def adopt(agents: Lost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> int:
    monkeypatch.setattr(topology, "View", lambda _file: agents)
    return main(["topology", "adopt", "--inventory", str(tmp_path / "i.toml"), *words])


@pytest.mark.guarantee("adopt-on-operators-word")
def test_a_map_that_no_majority_can_vouch_for_is_adopted_on_operators_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = Lost({"mb1"}, {"mb3"}, mb1=[entry("orders")], mb2=[entry("queue:jobs")], mb3=[])
    assert adopt(agents, monkeypatch, tmp_path, "--yes") == 0
    assert agents.intact == {"mb1", "mb2"}
    assert set(agents.maps["mb1"]) == set(agents.maps["mb2"]) == {"orders", "queue:jobs"}
    told = capsys.readouterr().out
    assert "mb1: 1 wanted, intact\nmb2: 1 wanted, NOT intact\nagent of mb3: refused" in told


@pytest.mark.guarantee("adopt-on-operators-word")
@pytest.mark.parametrize(
    ("intact", "silent", "why"),
    [
        ({"mb1", "mb2"}, set(), "there is nothing to rebuild"),
        ({"mb1"}, {"mb2", "mb3"}, "start them first"),
    ],
)
def test_nobody_vouches_where_a_majority_can_or_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    intact: set[str],
    silent: set[str],
    why: str,
) -> None:
    agents = Lost(intact, silent, mb1=[entry("orders")], mb2=[], mb3=[])
    assert adopt(agents, monkeypatch, tmp_path, "--yes") == 1
    assert why in capsys.readouterr().err
    assert not agents.merged
