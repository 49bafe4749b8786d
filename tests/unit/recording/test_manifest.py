from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from messagebus.recording.files import Anchor
from messagebus.recording.manifest import (
    ConsumerEntry,
    Incident,
    LeftOut,
    Manifest,
    RunInvalid,
    read_manifest,
)

OFFSET = 1_000_000
GOOD: dict[str, Any] = {
    "run_id": "run-7",
    "topics": {"orders": ["billing", "audit"]},
    "brokers": ["mb1:5672"],
    "start_ns": 100,
    "end_ns": 900,
    "anchor": {"host": "h", "process": "c", "wall_minus_monotonic_ns": OFFSET},
    "grace_ns": 50,
    "publishers": ["p1"],
    "consumers": [{"name": "c1", "subscription": "billing"}],
    "prefetch": 200,
    "incidents": [{"kind": "kill", "broker": "mb1:5672", "at_ns": 300, "done_ns": None}],
    "complete": True,
}


def write(folder: Path, values: object) -> Path:
    text = values if isinstance(values, str) else json.dumps(values)
    (folder / "manifest.json").write_text(text)
    return folder


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    anchor = Anchor("host", "coordinator", 77)
    saved = Manifest(
        run_id="r1",
        topics={"packages": ("billing", "audit")},
        brokers=("127.0.0.11:5672",),
        start_ns=5,
        end_ns=9,
        anchor=anchor,
        publishers=("p1",),
        consumers=(ConsumerEntry(name="c1", subscription="billing"),),
        prefetch=200,
        incidents=(Incident("kill", "127.0.0.11:5672", 6, 7), Incident("reload", "", 8)),
        complete=True,
        loop="open",
        clocks=(anchor, Anchor("host", "p1", 78, "boot")),
        recorders={"p1": LeftOut(0.5, 3, 1)},
    )
    saved.save(tmp_path)
    assert read_manifest(tmp_path) == saved
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["topics"] == {"packages": ["billing", "audit"]}
    assert found["anchor"] == {
        "host": "host",
        "process": "coordinator",
        "wall_minus_monotonic_ns": 77,
    }
    assert found["consumers"] == [{"name": "c1", "subscription": "billing"}]
    assert found["incidents"][1] == {"kind": "reload", "broker": "", "at_ns": 8, "done_ns": None}


def test_times_become_wall_clock(tmp_path: Path) -> None:
    read = read_manifest(write(tmp_path, GOOD)).on_wall_clock()
    assert (read.start_ns, read.end_ns, read.last_owed_ns) == (
        OFFSET + 100,
        OFFSET + 900,
        OFFSET + 850,
    )
    assert read.kills == [("mb1:5672", OFFSET + 300)]
    assert read.incidents[0].done_ns is None
    assert read.incidents[0].ended_ns == OFFSET + 300
    assert read.pairs == [("orders", "audit"), ("orders", "billing")]


def test_a_run_without_an_end_owes_everything(tmp_path: Path) -> None:
    read = read_manifest(write(tmp_path, GOOD | {"end_ns": None, "complete": False}))
    assert (read.end_ns, read.last_owed_ns, read.complete) == (None, None, False)


def test_unknown_keys_are_for_others(tmp_path: Path) -> None:
    assert read_manifest(write(tmp_path, GOOD | {"host_load": 3})).run_id == "run-7"


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunInvalid, match="no such folder"):
        read_manifest(tmp_path / "nowhere")


def test_a_folder_without_manifest_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunInvalid, match="not the folder of a run"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ('{"run_id": "r', "not readable JSON"),
        ([], "dict wanted, not list"),
        ({key: GOOD[key] for key in GOOD if key != "topics"}, "'topics' is missing"),
        (GOOD | {"run_id": "../x"}, "run_id"),
        (GOOD | {"start_ns": 1.5}, "whole number"),
        (GOOD | {"topics": {"orders": "billing"}}, "list wanted"),
        (GOOD | {"incidents": [{"kind": "flood", "at_ns": 1}]}, "flood"),
        (GOOD | {"anchor": {"host": "h", "process": "c"}}, "wall_minus_monotonic_ns"),
        ("", "not readable JSON"),
        ({}, "'run_id' is missing"),
        (GOOD | {"anchor": 3}, "dict wanted, not int"),
    ],
)
def test_a_broken_manifest_says_what_is_wrong(tmp_path: Path, values: object, said: str) -> None:
    with pytest.raises(RunInvalid, match=said) as caught:
        read_manifest(write(tmp_path, values))
    assert "\n" not in str(caught.value)


def test_whatever_cuts_links_may_lose_acks(tmp_path: Path) -> None:
    kinds = ("freeze", "alarm", "close", "drain", "kill")
    incidents = [{"kind": kind, "broker": kind, "at_ns": 1, "done_ns": 2} for kind in kinds]
    read = read_manifest(write(tmp_path, GOOD | {"incidents": incidents}))
    assert [broker for broker, _ in read.kills] == ["freeze", "close", "kill"]


def test_the_folder_above_the_events_says_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    write(tmp_path / "events", GOOD)
    with pytest.raises(RunInvalid, match=r"not the folder of a run; its events are in .*/events$"):
        read_manifest(tmp_path)
