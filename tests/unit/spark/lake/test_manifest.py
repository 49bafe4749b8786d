from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark.lake.manifest import RunInvalid, read_manifest

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


def test_times_become_wall_clock(tmp_path: Path) -> None:
    read = read_manifest(write(tmp_path, GOOD))
    assert (read.start_ns, read.end_ns, read.last_owed_ns) == (
        OFFSET + 100,
        OFFSET + 900,
        OFFSET + 850,
    )
    assert read.kills == [("mb1:5672", OFFSET + 300)]
    assert read.incidents[0].done_ns == OFFSET + 300
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
