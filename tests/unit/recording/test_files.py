import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.deliveries import Receipt
from messagebus.destination import Subscription, Topic
from messagebus.errors import RecordingFailed
from messagebus.message import Delivery, Message
from messagebus.recording.events import DELIVERED, PUBLISHED, body_hash
from messagebus.recording.files import (
    BLOCK_AGE_NS,
    Anchor,
    DeliveredFile,
    Entry,
    EventFile,
    PublishedFile,
    anchor_now,
    message_id_hex,
)
from messagebus.stats import Durability, Outcome, Published

ANCHOR = Anchor("host", "p1", 123)
ID = "0123456789abcdef0123456789abcdef"


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_first_line_is_the_anchor(tmp_path: Path) -> None:
    EventFile(tmp_path / "f", ANCHOR, clock_ns=Clock()).close()
    assert lines_of(tmp_path / "f") == [
        {
            "schema": 1,
            "anchor": {"host": "host", "process": "p1", "wall_minus_monotonic_ns": 123},
        }
    ]


def test_a_crash_loses_the_last_block_at_most_and_never_cuts_a_line(tmp_path: Path) -> None:
    recorder = EventFile(tmp_path / "f", ANCHOR, clock_ns=Clock())
    for number in range(100_000):
        recorder.write(f'{{"n":{number}}}')
    kept = lines_of(tmp_path / "f")  # nothing was closed: what a killed process leaves
    assert 90_000 < len(kept) <= 100_001
    assert [line["n"] for line in kept[1:]] == list(range(len(kept) - 1))
    recorder.close()
    assert len(lines_of(tmp_path / "f")) == 100_001


def test_an_old_block_is_written_by_the_tick(tmp_path: Path) -> None:
    clock = Clock()
    recorder = EventFile(tmp_path / "f", ANCHOR, clock_ns=clock)
    recorder.write('{"n":1}')
    recorder.tick()
    assert len(lines_of(tmp_path / "f")) == 1
    clock.now_ns = BLOCK_AGE_NS
    recorder.tick()
    assert len(lines_of(tmp_path / "f")) == 2
    recorder.close()


def test_a_file_that_exists_is_never_mixed_with_a_new_run(tmp_path: Path) -> None:
    EventFile(tmp_path / "f", ANCHOR, clock_ns=Clock()).close()
    with pytest.raises(RecordingFailed, match="File exists"):
        EventFile(tmp_path / "f", ANCHOR, clock_ns=Clock())


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    recorder = EventFile(tmp_path / "f", ANCHOR, clock_ns=Clock())
    recorder.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        recorder._file = full
        recorder.write("{}")
        with pytest.raises(RecordingFailed, match="No space left"):
            recorder.flush()


def test_a_block_that_the_system_takes_in_pieces_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InPieces:
        def __init__(self) -> None:
            self.got = b""

        def write(self, block: memoryview) -> int:
            self.got += bytes(block[:7])
            return len(block[:7])

    recorder = EventFile(tmp_path / "f", ANCHOR, clock_ns=Clock())
    recorder.close()
    file = InPieces()
    monkeypatch.setattr(recorder, "_file", file)
    recorder.write('{"n":1}')
    recorder.write('{"n":2}')
    recorder.flush()
    assert file.got == b'{"n":1}\n{"n":2}\n'


class Lines:
    """Stand-in for the recorder that keeps the lines."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def write(self, line: str) -> None:
        self.rows.append(json.loads(line))


TEXT = st.text(max_size=20)


@given(key=TEXT, name=TEXT, broker=TEXT, outcome=st.sampled_from(Outcome))
def test_a_publish_has_the_columns_of_the_events(
    key: str, name: str, broker: str, outcome: Outcome
) -> None:
    lines = Lines()
    rows = PublishedFile(lines, run_id="r", topic="t", publisher=name)
    published = Published(
        message_id=ID,
        outcome=outcome,
        durability=Durability.FSYNC,
        broker=broker,
        attempts=2,
        sent_ns=5,
        settled_ns=7,
    )
    rows.add(Entry(3, key, 10, body_hash(b"x"), 4), published)
    row = {
        "run_id": "r",
        "message_id": ID,
        "topic": "t",
        "broker": broker,
        "publisher": name,
        "sequence": 3,
        "key": key,
        "size": 10,
        "body_hash": body_hash(b"x"),
        "outcome": outcome.value,
        "attempts": 2,
        "intended_ns": 4,
        "sent_ns": 5,
        "confirmed_ns": 7,
    }
    assert set(row) == {column.name for column in PUBLISHED}
    if outcome is not Outcome.CONFIRMED:
        del row["confirmed_ns"]
    assert lines.rows == [row]


def delivery(**fields: object) -> Delivery:
    message = Message(body=b"abc", message_id=ID, **fields)  # type: ignore[arg-type]
    source = Subscription(Topic("t"), "s")
    return Delivery(
        message=message,
        receipt=Receipt("b:1", 1, 1),
        source=source,
        redelivered=True,
        received_ns=8,
    )


@given(key=TEXT, name=TEXT)
def test_a_delivery_has_the_columns_of_the_events(key: str, name: str) -> None:
    lines = Lines()
    rows = DeliveredFile(lines, run_id="r", topic="t", subscription="s", consumer=name)
    # Headers of the application do not come into the row.
    rows.add(
        delivery(key=key, headers={"publisher": name, "sequence": 3}), body_hash(b"abc"), "acked", 9
    )
    row = {
        "run_id": "r",
        "message_id": ID,
        "topic": "t",
        "subscription": "s",
        "broker": "b:1",
        "consumer": name,
        "key": key,
        "size": 3,
        "body_hash": body_hash(b"abc"),
        "redelivered": 1,
        "ack": "acked",
        "received_ns": 8,
        "acknowledged_ns": 9,
    }
    # Who sent it, and under which number, is told by the row of its publish.
    assert set(row) == {column.name for column in DELIVERED} - {"publisher", "sequence"}
    assert lines.rows == [row]


def test_an_id_of_another_form_becomes_its_digest() -> None:
    assert message_id_hex(ID) == ID
    for other in ("", "order-1", ID.upper(), ID + "0", ID[:-1] + "\n"):
        assert message_id_hex(other) == body_hash(other.encode())


def test_the_anchor_names_host_and_process() -> None:
    anchor = anchor_now("p1")
    assert anchor.process == "p1"
    assert anchor.host
    assert anchor.boot == anchor_now("p2").boot
