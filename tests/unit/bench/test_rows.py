import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.load.bodies import Filler, stamped
from bench.rows import BROKEN, FOREIGN, MISSING, RANGE, TYPE, Rows, Tail, read_events
from messagebus import Delivery, Durability, Message, Outcome, Published, Subscription, Topic
from messagebus.core.deliveries import Receipt
from messagebus.recording.events import body_hash
from messagebus.recording.files import Anchor, anchor_now
from messagebus.recording.manifest import Manifest

MANIFEST = Manifest(
    run_id="r",
    topics={"t": ("billing",)},
    brokers=("b1",),
    start_ns=0,
    anchor=Anchor("here", "coordinator", 1000),
)
PUBLISHED: dict[str, Any] = {
    "run_id": "r",
    "message_id": "0" * 32,
    "topic": "t",
    "broker": "b1",
    "publisher": "p1",
    "sequence": 0,
    "size": 3,
    "body_hash": "f" * 32,
    "outcome": "confirmed",
    "attempts": 1,
    "intended_ns": 5,
    "sent_ns": 6,
    "confirmed_ns": 7,
}
DELIVERED: dict[str, Any] = {
    "run_id": "r",
    "message_id": "0" * 32,
    "topic": "t",
    "subscription": "billing",
    "broker": "b1",
    "consumer": "c1",
    "size": 3,
    "body_hash": "f" * 32,
    "redelivered": 0,
    "ack": "acked",
    "received_ns": 8,
}


def write(path: Path, *rows: Any, host: str = "here", wall: int = 1000) -> None:
    anchor = {"anchor": {"host": host, "process": "p", "wall_minus_monotonic_ns": wall}}
    lines = [row if isinstance(row, str) else json.dumps(row) for row in (anchor, *rows)]
    path.write_text("\n".join(lines) + "\n")


def test_good_rows_are_read_as_they_are(tmp_path: Path) -> None:
    write(tmp_path / "published-p1.ndjson", PUBLISHED)
    write(tmp_path / "delivered-c1.ndjson", DELIVERED)
    events = read_events(tmp_path, MANIFEST)
    assert (events.published, events.delivered) == ([PUBLISHED], [DELIVERED])
    assert (events.files, sum(events.bad.values())) == (2, 0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"run_id": "r", "mess', BROKEN),
        ("[]", BROKEN),
        ("", BROKEN),
        ({**PUBLISHED, "size": None}, MISSING),
        ({name: value for name, value in PUBLISHED.items() if name != "broker"}, MISSING),
        ({**PUBLISHED, "size": 1.5}, TYPE),
        ({**PUBLISHED, "attempts": True}, TYPE),
        ({**PUBLISHED, "message_id": "xyz"}, TYPE),
        ({**PUBLISHED, "message_id": "F" * 32}, TYPE),
        ({**PUBLISHED, "outcome": "maybe"}, TYPE),
        ({**PUBLISHED, "size": -1}, RANGE),
        ({**PUBLISHED, "attempts": 0}, RANGE),
        ({**PUBLISHED, "confirmed_ns": None}, MISSING),
        ({**PUBLISHED, "run_id": "other"}, FOREIGN),
        ({**PUBLISHED, "topic": "other"}, FOREIGN),
    ],
)
def test_a_bad_line_is_counted_with_its_reason(tmp_path: Path, row: Any, reason: str) -> None:
    write(tmp_path / "published-p1.ndjson", row, PUBLISHED)
    events = read_events(tmp_path, MANIFEST)
    assert dict(events.bad) == {reason: 1}
    assert events.published == [PUBLISHED]


def test_a_subscription_that_the_manifest_does_not_name_is_foreign(tmp_path: Path) -> None:
    write(tmp_path / "delivered-c1.ndjson", {**DELIVERED, "subscription": "other"})
    assert dict(read_events(tmp_path, MANIFEST).bad) == {FOREIGN: 1}


def test_times_of_another_host_become_the_coordinators(tmp_path: Path) -> None:
    write(tmp_path / "published-p1.ndjson", PUBLISHED, host="there", wall=1300)
    row = read_events(tmp_path, MANIFEST).published[0]
    assert (row["intended_ns"], row["confirmed_ns"], row["size"]) == (305, 307, 3)


