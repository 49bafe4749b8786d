"""The recorder without its thread: waiting rows are written by hand."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from messagebus._io.hooks import HookChain
from messagebus._io.publish.publishes import message_ids
from messagebus._io.publish.targets import Targets
from messagebus.core.deliveries import Receipt
from messagebus.destination import Queue, Source, Subscription, Topic
from messagebus.errors import ConfigError, RecordingFailed
from messagebus.message import Delivery, Message
from messagebus.recording.events import DELIVERED, PUBLISHED, body_hash
from messagebus.recording.files import EventFile, message_id_hex
from messagebus.recording.parts import note
from messagebus.recording.recorder import Recorder, is_sampled
from messagebus.stats import Durability, Outcome, Published

SHAPE = Targets().plain("orders")
BILLING = Subscription(Topic("orders"), "billing")
BROKER = "mb1:5672"
ID = "0123456789abcdef" * 2


def recorder(folder: Path, **options: Any) -> Recorder:
    return Recorder(folder, run_id="r", name="p1", **options)


def publish(hooks: Recorder, body: bytes = b"body", **fields: Any) -> str:
    message = Message(body=body, **fields)
    made, watched = HookChain([hooks]).publishing(SHAPE, body, message, None)
    watched.set_result(
        Published(made.message_id, Outcome.CONFIRMED, Durability.FSYNC, BROKER, 1, 5, 7)
    )
    return made.message_id


def handle(hooks: Recorder, message_id: str, answer: str = "ack", source: Source = BILLING) -> None:
    message = Message(body=b"body", message_id=message_id, key="k")
    HookChain([hooks]).handled(
        Delivery(message, Receipt(BROKER, 1, 1), source, True, 8), answer, None
    )


def write(hooks: Recorder) -> None:
    hooks._stopping.set()
    hooks._write()


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob(f"{kind}-p1-*.ndjson")):
        anchor, *lines = (json.loads(line) for line in path.read_text().splitlines())
        assert anchor["anchor"]["process"] == "p1"
        found += lines
    return found


def test_rows_have_the_columns_of_the_events(tmp_path: Path) -> None:
    hooks = recorder(tmp_path)
    first, second = publish(hooks, key="k"), publish(hooks)
    handle(hooks, first)
    write(hooks)
    made = rows(tmp_path, "published")
    assert {column.name for column in PUBLISHED} == set(made[0])
    assert [(row["message_id"], row["sequence"]) for row in made] == [(first, 0), (second, 1)]
    assert made[0].items() >= {
        "run_id": "r", "topic": "orders", "publisher": "p1", "broker": BROKER, "key": "k",
        "size": 4, "body_hash": body_hash(b"body"), "outcome": "confirmed", "attempts": 1,
        "sent_ns": 5, "confirmed_ns": 7,
    }.items()  # fmt: skip
    (came,) = rows(tmp_path, "delivered")
    required = {column.name for column in DELIVERED if column.required}
    assert required <= set(came) <= {column.name for column in DELIVERED}
    assert came.items() >= {
        "message_id": first, "topic": "orders", "subscription": "billing", "consumer": "p1",
        "broker": BROKER, "key": "k", "body_hash": body_hash(b"body"), "redelivered": 1,
        "ack": "acked", "received_ns": 8,
    }.items()  # fmt: skip
    assert hooks.stats().written == 3


def test_headers_of_the_application_are_its_own(tmp_path: Path) -> None:
    hooks = recorder(tmp_path)
    message = Message(body=b"", message_id=ID, headers={"publisher": "Penguin", "sequence": 7})
    hooks.handled(Delivery(message, Receipt(BROKER, 1, 1), BILLING, False, 8), "ack", None)
    write(hooks)
    (row,) = rows(tmp_path, "delivered")
    assert not {"publisher", "sequence"} & set(row)


@pytest.mark.parametrize(
    ("answer", "ack"),
    [("ack", "acked"), ("park", "acked"), ("drop", "acked"), ("stale", "stale"), ("retry", "none")],
)
def test_an_answer_is_told_in_the_words_of_the_events(
    tmp_path: Path, answer: str, ack: str
) -> None:
    hooks = recorder(tmp_path)
    handle(hooks, ID, answer)
    write(hooks)
    (row,) = rows(tmp_path, "delivered")
    assert row["ack"] == ack
    assert ("acknowledged_ns" in row) == (ack != "none")


def test_ids_of_another_form_are_the_same_on_both_sides(tmp_path: Path) -> None:
    hooks = recorder(tmp_path)
    publish(hooks, message_id="order-7")
    handle(hooks, "order-7")
    write(hooks)
    (sent,), (came,) = rows(tmp_path, "published"), rows(tmp_path, "delivered")
    assert sent["message_id"] == came["message_id"] == message_id_hex("order-7")


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_a_share_is_that_large_also_of_ids_that_are_counted_up(share: float) -> None:
    made = message_ids()
    ids = [next(made) for _ in range(40_000)]
    taken = [each for each in ids if is_sampled(each, share)]
    assert 0.8 * share < len(taken) / len(ids) < 1.2 * share
    blocks = [
        sum(is_sampled(each, share) for each in ids[n : n + 4000]) for n in range(0, 40_000, 4000)
    ]
    assert max(blocks) < 4000 * share * 2
    assert set(taken) >= {each for each in ids if is_sampled(each, share / 2)}


def test_all_means_all_and_a_sample_is_the_same_on_both_sides(tmp_path: Path) -> None:
    assert all(is_sampled(str(number), 1.0) for number in range(10_000))
    hooks = recorder(tmp_path, share=0.3)
    ids = [publish(hooks, message_id=f"id-{number}") for number in range(200)]
    for each in ids:
        handle(hooks, each)
    write(hooks)
    sent = [row["message_id"] for row in rows(tmp_path, "published")]
    assert 20 < len(sent) < 120
    assert sent == [row["message_id"] for row in rows(tmp_path, "delivered")]
    assert hooks._open == {}


def test_what_finds_no_room_is_dropped_and_counted(tmp_path: Path) -> None:
    hooks = recorder(tmp_path, rows_max=3)
    for _ in range(5):
        publish(hooks)
    assert (hooks.stats().waiting, hooks.stats().dropped) == (3, 2)
    write(hooks)
    assert (hooks.stats().waiting, hooks.stats().written) == (0, 3)
    assert len(rows(tmp_path, "published")) == 3


def test_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    hooks = recorder(tmp_path, file_bytes_max=2000, files_max=3)
    for _ in range(100):
        publish(hooks)
    write(hooks)
    files = sorted(tmp_path.glob("published-p1-*.ndjson"))
    assert len(files) == 3
    assert all(path.stat().st_size < 3000 for path in files)
    kept = [row["sequence"] for row in rows(tmp_path, "published")]
    assert kept == list(range(kept[0], 100))
    assert hooks.stats().files_deleted > 10


def test_a_disk_that_takes_nothing_costs_rows_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = recorder(tmp_path / "gone")
    publish(hooks)
    hooks._files[0].write()
    publish(hooks)
    write(hooks)
    assert hooks.stats().dropped == 2
    assert [record.message.split(" error=")[0] for record in caplog.records] == [
        "rows are dropped from now on"
    ]


def test_a_full_disk_costs_rows_and_nothing_else(tmp_path: Path) -> None:
    hooks = recorder(tmp_path)
    publish(hooks)
    hooks._files[0].write()
    file = hooks._files[0]._file
    assert file is not None
    file._file.close()
    file._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    publish(hooks)
    write(hooks)
    assert (hooks.stats().written, hooks.stats().dropped) == (1, 1)
    assert file._file.closed


def test_the_run_is_described_by_what_was_seen(tmp_path: Path) -> None:
    hooks = recorder(tmp_path)
    publish(hooks)
    handle(hooks, ID)
    handle(hooks, ID, source=Queue("jobs"))
    hooks._note()
    known = json.loads((tmp_path / "manifest.json").read_text())
    assert known["topics"] == {"orders": ["billing"], "queue:jobs": ["jobs"]}
    assert known["brokers"] == [BROKER]
    assert known["publishers"] == ["p1"]


def test_what_is_left_out_is_in_the_manifest(tmp_path: Path) -> None:
    options = {"share": 0.5, "rows_max": 1, "files_max": 1, "file_bytes_max": 1}
    hooks = recorder(tmp_path, topics={"orders": ["billing", "audit"]}, **options)
    taken = [name for name in map("{:032x}".format, range(100)) if is_sampled(name, 0.5)]
    for message_id in taken[:3]:
        handle(hooks, message_id)
    for files in hooks._files:
        files.write()
    handle(hooks, taken[3])
    write(hooks)
    hooks._note()
    known = json.loads((tmp_path / "manifest.json").read_text())
    assert known["recorders"] == {"p1": {"share": 0.5, "dropped": 2, "files_deleted": 1}}
    assert known["loop"] == "closed"
    assert known["topics"] == {"orders": ["audit", "billing"]}


def test_a_manifest_that_cannot_be_written_is_only_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = recorder(tmp_path / "gone")
    hooks._note()
    assert "manifest not written" in caplog.text
    with pytest.raises(RecordingFailed):
        note(tmp_path / "gone", hooks._part)


@pytest.mark.parametrize(
    "options",
    [
        {"run_id": ""},
        {"run_id": "a/b"},
        {"share": 0},
        {"share": 1.5},
        {"name": "a b"},
        {"rows_max": 0},
        {"file_bytes_max": 1.5},
        {"files_max": 0},
    ],
)
def test_wrong_settings_are_told(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Recorder(tmp_path, **{"run_id": "r", **options})


@pytest.mark.guarantee("recorder-counts-losses")
@pytest.mark.parametrize("taken_bytes", [0, 100, 50_000, 70_000, 200_000])
def test_on_a_disk_that_fills_up_what_was_written_and_what_was_lost_add_up(
    tmp_path: Path, taken_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC comes so: a write takes a part, and the next one nothing."""
    room = [taken_bytes]

    class Filling:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def write(self, block: memoryview) -> int:
            count = min(room[0], len(block))
            if not count:
                raise OSError(errno.ENOSPC, "No space left on device")
            room[0] -= count
            return int(self._inner.write(block[:count]))

        def close(self) -> None:
            self._inner.close()

    opened = EventFile.__init__

    def open_filling(self: EventFile, *args: Any, **how: Any) -> None:
        opened(self, *args, **how)
        self._file = Filling(self._file)  # type: ignore[assignment]

    monkeypatch.setattr(EventFile, "__init__", open_filling)
    hooks, count = recorder(tmp_path), 500
    for _ in range(3):
        for _ in range(count):
            publish(hooks)
        assert hooks.stats().waiting == count
        for files in hooks._files:
            files.write()
        assert hooks.stats().waiting == 0
    handle(hooks, ID)
    write(hooks)
    stats = hooks.stats()
    whole = [
        line
        for path in tmp_path.glob("*.ndjson")
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n") and "anchor" not in line
    ]
    assert stats.written == len(whole)
    assert (stats.written + stats.dropped, stats.waiting) == (3 * count + 1, 0)
    assert stats.dropped > 0


def test_old_rows_that_cannot_be_deleted_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", fail)
    hooks = recorder(tmp_path, file_bytes_max=1, files_max=1)
    for _ in range(5):
        publish(hooks)
    write(hooks)
    assert (hooks.stats().written, hooks.stats().files_deleted) == (5, 0)


def test_an_old_file_is_closed_and_one_that_was_taken_away_is_not_counted_as_deleted(
    tmp_path: Path,
) -> None:
    hooks = recorder(tmp_path, file_age_s=1e-9, files_max=1)
    names = []
    for _ in range(3):
        publish(hooks)
        for files in hooks._files:
            files.write()
        (path,) = tmp_path.glob("published-*.ndjson")
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody writes it any more
        names.append(path.name)
        path.unlink()
    assert names == [f"published-p1-{number:04}.ndjson" for number in (1, 2, 3)]
    stats = hooks.stats()
    assert (stats.written, stats.dropped, stats.files_deleted) == (3, 0, 0)
    with pytest.raises(ConfigError, match="file_age_s 0"):
        recorder(tmp_path, file_age_s=0)
