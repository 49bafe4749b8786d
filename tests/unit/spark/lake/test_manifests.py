"""Manifests that hosts uploaded are one run: by the wall clock, complete when all of them are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from messagebus.recording.files import Anchor
from messagebus.recording.manifest import RunInvalid
from messagebus.recording.parts import RunPart, merged
from spark.lake.manifests import manifest_of


def host(folder: Path, name: str, offset: int, *, ended: bool = True, run_id: str = "r") -> None:
    part = RunPart(
        run_id=run_id,
        name=name,
        anchor=Anchor(name, name, offset, f"boot-{name}"),
        start_ns=100,
        end_ns=900 if ended else None,
        topics={"orders": {f"of-{name}"}},
        brokers={f"{name}:5672"},
        publishers={name},
        consumers={(name, f"of-{name}")},
        share=0.5,
        dropped=3,
        loop="closed",
    )
    (folder / f"manifest-{name}.json").write_text(json.dumps(merged(None, part)))


def test_manifests_of_hosts_with_clocks_of_their_own_are_joined(tmp_path: Path) -> None:
    host(tmp_path, "a", 1_000)
    host(tmp_path, "b", 5_000)
    found, values = manifest_of(tmp_path)
    assert found.topics == {"orders": ("of-a", "of-b")}
    assert found.brokers == ("a:5672", "b:5672")
    assert (found.on_wall_clock().start_ns, found.on_wall_clock().end_ns) == (1_100, 5_900)
    assert [clock.boot for clock in found.clocks] == ["boot-a", "boot-b"]
    assert sum(left.dropped for left in found.recorders.values()) == 6
    assert found.complete
    assert found.share == 0.5
    assert values["run_id"] == "r"
    # A host that comes later changes the run, and is no other run of its name.
    host(tmp_path, "0", 9_000, ended=False)
    later, _ = manifest_of(tmp_path)
    assert later.anchor == found.anchor
    assert not later.complete


def test_manifests_of_two_runs_and_broken_ones_are_refused_by_name(tmp_path: Path) -> None:
    host(tmp_path, "a", 1_000)
    host(tmp_path, "b", 5_000, run_id="other")
    with pytest.raises(RunInvalid, match="several runs: other, r"):
        manifest_of(tmp_path)
    (tmp_path / "manifest-b.json").write_text("{")
    with pytest.raises(RunInvalid, match=r"manifest-b\.json: not readable JSON"):
        manifest_of(tmp_path)
    (tmp_path / "manifest-b.json").write_text("[]")
    with pytest.raises(RunInvalid, match=r"manifest-b\.json: manifest: dict wanted"):
        manifest_of(tmp_path)
    with pytest.raises(RunInvalid, match=r"no manifest\.json in it"):
        manifest_of(tmp_path.parent)
