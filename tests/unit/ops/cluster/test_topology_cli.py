"""`ops topology sync`, on agents that are made of dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inventory.tables import Provision
from ops.__main__ import main
from ops.cluster import topology_cli


def entry(wanted: str, number: int = 1) -> dict[str, Any]:
    return {"wanted": wanted, "number": number, "origin": "mb1:1", "alive": True}


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
    monkeypatch.setattr(topology_cli, "View", lambda _file: agents)
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

    def snapshots_told(self) -> tuple[dict[str, Any], dict[str, str]]:
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
    monkeypatch.setattr(topology_cli, "View", lambda _file: agents)
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
        ({"mb1", "mb2"}, set(), "nothing to vouch for"),
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
