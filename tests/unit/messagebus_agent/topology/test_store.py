"""The files of an agent."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from messagebus.errors import ConfigError
from messagebus_agent.topology.register import Entry, Snapshot
from messagebus_agent.topology.store import (
    Store,
    entry_from_json,
    entry_to_json,
    genesis,
    snapshot_from_json,
    snapshot_to_json,
)

ENTRY = Entry(wanted="orders/a", number=4, origin="h:1", alive=False, tomb=4)
MAP = Snapshot(intact=True, floor=2, entries=(ENTRY,))


def test_a_map_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.prepare()
    assert store.load_map() is None
    store.save_map(MAP)
    assert Store(tmp_path / "state").load_map() == MAP


def test_a_map_is_synced_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        order.append("sync")
        fsync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        order.append("replace")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    Store(tmp_path).save_map(MAP)
    assert order == ["sync", "replace", "sync"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"intact": 1, "entries": []}'])
def test_a_damaged_map_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "topology.json").write_text(text)
    assert Store(tmp_path).load_map() is None


def test_genesis_writes_an_intact_empty_map_once(tmp_path: Path) -> None:
    assert genesis(tmp_path / "state")
    first = Store(tmp_path / "state").load_map()
    assert first is not None
    assert first.intact
    assert first.entries == ()
    assert not first.entries
    Store(tmp_path / "state").save_map(MAP)
    assert not genesis(tmp_path / "state")
    assert Store(tmp_path / "state").load_map() == MAP


def test_the_drain_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert not store.load_draining()
    for draining in (True, True, False, False):
        store.save_draining(draining)
        assert Store(tmp_path).load_draining() == draining


def test_a_report_is_read_back_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load_report() == {}
    store.save_report({"held": {"a": 1}})
    assert store.load_report() == {"held": {"a": 1}}
    (tmp_path / "report.json").write_text("[")
    assert store.load_report() == {}


def test_a_folder_that_cannot_be_had_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="state_dir"):
        Store(tmp_path / "file" / "state").prepare()


def test_maps_and_entries_are_read_back_from_json() -> None:
    assert snapshot_from_json(snapshot_to_json(MAP)) == MAP
    assert entry_from_json(entry_to_json(ENTRY)) == ENTRY


@pytest.mark.parametrize(
    "changed",
    [{"number": "4"}, {"alive": 1}, {"wanted": "a b"}, {"tomb": None}, {"number": True}],
)
def test_an_entry_that_is_none_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"entry|name"):
        entry_from_json(entry_to_json(ENTRY) | changed)


@pytest.mark.parametrize(
    "value", [None, [], {}, {"entries": {}}, {"entries": [], "intact": True, "floor": "x"}]
)
def test_a_map_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"map|floor"):
        snapshot_from_json(value)


def test_a_map_of_an_earlier_version_is_read() -> None:
    """It had times beside the numbers, which decide nothing any more."""
    old = snapshot_to_json(MAP) | {"current_at_ms": 5}
    del old["dropped"]
    old["entries"][0]["changed_at_ms"] = 9
    assert snapshot_from_json(old) == replace(MAP, dropped=MAP.floor)
