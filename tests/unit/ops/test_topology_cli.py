"""`ops topology sync`, on agents that are made of dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ops import topology_cli
from ops.__main__ import main


def entry(wanted: str, number: int = 1) -> dict[str, Any]:
    return {"wanted": wanted, "number": number, "origin": "mb1:1", "alive": True}


class Agents:
    """Every broker has what its agent knows. merged: who was told, in order."""

    def __init__(self, **entries: list[dict[str, Any]]) -> None:
        self.maps = {
            name: {each["wanted"]: each for each in known} for name, known in entries.items()
        }
        self.nodes = [SimpleNamespace(name=name) for name in entries]
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

    def mismatch(self, _name: str, _items: object) -> str:
        return ""


def test_each_agent_is_told_once_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [entry("orders"), entry("orders/billing", 2)]
    agents = Agents(mb1=whole, mb2=whole, mb3=[entry("orders")])
    monkeypatch.setattr(topology_cli, "View", lambda _file: agents)
    with pytest.raises(SystemExit, match="1"):
        main(["topology", "diff", "--inventory", str(tmp_path / "i.toml")])
    told = "mb3: orders/billing is wanted: its agent does not know\n"
    assert capsys.readouterr().out == told
    assert main(["topology", "sync", "--inventory", str(tmp_path / "i.toml")]) == 0
    assert agents.merged == ["mb3"]
    assert capsys.readouterr().out == "1 entries were told to agents that did not know them\n"
    assert main(["topology", "diff", "--inventory", str(tmp_path / "i.toml")]) == 0
    assert capsys.readouterr().out == "3 agents and brokers have the same\n"
