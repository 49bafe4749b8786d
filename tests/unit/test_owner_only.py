"""Files with bodies, people or secrets: another user of the machine reads none of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from messagebus._io.publish.spool.folder import SpoolFolder
from messagebus.recording.files import Anchor, EventFile
from messagebus.services.agent.web.trail import Trail
from messagebus.services.monitor.eventlog import Event, EventLog
from messagebus.tools.archive import Archive
from ops.__main__ import cli
from ops.backup.contents import Archive as Backup
from ops.backup.contents import write_archive

NOBODY = 65_534
TEXT = "for their owner alone"


def archive(folder: Path, after: ExitStack) -> None:
    made = Archive(folder, "orders", compress="none", rotate_bytes=1 << 20, rotate_s=60)
    after.callback(made.finish)
    made.write([f"{TEXT}\n".encode()])
    made.finish()
    made.write([f"{TEXT}\n".encode()])  # one that is finished, and one that is not


def trail(folder: Path, _after: ExitStack) -> None:
    Trail(folder, 1_000_000).add([f"{TEXT}\n".encode()])


def monitors_record(folder: Path, after: ExitStack) -> None:
    events = EventLog(str(folder / "events.sqlite"))
    after.callback(events.close)
    assert events.add([Event(time.time_ns() // 1_000_000, "action", "orders", TEXT, "olga")])
    assert {each.name for each in folder.iterdir()} > {"events.sqlite", "events.sqlite-wal"}


def recorded_rows(folder: Path, _after: ExitStack) -> None:
    EventFile(folder / "rows.ndjson", Anchor("host", "process", 0), clock_ns=lambda: 0).close()


def spool(folder: Path, _after: ExitStack) -> None:
    made = SpoolFolder.create(folder, "broker=a:5672 vhost=/")
    made.append("1.seg", TEXT.encode(), b"", len(TEXT))
    made.close()


def backup(folder: Path, _after: ExitStack) -> None:
    write_archive(
        folder / "backup.tar.gz",
        Backup(facts={}, files={"x": TEXT.encode()}, secret=frozenset({"x"})),
    )


def compose(folder: Path, _after: ExitStack) -> None:
    assert cli.run(["compose", str(folder), "--brokers", "1"], prog_name="ops") == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, with the usual umask."""
    before = os.umask(0o022)
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    os.umask(before)
    shutil.rmtree(folder)


def readable_by_others(folder: Path) -> list[str]:
    """Return the files in a folder that another user reads: asked as one where that can be."""
    if os.geteuid() != 0:
        return [
            str(path)
            for path in folder.rglob("*")
            if path.is_file()
            and path.stat().st_mode & 0o004
            and all(
                each.stat().st_mode & 0o001 for each in path.parents if each.is_relative_to(folder)
            )
        ]
    found = subprocess.run(
        ["find", str(folder), "-type", "f", "-readable"],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,  # 1 where it may not enter a folder
    )
    return found.stdout.splitlines()


@pytest.mark.guarantee("files-with-bodies-are-their-owners")
@pytest.mark.parametrize("exists", [True, False], ids=["in a folder that is open", "in a new one"])
@pytest.mark.parametrize(
    "write",
    [archive, trail, monitors_record, recorded_rows, spool, backup, compose],
    ids=lambda f: f.__name__,
)
def test_no_other_user_reads_a_file_with_bodies_people_or_secrets(
    write: Callable[[Path, ExitStack], None], exists: bool, open_folder: Path
) -> None:
    plain = open_folder / "plain"
    plain.write_text("for everybody")
    assert readable_by_others(open_folder) == [str(plain)], "the check sees what is open"
    folder = open_folder / "made"
    if exists or write in (recorded_rows, backup):  # which make none
        folder.mkdir(mode=0o755)
    with ExitStack() as after:
        write(folder, after)
        assert [path for path in folder.rglob("*") if path.is_file()]
        assert readable_by_others(open_folder) == [str(plain)]
