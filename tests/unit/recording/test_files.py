"""Files of a recording: events, parts, manifests."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.deliveries import Receipt
from messagebus.destination import Subscription, Topic
from messagebus.errors import RecordingFailed
from messagebus.message import Delivery, Message
from messagebus.recording.events import (
    ACKS,
    DELIVERED,
    EVENTS,
    OUTCOMES,
    PUBLISHED,
    Column,
    body_hash,
)
from messagebus.recording.files import (
    BLOCK_AGE_NS,
    Anchor,
    DeliveredRows,
    Entry,
    EventFile,
    PublishedRows,
    absent,
    anchor_now,
    message_id_hex,
)
from messagebus.recording.manifest import (
    ConsumerEntry,
    Incident,
    LeftOut,
    Manifest,
    RunInvalid,
    follows_until_ns,
    in_order,
    read_manifest,
)
from messagebus.recording.parts import RunPart, merged, note
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


TEXT = st.text(max_size=20)


@given(key=TEXT, name=TEXT, broker=TEXT, outcome=st.sampled_from(Outcome))
def test_a_publish_has_the_columns_of_the_events(
    key: str, name: str, broker: str, outcome: Outcome
) -> None:
    rows = PublishedRows(run_id="r", topic="t", publisher=name)
    published = Published(
        message_id=ID,
        outcome=outcome,
        durability=Durability.FSYNC,
        broker=broker,
        attempts=2,
        sent_ns=5,
        settled_ns=7,
    )
    line = rows.line(*Entry(3, key, 10, body_hash(b"x"), 4), published)
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
    assert json.loads(line) == row


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
    rows = DeliveredRows(run_id="r", topic="t", subscription="s", consumer=name)
    # Headers of the application do not come into the row.
    came = delivery(key=key, headers={"publisher": name, "sequence": 3})
    line = rows.line(came, body_hash(b"abc"), "acked", 9)
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
    assert json.loads(line) == row


def test_an_id_of_another_form_becomes_its_digest() -> None:
    assert message_id_hex(ID) == ID
    for other in ("", "order-1", ID.upper(), ID + "0", ID[:-1] + "\n"):
        assert message_id_hex(other) == hashlib.blake2b(other.encode(), digest_size=16).hexdigest()


def test_the_anchor_names_host_and_process() -> None:
    anchor = anchor_now("p1")
    assert anchor.process == "p1"
    assert anchor.host
    assert anchor.boot == anchor_now("p2").boot


@pytest.mark.parametrize("columns", EVENTS.values(), ids=EVENTS)
def test_no_column_is_there_twice(columns: tuple[Column, ...]) -> None:
    names = [column.name for column in columns]
    assert len(set(names)) == len(names)


def test_what_joins_the_two_has_one_kind() -> None:
    published = {column.name: column.kind for column in PUBLISHED}
    delivered = {column.name: column.kind for column in DELIVERED}
    assert all(published[name] == delivered[name] for name in published.keys() & delivered.keys())
    assert {"run_id", "message_id", "topic", "broker", "body_hash"} <= published.keys()
    assert {"run_id", "message_id", "topic", "broker", "body_hash"} <= delivered.keys()


@pytest.mark.parametrize("columns", EVENTS.values(), ids=EVENTS)
def test_times_are_nanoseconds_and_ids_are_16_bytes(columns: tuple[Column, ...]) -> None:
    for column in columns:
        assert not column.name.endswith("_ns") or column.kind == "long"
        assert column.name not in ("message_id", "body_hash") or column.kind == "id16"


def test_the_words_differ() -> None:
    assert len(set(OUTCOMES)) == 5
    assert len(set(ACKS)) == 3


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_body_is_known_by_its_hash(one: bytes, other: bytes) -> None:
    assert len(bytes.fromhex(body_hash(one))) == 16
    assert (body_hash(one) == body_hash(other)) == (one == other)


@given(st.lists(st.binary(max_size=100), unique=True), st.integers(0, 8))
def test_bodies_that_end_with_their_own_checksum_are_told_apart(
    heads: list[bytes], before: int
) -> None:
    bodies = [head + zlib.crc32(head).to_bytes(4, "little") + bytes(before) for head in heads]
    assert len({body_hash(body) for body in bodies}) == len(bodies)


HERE = Anchor("here", "p1", 1_000)


def part(name: str, anchor: Anchor = HERE, **fields: Any) -> RunPart:
    return RunPart(run_id="r", name=name, anchor=anchor, **{"start_ns": 5, **fields})


def test_a_run_is_what_its_parts_saw() -> None:
    first = part("p1", topics={"orders": set()}, brokers={"b2"}, publishers={"p1"})
    second = part(
        "c1",
        start_ns=3,
        grace_ns=9,
        topics={"orders": {"billing"}, "jobs": {"x"}},
        brokers={"b1", "b2"},
        consumers={("c1", "billing")},
    )
    known = merged(merged(None, first), second)
    assert known["topics"] == {"jobs": ["x"], "orders": ["billing"]}
    assert (known["brokers"], known["publishers"]) == (["b1", "b2"], ["p1"])
    assert known["consumers"] == [{"name": "c1", "subscription": "billing"}]
    assert (known["start_ns"], known["grace_ns"], known["end_ns"]) == (3, 9, None)
    assert merged(known, second) == known


def test_it_is_complete_when_all_that_began_have_ended() -> None:
    known = merged(merged(None, part("p1")), part("c1"))
    assert (known["recording"], known["complete"]) == (["c1", "p1"], False)
    known = merged(known, part("p1", end_ns=70))
    assert (known["complete"], known["end_ns"]) == (False, 70)
    known = merged(known, part("c1", end_ns=60))
    assert (known["complete"], known["end_ns"]) == (True, 70)


def test_times_of_another_host_become_those_of_the_first() -> None:
    there = Anchor("there", "c1", 1_300)
    known = merged(merged(None, part("p1")), part("c1", there, start_ns=-400, end_ns=10))
    assert (known["start_ns"], known["end_ns"]) == (-100, 310)


def test_what_each_recorder_left_out_is_told(tmp_path: Path) -> None:
    note(tmp_path, part("p1", share=0.1, dropped=3, loop="closed"))
    note(tmp_path, part("p1", share=0.1, dropped=7, files_deleted=1, loop="closed"))
    note(tmp_path, part("queues"))
    note(tmp_path, part("c1", share=1.0, loop="closed"))
    known = json.loads((tmp_path / "manifest.json").read_text())
    assert known["recorders"] == {
        "c1": {"share": 1.0, "dropped": 0, "files_deleted": 0},
        "p1": {"share": 0.1, "dropped": 7, "files_deleted": 1},
    }
    assert known["loop"] == "closed"
    # Another change of the manifest keeps it.
    read_manifest(tmp_path).save(tmp_path)
    again = json.loads((tmp_path / "manifest.json").read_text())
    assert {name: again[name] for name in ("recorders", "loop", "clocks")} == {
        name: known[name] for name in ("recorders", "loop", "clocks")
    }


def test_intended_times_are_open_only_where_all_of_them_are() -> None:
    known = merged(None, part("p1", loop="open"))
    assert known["loop"] == "open"
    assert merged(known, part("p2", loop="closed"))["loop"] == "closed"


def test_a_boot_has_one_clock_and_hosts_of_one_name_have_one_each() -> None:
    first = Anchor("web", "p1", 1_000, "boot-1")
    known = merged(None, part("p1", first))
    same = merged(known, part("p2", Anchor("pod", "p2", 1_005, "boot-1"), start_ns=4))
    assert (same["clocks"], same["start_ns"]) == ([first.as_json()], 4)
    other = Anchor("web", "p3", 1_300, "boot-2")
    two = merged(known, part("p3", other, start_ns=-400))
    assert (two["clocks"], two["start_ns"]) == ([first.as_json(), other.as_json()], -100)


def test_the_file_is_one_that_the_audit_reads(tmp_path: Path) -> None:
    note(tmp_path, part("p1", topics={"orders": {"billing"}}, consumers={("c1", "billing")}))
    manifest = read_manifest(tmp_path)
    assert (manifest.run_id, manifest.anchor, manifest.complete) == ("r", HERE, False)
    assert manifest.topics == {"orders": ("billing",)}
    assert manifest.consumers == (ConsumerEntry(name="c1", subscription="billing"),)


def test_a_folder_of_another_run_is_left_alone(tmp_path: Path) -> None:
    note(tmp_path, part("p1"))
    before = (tmp_path / "manifest.json").read_text()
    other = RunPart(run_id="s", name="p2", anchor=HERE, start_ns=1)
    with pytest.raises(RecordingFailed, match="no manifest of 's': it is of run 'r'"):
        note(tmp_path, other)
    assert (tmp_path / "manifest.json").read_text() == before


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", json.dumps({"run_id": "r"})])
def test_a_manifest_that_makes_no_sense_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RecordingFailed, match="no manifest of 'r'"):
        note(tmp_path, part("p1"))


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordingFailed, match="cannot be written: No such file"):
        note(tmp_path / "gone", part("p1"))


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


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    anchor = Anchor("host", "coordinator", 77)
    saved = Manifest(
        run_id="r1",
        topics={"packages": ("billing", "audit")},
        brokers=("127.0.0.11:5672",),
        start_ns=5,
        end_ns=9,
        anchor=anchor,
        publishers=("p1",),
        consumers=(ConsumerEntry(name="c1", subscription="billing"),),
        prefetch=200,
        incidents=(Incident("kill", "127.0.0.11:5672", 6, 7), Incident("reload", "", 8)),
        complete=True,
        loop="open",
        clocks=(anchor, Anchor("host", "p1", 78, "boot")),
        recorders={"p1": LeftOut(0.5, 3, 1)},
    )
    saved.save(tmp_path)
    assert read_manifest(tmp_path) == saved
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["topics"] == {"packages": ["billing", "audit"]}
    assert found["anchor"] == {
        "host": "host",
        "process": "coordinator",
        "wall_minus_monotonic_ns": 77,
    }
    assert found["consumers"] == [{"name": "c1", "subscription": "billing"}]
    assert found["incidents"][1] == {"kind": "reload", "broker": "", "at_ns": 8, "done_ns": None}


def test_times_become_wall_clock(tmp_path: Path) -> None:
    read = read_manifest(write(tmp_path, GOOD)).on_wall_clock()
    assert (read.start_ns, read.end_ns, read.last_owed_ns) == (
        OFFSET + 100,
        OFFSET + 900,
        OFFSET + 850,
    )
    assert read.kills == [("mb1:5672", OFFSET + 300)]
    assert read.incidents[0].done_ns is None
    assert read.incidents[0].ended_ns == OFFSET + 300
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
        ("", "not readable JSON"),
        ({}, "'run_id' is missing"),
        (GOOD | {"anchor": 3}, "dict wanted, not int"),
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


def test_a_run_of_bench_without_events_says_how_to_record_them(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunInvalid, match=r"not the folder of a run; .* needs `events = true`$"):
        read_manifest(tmp_path)


def test_files_whose_numbers_are_absent_between_others_are_named() -> None:
    names = [f"published-a-1-{number:04}.ndjson" for number in (2, 3, 6)]
    names += ["published-b.ndjson", "published-c-0007.ndjson", "delivered-a-1-0001.ndjson"]
    assert absent(names) == ["published-a-1-0004.ndjson", "published-a-1-0005.ndjson"]
    assert absent([]) == []


@pytest.mark.parametrize(
    ("next_ns", "last_ns"),
    [(None, 5_000_000_010), (5_000_000_011, 5_000_000_010), (17, 17), (10, 10), (7, 10)],
)
def test_an_incident_is_followed_for_5_s_or_to_the_next_one_but_has_all_that_began_while_it_lasted(
    next_ns: int | None, last_ns: int
) -> None:
    assert follows_until_ns(10, next_ns) == last_ns
    own = Incident("add", "b1", 5, 10)
    others = () if next_ns is None else (Incident("kill", "b2", next_ns),)
    assert in_order([*others, own])[0] == (own, last_ns)
