"""All hosts are checked before the first of them is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inventory.inventory import parse
from ops.__main__ import main
from ops.errors import HostUnreachable
from ops.provision import hosts as cli
from ops.provision.changes import Change
from ops.run import command
from tests.support.balancer import BASE, mirrored_values


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The changes that were made; hosts a1 and a2 need them, b1 does not, b2 is away."""
    done: list[str] = []
    inventory = parse(mirrored_values(), base=BASE)

    @contextmanager
    def root_of(_inventory: object, name: str) -> Iterator[str]:
        if name == "b2":
            raise HostUnreachable(name, "No route to host")
        yield name

    def make(wants: list[Change], root: str, _program: object, **_say: Any) -> None:
        done.extend(f"{root}: {change.what}" for change in wants)

    replaced: dict[str, Any] = {
        "root_of": root_of,
        "make": make,
        "pack": lambda: SimpleNamespace(digest="d"),
        "read_secrets": lambda _inventory: {},
        "wanted_host": lambda _inventory, name, *_rest: name,
        "look": lambda _wanted, root: root,
        "changes": lambda name, _seen: [] if name == "b1" else [Change(what="install x")],
        "restart_wanted": lambda wants, _seen: bool(wants),
        "check_room": lambda *_args, **_more: None,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(cli, name, function)
    for module in (cli, command):
        monkeypatch.setattr(module, "load", lambda _file: inventory)
    return done


def provision(folder: Path, *words: str) -> int:
    return main(["provision", *words, "--inventory", str(folder / "inventory.toml")])


def test_one_host_that_is_away_keeps_all_as_they_are(
    changed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert provision(tmp_path, "a1", "b2", "--yes") == 6
    assert changed == []
    assert capsys.readouterr().err == "ops: b2: no SSH: No route to host\n"


def test_the_lock_of_the_cluster_is_held_on_balancers_hosts_too_while_hosts_are_looked_at_and_changed(
    changed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []

    @contextmanager
    def everywhere(_file: Path, _inventory: Path, what: str) -> Iterator[None]:
        held.append(what)
        yield
        assert changed == ["a1: install x"]
        held.remove(what)

    monkeypatch.setattr("ops.run.command.cluster_lock", everywhere)

    def look(_wanted: object, root: str) -> str:
        assert held == ["provision a1"]
        return root

    monkeypatch.setattr(cli, "look", look)
    assert provision(tmp_path, "a1", "--yes") == 0
    assert held == []


def test_what_is_right_is_left_alone_and_the_rest_is_told_and_done(
    changed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert provision(tmp_path, "a1", "b1", "a2", "--dry-run") == 0
    assert changed == []
    planned = ["a1: install x", "b1: nothing to change", "a2: install x"]
    assert capsys.readouterr().out.splitlines() == planned
    assert provision(tmp_path, "a1", "b1", "a2", "--yes") == 0
    assert changed == ["a1: install x", "a2: install x"]
    assert "a2: its broker reads some of this when it starts" in capsys.readouterr().out
