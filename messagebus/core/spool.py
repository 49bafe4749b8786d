"""The disk spool: its records as bytes, what a damaged file still holds, and what may be sent and deleted.

Decides; reads and writes no file. A *spool* is one folder of *segments*, files that are only appended to
and deleted as a whole, the oldest first. A segment is a header and records:

    header: MBSP1\\n · id of the spool (16) · last number before it (8) · its first number (8) · CRC-32
    record: MBr1 · bytes that follow the next field (4) · CRC-32 (4) · number (8) · ms since 1970 (8) ·
            length of the place (2) · length of the properties (4) · place · properties · body

All numbers are big-endian. The checksum of a record covers the id of its spool: bytes of a message that look
like a record are none. Numbers of records only rise. The *place* is a destination as text:
``orders delay=5000``; its first words are the *lane*, in which order is kept.

`scan` gives each record once, whole and in order, and names every hole between them: what cannot be read is
never left out in silence. A *torn* end is what a write leaves that was cut off.

`SpoolIndex` counts the records of one spool by lane and segment: *waiting* until a broker confirmed them,
*unread* until they are under way. A lane's records leave in order. A cursor says up to which number all
records of a lane are confirmed. A lost cursor costs duplicates, never messages.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

SEGMENT_MARK, RECORD_MARK = b"MBSP1\n", b"MBr1"
SPOOL_ID_BYTES = 16
_HEADER = Struct(">6s16sQQ")
_CRC = Struct(">I")
_START = Struct(">4sII")
_FIELDS = Struct(">QQHI")
HEADER_BYTES = _HEADER.size + _CRC.size
RECORD_BYTES = _START.size + _FIELDS.size
"""Bytes of a record beside its place, properties and body."""
# Places behind a damaged record at which the next good one is looked for: forged marks cost no more.
CANDIDATES_MAX = 10_000
# A record that no broker takes is tried again after these waits, in ms; its lane waits.
RETRY_FIRST_MS, RETRY_MAX_MS = 500, 30_000


class SegmentDamaged(ValueError):
    """Raised for a file that does not begin as a segment; the text says why."""


class Header(NamedTuple):
    """Begin of a segment. after: number of the record before its first one, 0 for none."""

    spool_id: bytes
    after: int
    first: int


class Record(NamedTuple):
    """One message of a spool. at, size: its place in the segment. ms: acceptance, since 1970."""

    number: int
    ms: int
    place: str
    properties: bytes
    body: bytes
    at: int
    size: int


class Hole(NamedTuple):
    """Bytes of a segment that are no record. first: number of the first record that may be missing.

    until: number of the next record behind it, None for none. torn: left by a write that was cut off.
    """

    at: int
    size: int
    first: int
    until: int | None
    torn: bool


def encode_header(spool_id: bytes, *, after: int, first: int) -> bytes:
    """Encode the header of a segment whose first record has the number `first`."""
    raw = _HEADER.pack(SEGMENT_MARK, spool_id, after, first)
    return raw + _CRC.pack(zlib.crc32(raw))


def read_header(data: bytes) -> Header:
    """Decode the header of a segment. Raises SegmentDamaged."""
    if len(data) < HEADER_BYTES:
        raise SegmentDamaged(f"{len(data)} bytes are no segment")
    mark, spool_id, after, first = _HEADER.unpack_from(data)
    if mark != SEGMENT_MARK:
        raise SegmentDamaged("it does not begin as a segment of a spool")
    if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        raise SegmentDamaged("the checksum of its header is wrong")
    return Header(spool_id, after, first)


def encode_record(
    spool_id: bytes, number: int, ms: int, place: bytes, properties: bytes, body: bytes
) -> bytes:
    """Encode one record."""
    fields = _FIELDS.pack(number, ms, len(place), len(properties))
    rest = b"".join((fields, place, properties, body))
    return _START.pack(RECORD_MARK, len(rest), _checksum(spool_id, rest)) + rest


def _checksum(spool_id: bytes, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(_CRC.pack(len(rest)) + spool_id))


def _read_record(data: bytes, at: int, spool_id: bytes) -> Record | None:
    """Decode the record at this place; None when there is none, or not a whole one."""
    begin = at + _START.size
    if begin + _FIELDS.size > len(data):
        return None
    mark, length, crc = _START.unpack_from(data, at)
    stop = begin + length
    if mark != RECORD_MARK or length < _FIELDS.size or stop > len(data):
        return None
    if _checksum(spool_id, data[begin:stop]) != crc:
        return None
    number, ms, place_size, properties_size = _FIELDS.unpack_from(data, begin)
    place_at = begin + _FIELDS.size
    properties_at = place_at + place_size
    body_at = properties_at + properties_size
    if body_at > stop:
        return None
    place = data[place_at:properties_at].decode("utf-8", "replace")
    properties, body = data[properties_at:body_at], data[body_at:stop]
    return Record(number, ms, place, properties, body, at, _START.size + length)


def scan(data: bytes, spool_id: bytes, *, at: int, expected: int) -> Iterator[Record | Hole]:
    """Yield the records of a segment in order, and the holes between them.

    at: where to begin in data. expected: the least number that may come there.
    """
    while at < len(data):
        record = _read_record(data, at, spool_id)
        if record is None or record.number < expected:
            record = _next_record(data, at + 1, spool_id, expected)
            if record is None:
                yield Hole(at, len(data) - at, expected, None, _is_torn(data, at))
                return
            yield Hole(at, record.at - at, expected, record.number, False)
        elif record.number > expected:
            yield Hole(at, 0, expected, record.number, False)
        yield record
        at, expected = record.at + record.size, record.number + 1


def _next_record(data: bytes, at: int, spool_id: bytes, expected: int) -> Record | None:
    for _ in range(CANDIDATES_MAX):
        at = data.find(RECORD_MARK, at)
        if at < 0:
            return None
        record = _read_record(data, at, spool_id)
        if record is not None and record.number >= expected:
            return record
        at += 1
    return None


def _is_torn(data: bytes, at: int) -> bool:
    """Return whether the end is the begin of one record, or zeros that no data followed."""
    tail = data[at : at + _START.size]
    if len(tail) < _START.size:
        return RECORD_MARK.startswith(tail[: len(RECORD_MARK)]) or not any(tail)
    mark, length, _ = _START.unpack(tail)
    if mark == RECORD_MARK:
        return at + _START.size + int(length) > len(data)
    return not any(data[at:])


def lane_of(place: str) -> str:
    """Return the lane of a place: destination and delay, without what it is declared with."""
    if " " not in place:
        return place
    name, *words = place.split(" ")
    return " ".join([name, *(word for word in words if word.startswith("delay="))])


class Cursor(NamedTuple):
    """Confirmed part of a spool.

    done: lane -> number up to which all its records are. deleted: number of the last record of segments that
    were deleted for it.
    """

    done: Mapping[str, int]
    deleted: int


def write_cursor(spool_id: bytes, cursor: Cursor) -> bytes:
    """Encode a cursor."""
    about = {"spool": spool_id.hex(), "done": dict(cursor.done), "deleted": cursor.deleted}
    raw = json.dumps(about, sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(raw), raw)


def read_cursor(data: bytes, spool_id: bytes) -> Cursor:
    """Decode the cursor of this spool. Raises ValueError for one that is damaged, or another spool's."""
    crc, _, raw = data.partition(b" ")
    raw = raw.removesuffix(b"\n")
    if crc != b"%08x" % zlib.crc32(raw):
        raise ValueError("the checksum of the cursor is wrong")
    read = json.loads(raw)
    if read["spool"] != spool_id.hex():
        raise ValueError("it is the cursor of another spool")
    return Cursor(
        {str(lane): int(number) for lane, number in read["done"].items()}, read["deleted"]
    )


