"""Uploads take what nobody writes any more, look before they delete, and tell what made room."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import IO

import pytest

from messagebus.errors import ConfigError
from messagebus.recording.files import EventFile, anchor_now
from messagebus.recording.manifest import MANIFEST
from messagebus.recording.parts import RunPart, note
from messagebus_tools.uploads import Uploads, store_of


class Fake:
    """A store in memory. away: every call fails. short: keeps that many bytes only."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.away, self.short = False, -1

    def put(self, source: IO[bytes], name: str) -> None:
        if self.away:
            raise OSError("SlowDown:\n please reduce your rate")
        content = source.read()
        self.files[name] = content if self.short < 0 else content[: self.short]

    def size(self, name: str) -> int | None:
        return len(self.files[name]) if name in self.files else None


def recorded(folder: Path, number: int, rows: int = 3) -> EventFile:
    """Make a file of some rows, still open."""
    path = folder / f"published-p1-{number:04}.ndjson"
    file = EventFile(path, anchor_now("p1"), clock_ns=time.monotonic_ns)
    for row in range(rows):
        file.write(json.dumps({"row": row}))
    file.flush()
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    note(made, RunPart(run_id="r", name="p1", anchor=anchor_now("p1"), start_ns=1, share=1.0))
    return made


def test_a_closed_file_goes_whole_and_one_that_is_written_stays(folder: Path) -> None:
    store = Fake()
    recorded(folder, 1).close()
    whole = (folder / "published-p1-0001.ndjson").read_bytes()
    writing = recorded(folder, 2)
    (folder / "published-p1-0003.ndjson").touch()  # made, and not locked yet
    uploads = Uploads(folder, "there", store=store)
    assert uploads.upload()
    assert store.files["published-p1-0001.ndjson"] == whole
    assert sorted(store.files) == ["manifest-p1.json", "published-p1-0001.ndjson"]
    assert sorted(path.name for path in folder.glob("*.ndjson")) == [
        "published-p1-0002.ndjson",
        "published-p1-0003.ndjson",
    ]
    writing.write("{}")
    writing.close()
    assert uploads.upload()
    assert store.files["published-p1-0002.ndjson"].endswith(b"{}\n")
    assert uploads.stats().files == 2


def test_what_did_not_arrive_whole_stays_and_goes_later(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Fake()
    recorded(folder, 1).close()
    uploads = Uploads(folder, "there", store=store)
    for store.away, store.short in ((True, -1), (True, -1), (False, 10), (False, 0)):
        assert not uploads.upload()
        assert [*folder.glob("*.ndjson")]
    store.short = -1
    assert uploads.upload()
    assert not [*folder.glob("*.ndjson")]
    stats = uploads.stats()
    assert (stats.failed, stats.files, stats.waiting, stats.deleted) == (4, 1, 0, 0)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3  # one text is told once
    assert all("\n" not in line for line in told)


def test_a_disk_that_fills_loses_the_oldest_files_and_the_manifest_says_so(folder: Path) -> None:
    store = Fake()
    store.away = True
    for number in range(1, 6):
        recorded(folder, number).close()
    size = (folder / "published-p1-0001.ndjson").stat().st_size
    uploads = Uploads(folder, "there", store=store, bytes_max=2 * size)
    assert not uploads.upload()
    left = sorted(path.name for path in folder.glob("*.ndjson"))
    assert left == ["published-p1-0004.ndjson", "published-p1-0005.ndjson"]
    assert uploads.stats().deleted == 3
    values = json.loads((folder / MANIFEST).read_text())
    assert sum(each["files_deleted"] for each in values["recorders"].values()) == 3
    assert values["recording"] == ["p1"]


def test_an_uploader_killed_while_it_makes_room_has_told_what_it_deletes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 4):
        recorded(folder, number).close()

    def killed(_path: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        Uploads(folder, "there", store=Fake(), bytes_max=1).upload()
    values = json.loads((folder / MANIFEST).read_text())
    assert sum(each["files_deleted"] for each in values["recorders"].values()) == 3


def test_a_folder_in_which_nobody_recorded_is_nothing_to_wait_for(tmp_path: Path) -> None:
    with Uploads(tmp_path / "none", str(tmp_path / "there")) as uploads:
        pass
    assert uploads.stats().files == 0
    assert not (tmp_path / "there").exists()


def test_a_folder_is_an_address_and_gets_whole_files(folder: Path, tmp_path: Path) -> None:
    recorded(folder, 1).close()
    with Uploads(folder, f"file://{tmp_path}/there") as uploads:
        pass
    assert uploads.stats().files == 1
    found = sorted(path.name for path in (tmp_path / "there").iterdir())
    assert found == ["manifest-p1.json", "published-p1-0001.ndjson"]


def test_keys_in_an_address_and_unknown_protocols_are_one_line() -> None:
    with pytest.raises(ConfigError, match="keys belong in the environment") as told:
        store_of("s3a://key:secret-1@lake/run")
    assert "secret-1" not in str(told.value)
    with pytest.raises(ConfigError) as told:
        store_of("nothing://lake/run")
    assert "\n" not in str(told.value)


def test_the_folder_itself_as_its_address_loses_nothing(folder: Path, tmp_path: Path) -> None:
    recorded(folder, 1).close()
    (tmp_path / "link").symlink_to(folder)
    for address in (str(folder), f"file://{folder}", str(tmp_path / "link")):
        uploads = Uploads(folder, address)
        assert not uploads.upload()
        assert uploads.stats().waiting == 1
    assert (folder / "published-p1-0001.ndjson").stat().st_size


def test_a_broken_manifest_and_a_round_elsewhere_end_no_uploads(folder: Path) -> None:
    store = Fake()
    uploads = Uploads(folder, "there", store=store)
    (folder / MANIFEST).write_text("{")
    recorded(folder, 1).close()
    assert not uploads.upload()
    assert uploads.stats().failed == 1
    assert sorted(store.files) == ["published-p1-0001.ndjson"]
    (folder / MANIFEST).write_text('{"anchor": {"process": "p1"}}')
    with (folder / ".uploads.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not uploads.upload()
    assert uploads.upload()
    assert sorted(store.files) == ["manifest-p1.json", "published-p1-0001.ndjson"]
