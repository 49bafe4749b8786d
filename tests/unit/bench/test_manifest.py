import json
from pathlib import Path

import pytest

from bench.errors import InputInvalid
from bench.manifest import ConsumerEntry, Incident, Manifest
from messagebus.recording.files import Anchor

MANIFEST = Manifest(
    run_id="r1",
    topics={"packages": ("billing", "audit")},
    brokers=("127.0.0.11:5672",),
    start_ns=5,
    end_ns=9,
    anchor=Anchor("host", "coordinator", 77),
    publishers=("p1",),
    consumers=(ConsumerEntry(name="c1", subscription="billing"),),
    prefetch=200,
    incidents=(
        Incident(kind="kill", broker="127.0.0.11:5672", at_ns=6, done_ns=7),
        Incident(kind="reload", broker="", at_ns=8),
    ),
    complete=True,
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    MANIFEST.save(tmp_path)
    assert Manifest.load(tmp_path) == MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_the_file_has_the_documented_form(tmp_path: Path) -> None:
    MANIFEST.save(tmp_path)
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["topics"] == {"packages": ["billing", "audit"]}
    assert found["anchor"] == {
        "host": "host",
        "process": "coordinator",
        "wall_minus_monotonic_ns": 77,
    }
    assert found["consumers"] == [{"name": "c1", "subscription": "billing"}]
    assert found["incidents"][1] == {"kind": "reload", "broker": "", "at_ns": 8, "done_ns": None}


def test_a_folder_that_is_no_run_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match="not a run"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run_id": "r", "anchor": 3}'])
def test_a_manifest_that_makes_no_sense_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputInvalid, match="not a manifest"):
        Manifest.load(tmp_path)