@dataclass(slots=True)
class Segment:
    """Segment of a spool.

    end: bytes that are safely written. records: in them. waiting: lane -> records not confirmed yet.
    """

    name: str
    first: int
    end: int = HEADER_BYTES
    records: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    is_closed: bool = False


@dataclass(slots=True)
class _Lane:
    """State of one lane.

    done: all its records up to this number are confirmed; read: all up to this were under way once.
    later: numbers above `done` that are confirmed. order: numbers above `done` in their order, with times.
    is_held: a record of it was passed over, so none behind is sent before the next pass.
    """

    done: int = 0
    read: int = 0
    waiting: int = 0
    unread: int = 0
    oldest_ms: int = 0
    later: set[int] = field(default_factory=set)
    order: deque[tuple[int, int]] = field(default_factory=deque)
    under_way: set[int] = field(default_factory=set)
    is_held: bool = False
    failures: int = 0
    retry_at_ms: int = 0

    def advance(self) -> None:
        while self.order and self.order[0][0] in self.later:
            self.done, self.oldest_ms = self.order.popleft()
            self.later.discard(self.done)


class SpoolIndex:
    """Counts of one spool's records. Not thread-safe. Times to wait are in ms of a monotonic clock.

    cursor: what is confirmed already.
    """

    def __init__(self, spool_id: bytes, cursor: Cursor | None = None) -> None:
        cursor = cursor or Cursor({}, 0)
        self.spool_id = spool_id
        self.next_number = 1
        self.last_number = 0
        """Number of the last record that is safely written."""
        self.messages = 0
        """Records not confirmed yet."""
        self.deleted = cursor.deleted
        """Number of the last record of segments that were deleted."""
        self.segments: list[Segment] = []
        self._lanes = {
            lane: _Lane(done=number, read=number) for lane, number in cursor.done.items()
        }

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments on the disk."""
        return sum(segment.end for segment in self.segments)

    @property
    def lanes(self) -> dict[str, int]:
        """Lane -> records that are not confirmed, where there are some."""
        return {name: lane.waiting for name, lane in self._lanes.items() if lane.waiting}

    @property
    def cursor(self) -> Cursor:
        """The part that is confirmed by now."""
        done = {name: lane.done for name, lane in self._lanes.items() if lane.done}
        return Cursor(done, self.deleted)

    @property
    def unread(self) -> dict[str, int]:
        """Lane -> records that are neither confirmed nor under way, where there are some."""
        return {name: lane.unread for name, lane in self._lanes.items() if lane.unread}

    def oldest_ms(self) -> int | None:
        """Return a time before which nothing that waits was accepted, in ms since 1970; None for nothing."""
        lanes = list(self._lanes.values())  # other threads ask, too
        return min((lane.oldest_ms for lane in lanes if lane.waiting), default=None)

    # Writing.
    def begin_segment(self, name: str) -> bytes:
        """Add a segment to write to, and return its header. The one before takes no more."""
        self.close_segment()
        self.segments.append(Segment(name, self.next_number))
        return encode_header(self.spool_id, after=self.last_number, first=self.next_number)

    def close_segment(self) -> None:
        """Write no more to the last segment."""
        if self.segments:
            self.segments[-1].is_closed = True

    def next(self) -> int:
        """Return the number for one more record. A number is never given twice."""
        self.next_number += 1
        return self.next_number - 1

    def written(self, number: int, lane: str, ms: int, size: int) -> None:
        """Record that this one is safely on the disk, in the last segment."""
        self.load_record(self.segments[-1], number, lane, ms)
        self.segments[-1].end += size

    def load_record(self, segment: Segment, number: int, lane: str, ms: int) -> None:
        """Record that a segment holds this record; one that the cursor says is confirmed does not count."""
        state = self._lanes.setdefault(lane, _Lane())
        segment.records += 1
        self.last_number = number
        self.next_number = max(self.next_number, number + 1)
        if number <= state.done:
            return
        if not state.waiting:
            state.oldest_ms = ms
        state.waiting += 1
        state.unread += 1
        segment.waiting[lane] = segment.waiting.get(lane, 0) + 1
        self.messages += 1

    # Sending, in passes over the segments from the first one on.
    def begin_pass(self, now_ms: int, blocked: Collection[str] = ()) -> set[str]:
        """Return the lanes of which records can be sent in a pass that begins now.

        blocked: lanes that have to wait for another spool.
        """
        ready = set()
        for name, lane in self._lanes.items():
            lane.is_held = now_ms < lane.retry_at_ms or name in blocked
            if lane.unread and not lane.is_held:
                ready.add(name)
        return ready

    def wants(self, lane: str, number: int) -> bool:
        """Return whether this record is to be sent now: not confirmed, not under way, its lane not held."""
        state = self._lanes.get(lane)
        return (
            state is not None
            and not state.is_held
            and number > state.done
            and number not in state.later
            and number not in state.under_way
        )

    def sent(self, lane: str, number: int, ms: int) -> None:
        """Record that this record is under way. Records of a lane are sent in the order of their numbers."""
        state = self._lanes[lane]
        if number > state.read:
            state.read = number
            state.order.append((number, ms))
        state.under_way.add(number)
        state.unread -= 1

    def confirmed(self, lane: str, number: int) -> None:
        """Record that a broker has this record safely."""
        state = self._lanes[lane]
        state.under_way.discard(number)
        state.later.add(number)
        state.failures = state.retry_at_ms = 0
        state.waiting -= 1
        self.messages -= 1
        self._segment_of(number).waiting[lane] -= 1
        state.advance()

    def withdrawn(self, lane: str, number: int) -> None:
        """Record that this record is no longer under way, and not confirmed: the next pass sends it."""
        state = self._lanes[lane]
        state.under_way.discard(number)
        state.unread += 1
        state.is_held = True

    def failed(self, lane: str, number: int, now_ms: int) -> int:
        """Record that no broker took it: the lane waits. Returns how often in a row."""
        self.withdrawn(lane, number)
        state = self._lanes[lane]
        if now_ms >= state.retry_at_ms:  # of many at once the first counts
            state.failures += 1
            state.retry_at_ms = now_ms + min(
                RETRY_MAX_MS, RETRY_FIRST_MS << min(state.failures - 1, 10)
            )
        return state.failures

    def put_forward(self, ms: int) -> None:
        """Advance the time of waits by ms, where a clock can be moved."""
        for lane in self._lanes.values():
            lane.retry_at_ms = max(0, lane.retry_at_ms - ms)

    def _segment_of(self, number: int) -> Segment:
        if len(self.segments) == 1 or number < self.segments[1].first:
            return self.segments[0]
        place = bisect_right(self.segments, number, key=lambda segment: segment.first)
        return self.segments[place - 1]

    # Deleting.
    def deletable(self) -> list[Segment]:
        """Take out the segments of which nothing waits, the oldest first, as far as there is none before."""
        count = 0
        for segment in self.segments:
            if not segment.is_closed or any(segment.waiting.values()):
                break
            count += 1
        gone, self.segments = self.segments[:count], self.segments[count:]
        if gone:
            self.deleted = self.segments[0].first - 1 if self.segments else self.last_number
        return gone

    def forget(self, segment: Segment, until: int, readable: Mapping[str, Collection[int]]) -> int:
        """Give up the records of a segment that cannot be read, up to the number `until`.

        readable: lane -> numbers that can be read. Those under way are kept, too. Returns how many are lost.
        """
        lost = 0
        for name, waiting in segment.waiting.items():
            lane = self._lanes[name]
            kept = {n for n in lane.under_way if segment.first <= n <= until}
            kept.update(n for n in readable.get(name, ()) if n > lane.done and n not in lane.later)
            count = waiting - len(kept)
            lane.waiting -= count
            lane.unread -= count
            segment.waiting[name] = len(kept)
            self.messages -= count
            lost += count
            gone = [n for n, _ in lane.order if segment.first <= n <= until and n not in kept]
            lane.later.update(gone)
            lane.advance()
        segment.is_closed = True
        segment.records -= lost
        return lost
