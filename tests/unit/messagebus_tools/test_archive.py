"""`messagebus to-file`: blocks on the disk, and files that a killed process left."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus.__main__ import cli
from messagebus_tools import archive
from messagebus_tools.archive import Archive, open_archive, recover

KINDS = list(archive.SUFFIXES)


def new(folder: Path, compress: str = "none", **how: float) -> Archive:
    bounds = {"rotate_bytes": 1 << 30, "rotate_s": 3_600.0, **how}
    return Archive(folder, "orders.all", compress=compress, **bounds)  # type: ignore[arg-type]


def read(folder: Path) -> list[bytes]:
    """Return the lines of all finished files, in order."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix != archive.PART:
            with open_archive(path) as file:
                found += file.readlines()
    return found


def lines(begin: int, end: int) -> list[bytes]:
    return [b'{"n":%d}\n' % number for number in range(begin, end)]


@pytest.mark.parametrize("compress", KINDS)
def test_what_is_written_is_read_from_finished_files(tmp_path: Path, compress: str) -> None:
    made = new(tmp_path / "deep" / "er", compress)
    for begin in range(0, 30, 10):
        made.write(lines(begin, begin + 10))
    (part,) = (tmp_path / "deep" / "er").iterdir()
    assert part.suffix == archive.PART
    made.finish()
    assert read(tmp_path / "deep" / "er") == lines(0, 30)
    assert made.written == 30


@pytest.mark.parametrize("compress", KINDS)
@settings(max_examples=30, deadline=None)
@given(cut=st.integers(0, 2_000))
def test_whatever_is_cut_off_all_whole_blocks_are_kept(
    tmp_path_factory: pytest.TempPathFactory, compress: str, cut: int
) -> None:
    """A kill, or a power-off, may leave any part of what was written after the last fsync."""
    folder = tmp_path_factory.mktemp("cut")
    made, ends = new(folder, compress), [0]
    for begin in range(0, 100, 10):
        made.write(lines(begin, begin + 10))
        (part,) = folder.iterdir()
        ends.append(part.stat().st_size)
    assert made._file is not None
    made._file.close()
    left = max(0, ends[-1] - cut)
    os.truncate(part, left)
    assert len(recover(folder)) == (1 if read(folder) else 0)
    kept = read(folder)
    assert kept == lines(0, len(kept))
    assert len(kept) >= 10 * sum(end <= left for end in ends[1:])
    assert [each for each in folder.glob(f"*{archive.PART}") if each.stat().st_size] == []


def test_a_file_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    part = tmp_path / "orders.all-1.ndjson.part"
    part.write_bytes(b'{"n":0}\n')
    with part.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert recover(tmp_path) == []
        assert part.exists()
    assert recover(tmp_path) == [tmp_path / "orders.all-1.ndjson"]


def test_a_file_that_another_process_is_about_to_lock_is_left_alone(tmp_path: Path) -> None:
    """It is empty then; removed, its writer would ack messages that are in no file."""
    part = tmp_path / "orders.all-1.ndjson.part"
    part.touch()
    assert recover(tmp_path) == []
    assert part.exists()


def test_files_change_by_size_and_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new(tmp_path, rotate_bytes=100)
    for begin in range(0, 40, 10):
        made.write(lines(begin, begin + 10))
    assert len(list(tmp_path.glob("*.ndjson"))) == 2
    now_s = time.monotonic()
    made.write(lines(40, 41))
    made.rotate()
    assert len(list(tmp_path.glob("*.part"))) == 1
    later = SimpleNamespace(monotonic=lambda: now_s + 3_601)
    monkeypatch.setattr(archive, "time", later)
    made.rotate()
    assert read(tmp_path) == lines(0, 41)


def test_a_full_disk_is_waited_for_and_nothing_is_twice_in_whole_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, full = new(tmp_path), [True, True]
    made.write(lines(0, 10))

    def fsync(fd: int) -> None:
        if full and full.pop():
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive, "AGAIN_S", 0.0)
    monkeypatch.setattr("messagebus_tools.archive.os.fsync", fsync)
    archive._write(made, lines(10, 20), patience_s=60)
    made.finish()
    recover(tmp_path)
    assert set(read(tmp_path)) == set(lines(0, 20))


def test_a_disk_that_stays_full_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new(tmp_path)

    def fsync(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive, "AGAIN_S", 0.0)
    monkeypatch.setattr("messagebus_tools.archive.os.fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        archive._write(made, lines(0, 10), patience_s=0.05)


def test_a_file_without_destinations_wants_to_be_told_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messagebus.commands.flow.directory.reach", lambda *_, **__: None)
    monkeypatch.setattr("messagebus.publisher.Publisher.start", lambda *_, **__: None)
    monkeypatch.setattr("messagebus.publisher.Publisher.stop", lambda *_, **__: 0)
    (tmp_path / "x.ndjson").write_bytes(b'{"body":"x"}\n')
    done = CliRunner().invoke(
        cli, ["from-file", str(tmp_path / "x.ndjson")], prog_name="messagebus"
    )
    assert done.exit_code == 2
    assert "x.ndjson: an envelope without a destination: say --to" in done.stderr
