from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from messagebus.errors import RecordingFailed
from messagebus.recording.files import Anchor
from messagebus.recording.manifest import ConsumerEntry, read_manifest
from messagebus.recording.parts import RunPart, merged, note

HERE = Anchor("here", "p1", 1_000)


def part(name: str, anchor: Anchor = HERE, **fields: Any) -> RunPart:
    return RunPart(run_id="r", name=name, anchor=anchor, **{"start_ns": 5, **fields})


def test_a_run_is_what_its_parts_saw() -> None:
    first = part("p1", topics={"orders": set()}, brokers={"b2"}, publishers={"p1"})
    second = part(
        "c1",
        start_ns=3,
        grace_ns=9,
        topics={"orders": {"billing"}, "jobs": {"x"}},
        brokers={"b1", "b2"},
        consumers={("c1", "billing")},
    )
    known = merged(merged(None, first), second)
    assert known["topics"] == {"jobs": ["x"], "orders": ["billing"]}
    assert (known["brokers"], known["publishers"]) == (["b1", "b2"], ["p1"])
    assert known["consumers"] == [{"name": "c1", "subscription": "billing"}]
    assert (known["start_ns"], known["grace_ns"], known["end_ns"]) == (3, 9, None)
    assert merged(known, second) == known


def test_it_is_complete_when_all_that_began_have_ended() -> None:
    known = merged(merged(None, part("p1")), part("c1"))
    assert (known["recording"], known["complete"]) == (["c1", "p1"], False)
    known = merged(known, part("p1", end_ns=70))
    assert (known["complete"], known["end_ns"]) == (False, 70)
    known = merged(known, part("c1", end_ns=60))
    assert (known["complete"], known["end_ns"]) == (True, 70)


def test_times_of_another_host_become_those_of_the_first() -> None:
    there = Anchor("there", "c1", 1_300)
    known = merged(merged(None, part("p1")), part("c1", there, start_ns=-400, end_ns=10))
    assert (known["start_ns"], known["end_ns"]) == (-100, 310)


def test_what_each_recorder_left_out_is_told(tmp_path: Path) -> None:
    note(tmp_path, part("p1", share=0.1, dropped=3, loop="closed"))
    note(tmp_path, part("p1", share=0.1, dropped=7, files_deleted=1, loop="closed"))
    note(tmp_path, part("queues"))
    note(tmp_path, part("c1", share=1.0, loop="closed"))
    known = json.loads((tmp_path / "manifest.json").read_text())
    assert known["recorders"] == {
        "c1": {"share": 1.0, "dropped": 0, "files_deleted": 0},
        "p1": {"share": 0.1, "dropped": 7, "files_deleted": 1},
    }
    assert known["loop"] == "closed"
    # Another change of the manifest keeps it.
    read_manifest(tmp_path).save(tmp_path)
    again = json.loads((tmp_path / "manifest.json").read_text())
    assert {name: again[name] for name in ("recorders", "loop", "clocks")} == {
        name: known[name] for name in ("recorders", "loop", "clocks")
    }


def test_intended_times_are_open_only_where_all_of_them_are() -> None:
    known = merged(None, part("p1", loop="open"))
    assert known["loop"] == "open"
    assert merged(known, part("p2", loop="closed"))["loop"] == "closed"


def test_a_boot_has_one_clock_and_hosts_of_one_name_have_one_each() -> None:
    first = Anchor("web", "p1", 1_000, "boot-1")
    known = merged(None, part("p1", first))
    same = merged(known, part("p2", Anchor("pod", "p2", 1_005, "boot-1"), start_ns=4))
    assert (same["clocks"], same["start_ns"]) == ([first.as_json()], 4)
    other = Anchor("web", "p3", 1_300, "boot-2")
    two = merged(known, part("p3", other, start_ns=-400))
    assert (two["clocks"], two["start_ns"]) == ([first.as_json(), other.as_json()], -100)


def test_the_file_is_one_that_the_audit_reads(tmp_path: Path) -> None:
    note(tmp_path, part("p1", topics={"orders": {"billing"}}, consumers={("c1", "billing")}))
    manifest = read_manifest(tmp_path)
    assert (manifest.run_id, manifest.anchor, manifest.complete) == ("r", HERE, False)
    assert manifest.topics == {"orders": ("billing",)}
    assert manifest.consumers == (ConsumerEntry(name="c1", subscription="billing"),)


def test_a_folder_of_another_run_is_left_alone(tmp_path: Path) -> None:
    note(tmp_path, part("p1"))
    before = (tmp_path / "manifest.json").read_text()
    other = RunPart(run_id="s", name="p2", anchor=HERE, start_ns=1)
    with pytest.raises(RecordingFailed, match="no manifest of 's': it is of run 'r'"):
        note(tmp_path, other)
    assert (tmp_path / "manifest.json").read_text() == before


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", json.dumps({"run_id": "r"})])
def test_a_manifest_that_makes_no_sense_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RecordingFailed, match="no manifest of 'r'"):
        note(tmp_path, part("p1"))


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordingFailed, match="cannot be written: No such file"):
        note(tmp_path / "gone", part("p1"))