def test_one_host_has_one_clock_however_its_wall_clock_was_adjusted(tmp_path: Path) -> None:
    write(tmp_path / "published-p1.ndjson", PUBLISHED, host="here", wall=999)
    assert read_events(tmp_path, MANIFEST).published == [PUBLISHED]


def test_hosts_of_one_name_have_a_clock_for_each_boot(tmp_path: Path) -> None:
    other = Anchor("here", "p", 1300, "b")
    manifest = replace(MANIFEST, anchor=Anchor("here", "coordinator", 1000, "a"), clocks=(other,))
    for name, boot in (("p1", "a"), ("p2", "b")):
        anchor = {"host": "here", "process": name, "wall_minus_monotonic_ns": 1290, "boot": boot}
        lines = [json.dumps({"anchor": anchor}), json.dumps(PUBLISHED)]
        (tmp_path / f"published-{name}.ndjson").write_text("\n".join(lines) + "\n")
    found = [row["intended_ns"] for row in read_events(tmp_path, manifest).published]
    assert found == [5, 305]


def test_what_is_like_an_event_file_and_is_not_read_is_told(tmp_path: Path) -> None:
    write(tmp_path / "published-p1.ndjson", PUBLISHED)
    (tmp_path / "sampled-p1.ndjson").write_text("")
    beside = ("delivered-c2.ndjson.gz", "published-p3.ndjson.1", "published-p4.parquet", "x.ndjson")
    for name in beside:
        (tmp_path / name).write_text("")
    (tmp_path / "published-p2.ndjson").write_text('{"schema": 99}\n')
    events = read_events(tmp_path, MANIFEST)
    assert set(events.unread) == {"published-p2.ndjson", *beside}
    assert events.files == 1


def test_a_file_that_is_there_twice_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "published-a.ndjson", PUBLISHED)
    for name in ("published-b.ndjson", "delivered-a.ndjson"):
        (tmp_path / name).write_bytes((tmp_path / "published-a.ndjson").read_bytes())
    events = read_events(tmp_path, MANIFEST)
    assert (len(events.published), events.copies) == (1, ["published-b.ndjson"])


def test_a_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    tail = Tail(tmp_path, "published")
    assert list(tail.read()) == []
    path = tmp_path / "published-p1.ndjson"
    write(path, PUBLISHED)
    with path.open("a") as file:
        file.write('{"message_id": "1')
    assert list(tail.read()) == [PUBLISHED]
    assert list(tail.read()) == []
    with path.open("a") as file:
        file.write('"}\n')
    assert list(tail.read()) == [{"message_id": "1"}]


def test_written_rows_are_read_back_with_their_intended_times(tmp_path: Path) -> None:
    manifest = replace(MANIFEST, anchor=anchor_now("coordinator"))
    body = stamped(Filler.of(b"x" * 40), 1, 7, 5000)
    message = Message(body=body, key="k", message_id=PUBLISHED["message_id"])
    publisher = Rows(tmp_path, run_id="r", name="p1", topic="t", subscription="")
    publisher.offset_ns = 1000
    entry = publisher.entry(7, body, "k")
    confirmed = Published(
        message.message_id, Outcome.CONFIRMED, Durability.FSYNC, "b1", 1, 4500, 6000
    )
    publisher.published(entry, confirmed)
    consumer = Rows(tmp_path, run_id="r", name="c1", topic="t", subscription="billing")
    delivery = Delivery(
        message, Receipt("b1", 1, 1), Subscription(Topic("t"), "billing"), received_ns=7000
    )
    for acked in (True, False):
        consumer.delivered(delivery, acked=acked)
    for each in (publisher, consumer):
        each.tick()
        each.close()
    events = read_events(tmp_path, manifest)
    assert (events.bad, events.unread, events.files) == ({}, [], 2)
    (row,) = events.published
    assert (row["publisher"], row["sequence"], row["key"]) == ("p1", 7, "k")
    # The stamp's time is the run's; a row has the times of its process' clock.
    assert (row["intended_ns"], row["sent_ns"], row["confirmed_ns"]) == (4000, 4500, 6000)
    assert [each["ack"] for each in events.delivered] == ["acked", "stale"]
    assert {each["body_hash"] for each in (row, *events.delivered)} == {body_hash(body)}
