"""core.spool: what a spool file gives back is what was written, and what it cannot give back is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from messagebus.core.spool import (
    HEADER_BYTES,
    RECORD_BYTES,
    Cursor,
    Hole,
    Record,
    SegmentDamaged,
    SpoolIndex,
    encode_header,
    encode_record,
    lane_of,
    read_cursor,
    read_header,
    scan,
    write_cursor,
)
from tests.support.examples import examples

ID, OTHER_ID = b"0123456789abcdef", b"fedcba9876543210"
WRITTEN = [
    (7, 1_700_000_000_000, "orders", b"\xd0\x00properties", b"body"),
    (8, 1_700_000_000_001, "queue:jobs delay=5000 create", b"", b""),
    (9, 1_700_000_000_002, "orders", b"\x00" * 12, b"MBr1" * 5),
    (10, 1_700_000_000_003, "orders page-cache", b"p", b"last"),
]


def segment(records: list[tuple[int, int, str, bytes, bytes]], spool_id: bytes = ID) -> bytes:
    return encode_header(spool_id, after=6, first=7) + b"".join(
        encode_record(spool_id, number, ms, place.encode(), properties, body)
        for number, ms, place, properties, body in records
    )


def read(data: bytes) -> tuple[list[tuple[int, int, str, bytes, bytes]], list[Hole]]:
    header = read_header(data)
    found = list(scan(data, header.spool_id, at=HEADER_BYTES, expected=header.first))
    records = [each[:5] for each in found if isinstance(each, Record)]
    return records, [each for each in found if isinstance(each, Hole)]


def test_a_segment_gives_back_every_record_as_it_was_written() -> None:
    data = segment(WRITTEN)
    assert read(data) == (WRITTEN, [])
    assert read_header(data) == (ID, 6, 7)
    last = list(scan(data, ID, at=HEADER_BYTES, expected=7))[-1]
    assert last.at + last.size == len(data)
    assert last.size == RECORD_BYTES + len("orders page-cache") + 1 + 4


def damaged() -> Iterator[tuple[str, bytes]]:
    """Yield every small fault at every byte of a segment."""
    data = segment(WRITTEN)
    for at in range(len(data)):
        for bits in (0x01, 0x80, 0xFF):
            yield f"flip {bits:#x} at {at}", data[:at] + bytes((data[at] ^ bits,)) + data[at + 1 :]
        yield f"cut at {at}", data[:at]
        yield f"without {at}", data[:at] + data[at + 1 :]
        for byte in (b"\x00", b"M", b"\xff"):
            yield f"insert {byte!r} at {at}", data[:at] + byte + data[at:]
        yield f"zeros from {at}", data[:at] + bytes(len(data) - at)
    for begin in range(HEADER_BYTES, len(data), 7):
        for end in range(begin + 1, len(data), 11):
            yield f"without {begin} to {end}", data[:begin] + data[end:]
            yield f"twice {begin} to {end}", data[:end] + data[begin:]


@pytest.mark.guarantee("spool-file-never-lies")
def test_no_fault_of_any_byte_gives_a_wrong_message_or_leaves_one_out_in_silence() -> None:
    ends = {len(segment(WRITTEN[:count])) for count in range(len(WRITTEN) + 1)}
    for what, data in damaged():
        try:
            records, holes = read(data)
        except SegmentDamaged:
            continue
        assert all(record in WRITTEN for record in records), what
        numbers = [record[0] for record in records]
        assert numbers == sorted(set(numbers)), what
        if what.startswith("cut") and len(data) in ends:
            assert records == WRITTEN[: len(records)], what  # a whole shorter segment
            continue
        if records != WRITTEN:
            assert holes, what
            told = {
                number
                for hole in holes
                for number in range(hole.first, hole.until if hole.until is not None else 11)
            }
            assert {record[0] for record in WRITTEN} - set(numbers) <= told, what
        if any(hole.torn for hole in holes):
            assert (holes[-1].torn, holes[-1].until) == (True, None), what
        if what.startswith("cut"):
            assert [hole.torn for hole in holes] == [True], what


def test_a_damaged_record_costs_itself_and_no_other() -> None:
    data = segment(WRITTEN)
    at = len(segment(WRITTEN[:1])) + RECORD_BYTES
    records, holes = read(data[:at] + b"!" + data[at + 1 :])
    assert records == [WRITTEN[0], *WRITTEN[2:]]
    size = len(segment(WRITTEN[:2])) - len(segment(WRITTEN[:1]))
    assert holes == [Hole(len(segment(WRITTEN[:1])), size, 8, 9, False)]


def test_a_damaged_last_record_is_no_torn_end() -> None:
    data = segment(WRITTEN)
    assert [hole.torn for hole in read(data[:-1] + b"!")[1]] == [False]
    assert [hole.torn for hole in read(data[:-1])[1]] == [True]
    assert [hole.torn for hole in read(data + bytes(4096))[1]] == [True]


def test_a_record_inside_a_message_is_none_of_this_spool() -> None:
    inner = segment(WRITTEN, OTHER_ID)[HEADER_BYTES:]
    outer = (7, 1, "orders", b"", inner)
    data = segment([outer, (8, 2, "orders", b"", b"next")])
    assert [record[4] for record in read(data)[0]] == [inner, b"next"]
    records, holes = read(data[: HEADER_BYTES + 20] + b"!" + data[HEADER_BYTES + 21 :])
    assert [record[4] for record in records] == [b"next"]
    assert len(holes) == 1


def test_a_record_of_another_place_in_the_order_is_not_taken() -> None:
    data = segment([WRITTEN[0], WRITTEN[2], WRITTEN[1], WRITTEN[3]])
    records, holes = read(data)
    assert [record[0] for record in records] == [7, 9, 10]
    assert [(hole.first, hole.until) for hole in holes] == [(8, 9), (10, 10)]


def test_forged_marks_cost_a_bounded_search() -> None:
    body = b"MBr1\x00\x00\x00\x20" * 40_000
    data = segment([(7, 1, "orders", b"", body), WRITTEN[1]])
    records, holes = read(data[: HEADER_BYTES + 20] + b"!" + data[HEADER_BYTES + 21 :])
    assert records == []
    assert [(hole.first, hole.until, hole.torn) for hole in holes] == [(7, None, False)]


@pytest.mark.parametrize(
    "place", ["orders", "queue:jobs", "orders delay=5000", "orders delay=5000 page-cache"]
)
def test_a_lane_is_the_destination_and_its_delay(place: str) -> None:
    assert lane_of(place) == place.removesuffix(" page-cache")
    assert lane_of("queue:jobs create limit=5") == "queue:jobs"


def test_a_cursor_is_believed_only_whole_and_of_its_own_spool() -> None:
    cursor = Cursor({"orders": 12, "queue:jobs": 3}, 2)
    raw = write_cursor(ID, cursor)
    assert read_cursor(raw, ID) == cursor
    with pytest.raises(ValueError, match="another spool"):
        read_cursor(raw, OTHER_ID)
    for at in range(len(raw) - 1):
        for changed in (raw[:at] + bytes((raw[at] ^ 1,)) + raw[at + 1 :], raw[:at]):
            with pytest.raises(ValueError, match="checksum of the cursor"):
                read_cursor(changed, ID)


LANES = ("orders", "queue:jobs", "orders delay=5000")


class IndexRules(RuleBasedStateMachine):
    """The index against a list of all records with their states."""

    def __init__(self) -> None:
        super().__init__()
        self.index = SpoolIndex(ID)
        self.index.begin_segment("1")
        self.records: dict[int, tuple[str, int]] = {}  # number -> lane, ms
        self.segment_of: dict[int, str] = {}
        self.confirmed: set[int] = set()
        self.under_way: set[int] = set()
        self.now_ms = 1_000

    def _unread(self, lane: str) -> list[int]:
        return [
            number
            for number, (of, _) in self.records.items()
            if of == lane and number not in self.confirmed | self.under_way
        ]

    @rule(lane=st.sampled_from(LANES), count=st.integers(1, 5))
    def write(self, lane: str, count: int) -> None:
        if not self.index.segments or self.index.segments[-1].is_closed:
            self.index.begin_segment(str(self.index.next_number))
        for _ in range(count):
            number = self.index.next()
            assert number not in self.records
            self.index.written(number, lane, number * 10, 100)
            self.records[number] = (lane, number * 10)
            self.segment_of[number] = self.index.segments[-1].name

    @rule()
    def roll(self) -> None:
        if self.index.segments and not self.index.segments[-1].records:
            return
        self.index.begin_segment(str(self.index.next_number))

    @rule(most=st.integers(1, 12), blocked=st.sets(st.sampled_from(LANES), max_size=1))
    def send(self, most: int, blocked: set[str]) -> None:
        ready = self.index.begin_pass(self.now_ms, blocked)
        assert not ready & blocked
        for number, (lane, ms) in self.records.items():
            if number in self.confirmed and self.segment_of[number] not in self._segments():
                continue
            if most and self.index.wants(lane, number):
                assert number == self._unread(lane)[0], "one of its lane is overtaken"
                assert lane in ready
                self.index.sent(lane, number, ms)
                self.under_way.add(number)
                most -= 1

    def _segments(self) -> set[str]:
        return {segment.name for segment in self.index.segments}

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        if self.under_way:
            for number in data.draw(st.sets(st.sampled_from(sorted(self.under_way)))):
                self.index.confirmed(self.records[number][0], number)
                self.under_way.discard(number)
                self.confirmed.add(number)

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if self.under_way:
            number = data.draw(st.sampled_from(sorted(self.under_way)))
            lane = self.records[number][0]
            assert self.index.failed(lane, number, self.now_ms) >= 1
            self.under_way.discard(number)
            assert lane not in self.index.begin_pass(self.now_ms)

    @rule()
    def withdraw(self) -> None:
        for number in sorted(self.under_way):
            self.index.withdrawn(self.records[number][0], number)
        self.under_way.clear()

    @rule(ms=st.integers(1, 60_000))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def delete(self) -> None:
        for segment in self.index.deletable():
            inside = {n for n, name in self.segment_of.items() if name == segment.name}
            assert inside <= self.confirmed
            assert all(n <= self.index.deleted for n in inside)

    @invariant()
    def counts_are_those_of_the_list(self) -> None:
        waiting = Counter(
            lane for number, (lane, _) in self.records.items() if number not in self.confirmed
        )
        assert self.index.messages == waiting.total()
        assert self.index.lanes == dict(waiting)
        assert self.index.unread == {
            lane: len(unread) for lane in LANES if (unread := self._unread(lane))
        }
        times = [ms for number, (_, ms) in self.records.items() if number not in self.confirmed]
        oldest_ms = self.index.oldest_ms()
        assert oldest_ms is None if not times else oldest_ms is not None and oldest_ms <= min(times)

    @invariant()
    def the_cursor_is_never_ahead(self) -> None:
        for lane, done in self.index.cursor.done.items():
            for number, (of, _) in self.records.items():
                if of == lane and number <= done:
                    assert number in self.confirmed

    @invariant()
    def a_restart_sends_everything_that_is_not_confirmed(self) -> None:
        again = SpoolIndex(ID, self.index.cursor)
        for name in sorted(self._segments(), key=int):
            again.begin_segment(name)
            for number, (lane, ms) in self.records.items():
                if self.segment_of[number] == name:
                    again.load_record(again.segments[-1], number, lane, ms)
        again.begin_pass(0)
        sent = {n for n, (lane, _) in self.records.items() if again.wants(lane, n)}
        assert self.records.keys() - self.confirmed <= sent


IndexRules.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestIndex = IndexRules.TestCase


def test_a_lane_that_fails_waits_ever_longer_and_up_to_a_bound() -> None:
    index = SpoolIndex(ID)
    index.begin_segment("1")
    index.written(index.next(), "orders", 0, 100)
    now_ms, waits = 0, []
    for _ in range(12):
        assert index.begin_pass(now_ms) == {"orders"}
        index.sent("orders", 1, 0)
        index.failed("orders", 1, now_ms)
        begin_ms = now_ms
        while not index.begin_pass(now_ms):
            now_ms += 100
        waits.append(now_ms - begin_ms)
    assert waits[:3] == [500, 1_000, 2_000]
    assert waits[-1] == 30_000


def test_a_segment_that_is_lost_counts_its_records_and_blocks_nothing() -> None:
    index = SpoolIndex(ID)
    for name in ("1", "4"):
        index.begin_segment(name)
        for _ in range(3):
            index.written(index.next(), "orders", 0, 100)
    index.begin_pass(0)
    index.sent("orders", 1, 0)
    index.sent("orders", 2, 0)
    index.withdrawn("orders", 2)
    assert index.forget(index.segments[0], 3, {}) == 2
    assert (index.messages, index.unread) == (4, {"orders": 3})
    index.confirmed("orders", 1)
    assert [segment.name for segment in index.deletable()] == ["1"]
    index.begin_pass(0)
    for number in (4, 5, 6):
        index.sent("orders", number, 0)
        index.confirmed("orders", number)
    assert (index.messages, index.cursor.done) == (0, {"orders": 6})


@pytest.mark.parametrize("ends", ["failed", "withdrawn"])
def test_a_record_that_comes_back_holds_up_its_lane_until_the_next_pass(ends: str) -> None:
    index = SpoolIndex(ID)
    index.begin_segment("1")
    for _ in range(3):
        index.written(index.next(), "orders", 0, 100)
    index.begin_pass(0)
    index.sent("orders", 1, 0)
    if ends == "failed":
        index.failed("orders", 1, -60_000)  # the time to wait is over long ago
    else:
        index.withdrawn("orders", 1)
    assert not index.wants("orders", 2), "it would overtake the first"
    index.begin_pass(0)
    assert index.wants("orders", 1)
