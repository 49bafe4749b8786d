"""Archives, their trail and their uploads."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus import BusConfig, Message, Secret
from messagebus.__main__ import cli
from messagebus.core.ends import END_UNCONFIRMED
from messagebus.errors import ConfigError
from messagebus.recording.files import EventFile, anchor_now
from messagebus.recording.manifest import MANIFEST
from messagebus.recording.parts import RunPart, note
from messagebus.stats import Durability, Outcome, Published
from messagebus.testing import MemoryBus
from messagebus.tools import archive, trail
from messagebus.tools.archive import Archive, recover, unpacked
from messagebus.tools.trail import Trail
from messagebus.tools.uploads import Uploads, store_of


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

    unlink = Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".ndjson":
            raise KeyboardInterrupt
        unlink(path, missing_ok)

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


KINDS = list(archive.SUFFIXES)


def new(folder: Path, compress: str = "none", **how: float) -> Archive:
    bounds = {"rotate_bytes": 1 << 30, "rotate_s": 3_600.0, **how}
    return Archive(folder, "orders.all", compress=compress, **bounds)  # type: ignore[arg-type]


def read(folder: Path) -> list[bytes]:
    """Return the lines of all finished files, in order."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix != archive.PART:
            with path.open("rb") as raw, unpacked(raw, path.suffix) as file:
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
    monkeypatch.setattr("messagebus.tools.archive.os.fsync", fsync)
    archive._write(made, lines(10, 20), patience_s=60)
    made.finish()
    recover(tmp_path)
    assert set(read(tmp_path)) == set(lines(0, 20))


def test_a_disk_that_stays_full_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new(tmp_path)

    def fsync(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive, "AGAIN_S", 0.0)
    monkeypatch.setattr("messagebus.tools.archive.os.fsync", fsync)
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


class Agent(ThreadingHTTPServer):
    """An agent that keeps what it is told. code: of its answers."""

    daemon_threads = True
    code = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.rows: list[dict[str, Any]] = []
        self.asked: list[str] = []

    @property
    def bus(self) -> BusConfig:
        url = f"http://127.0.0.1:{self.server_port}/consumer-list"
        return BusConfig(list_urls=(url,), user="shop", password=Secret("hush"))


class _Answers(BaseHTTPRequestHandler):
    server: Agent

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(f"{self.path} {self.headers['Authorization'].split()[0]}")
        if self.server.code == 200:
            self.server.rows += [json.loads(line) for line in body.splitlines()]
        self.send_response_only(self.server.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def agent() -> Iterator[Agent]:
    with Agent() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ended(outcome: Outcome, reason: str = "") -> Published:
    return Published("id-1234", outcome, Durability.NONE, "mb1:5672", reason=reason)


def test_failures_are_told_always_and_successes_by_their_share(agent: Agent) -> None:
    for share, expected in ((0.0, 3), (1.0, 5)):
        agent.rows.clear()
        hook = Trail(agent.bus, share=share, client="shop-1")
        for outcome in (Outcome.UNKNOWN, Outcome.REFUSED, Outcome.UNROUTABLE, Outcome.CONFIRMED):
            hook.published("orders", Message(body=b"secret", message_id="id-1234"), ended(outcome))
        unwaited = ended(Outcome.UNKNOWN, END_UNCONFIRMED.reason)
        hook.published("orders", Message(body=b"x", message_id="id-1234"), unwaited)
        hook.close()
        assert len(agent.rows) == hook.reported == expected
    assert set(agent.asked) == {"/trail Basic"}
    assert agent.rows[0]["what"] == "published: unknown"
    assert "secret" not in str(agent.rows)


async def test_a_handler_that_fails_leaves_rows_of_its_runs(agent: Agent) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    hook = Trail(agent.bus, share=0.0)
    async with bus.async_publisher() as publisher:
        await publisher.send_safe("orders", Message(body=b"x", message_id="id-1234"))
    consumer = bus.async_consumer("orders", subscription="billing", hooks=[hook])
    async with consumer:
        delivery = await consumer.receive(timeout_s=10)
        assert delivery is not None
        hook.handled(delivery, "retry", KeyError("customer"))
        hook.handled(delivery, "ack", None)
        consumer.ack(delivery)
    hook.close()
    (row,) = agent.rows
    assert (row["name"], row["what"], row["attempt"]) == ("orders/billing", "handled: retry", 1)
    assert row["error"] == "KeyError: 'customer'"


@pytest.mark.parametrize("code", [401, 404, 429, 507])
def test_rows_that_no_agent_takes_are_dropped_and_counted(agent: Agent, code: int) -> None:
    agent.code = code
    hook = Trail(agent.bus, share=1.0)
    hook.published("orders", Message(body=b"x", message_id="id-1234"), ended(Outcome.CONFIRMED))
    hook.close()
    assert (hook.reported, hook.dropped) == (0, 1)


def test_an_agent_that_is_away_holds_up_nobody(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "ROWS_MAX", 100)
    bus = BusConfig(list_urls=("http://127.0.0.1:1/consumer-list",))
    hook, stays = Trail(bus, share=1.0), threading.Event()
    monkeypatch.setattr(hook, "_begin", stays.set)
    for _ in range(150):
        hook.published("orders", Message(body=b"x", message_id="id-1234"), ended(Outcome.CONFIRMED))
    assert hook.dropped == 50
    monkeypatch.undo()
    hook.published("orders", Message(body=b"x", message_id="id-1234"), ended(Outcome.CONFIRMED))
    hook.close()
    assert (hook.reported, hook.dropped) == (0, 151)


def test_a_trail_without_agents_or_with_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="list_urls"):
        Trail(BusConfig())
    with pytest.raises(ConfigError, match="share 2"):
        Trail(BusConfig(list_urls=("http://x/list",)), share=2)
