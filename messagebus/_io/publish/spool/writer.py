"""The writer of a publisher's spool: publishes on their way to the disk.

All that wait are written together, with one fdatasync, and end as spooled after it. What the disk does not
take waits, up to its deadline. Runs on the publisher's loop.
"""

# A publish:  add ─▶ queued ─ in a group, one fdatasync ─▶ being written ─▶ spooled
#                      ├─ a broker takes it: taken out             └─ the disk hangs: unknown, late
#                      └─ its deadline: refused, or unknown if a broker may have it
#
# The disk:   TAKING ─ no room ─▶ FULL ─ files were deleted ─▶ TAKING
#             TAKING ─ a write fails ─▶ FAILING ─ the next write works, after DISK_RETRY_MS ─▶ TAKING

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from messagebus._io.publish.door import Sending
from messagebus._io.publish.publishes import Publish
from messagebus._io.publish.spool.folder import SEGMENT_BYTES, Store, segment_name
from messagebus._io.publish.spool.keeper import DISK_RETRY_MS, Keeper, words_of
from messagebus._io.publish.spool.records import Records
from messagebus.clock import monotonic_ms, wall_ms
from messagebus.config import Spool
from messagebus.core.confirms import Packing
from messagebus.core.ends import (
    DEADLINE_PASSED,
    PUBLISHER_STOPPED,
    REFUSED,
    SPOOLED,
    UNKNOWN,
    End,
    Item,
)
from messagebus.core.spool import HEADER_BYTES, RECORD_BYTES, encode_record
from messagebus.errors import SpoolFull

log = logging.getLogger("messagebus.publisher")

# One group: as much as is written and fsynced together.
GROUP_BYTES = 4 * 1024 * 1024
# The most around a plain body on the disk: its record, with its place and its properties.
AROUND_BYTES = RECORD_BYTES + 256
# While messages are sent from the spool (the last one no longer ago than PROGRESS_MS), one new message may be
# written for so many that were sent.
SENT_FOR_ONE, PROGRESS_MS = 2, 1_000


class Disk(Enum):
    """State of the disk. FULL: the spool has the size that it may have. FAILING: the last write failed."""

    TAKING = "taking"
    FULL = "full"
    FAILING = "failing"


class Pace:
    """Number of messages that may be written while others are sent: fewer than those, so that the spool ends.

    Callers wait for it, as for a broker. Without a limit, publishers under load filled the spool as fast as
    it was sent, without an end.
    """

    def __init__(self) -> None:
        self.sent = 0
        """Messages sent from the spool so far."""
        # As of the last tick, and those for which others were written.
        self._sent_before = self._paid = 0
        self._progress_ms = -PROGRESS_MS

    def tick(self, now: int) -> None:
        """Note whether something was sent since the last tick."""
        if self._sent_before != self.sent:
            if not self.is_sending(now):
                self._paid = self.sent
            self._sent_before, self._progress_ms = self.sent, now

    def is_sending(self, now: int) -> bool:
        """Return whether messages were sent lately."""
        return now - self._progress_ms <= PROGRESS_MS

    @property
    def allowed(self) -> int:
        """Messages that may be written now, while others are sent."""
        return (self.sent - self._paid) // SENT_FOR_ONE

    def pay(self, count: int) -> None:
        """Note that so many are written."""
        self._paid = min(self.sent, self._paid + count * SENT_FOR_ONE)


@dataclass(frozen=True, slots=True)
class _Append:
    """A group in the thread's hands. records: of each its number, lane and bytes. ms: the time in them."""

    done: asyncio.Future[None]
    own: Store
    ms: int
    records: Sequence[tuple[int, str, int]]


class Writer:
    """The publishes on their way to the disk, and what the disk says."""

    def __init__(
        self,
        driver: Sending,
        keeper: Keeper,
        records: Records,
        settings: Spool,
        *,
        count_max: Callable[[], int],
        release: Callable[[], None],
        on_written: Callable[[int], None],
    ) -> None:
        """Create it. count_max: returns how many messages may be written now.

        release: called before each group, to take out what a broker may have instead. on_written: called
        after each group, with its messages.
        """
        self._driver, self._backlog, self._ends = (
            driver,
            driver.pending.backlog,
            driver.pending.ends,
        )
        self._keeper, self._records, self._settings = keeper, records, settings
        self._count_max, self._release, self._on_written = count_max, release, on_written
        self.wanted = asyncio.Event()
        """Set when there may be something to write."""
        self.disk, self.fault = Disk.TAKING, ""
        self._retry_ms = 0
        # Waiting, by destination, and in the thread's hands.
        self._queue: deque[Publish] = deque()
        self._queued: Counter[str] = Counter()
        self._writing: list[Publish] = []
        self._append: _Append | None = None
        if keeper.first_fault is not None:
            self.failed(keeper.first_fault)

    # What waits.
    def add(self, publish: Publish) -> None:
        """Take a publish with its properties; a bundle has none."""
        self._queue.append(publish)
        self._queued[publish.destination] += publish.count
        self._backlog.messages += publish.count
        self._backlog.bytes += publish.size
        self.wanted.set()

    def take_out(self, stay: Collection[str] = ()) -> list[Publish]:
        """Take out what waits for other destinations than these, in order."""
        gone = [publish for publish in self._queue if publish.destination not in stay]
        self._queue = deque(each for each in self._queue if each.destination in stay)
        self._left(gone)
        return gone

    def _left(self, publishes: list[Publish]) -> None:
        for publish in publishes:
            self._queued[publish.destination] -= publish.count
            self._backlog.messages -= publish.count
            self._backlog.bytes -= publish.size

    def unsettled(self) -> list[Item]:
        """Return what waits, and what is being written."""
        return [*self._queue, *self._writing]

    @property
    def is_idle(self) -> bool:
        """True when nothing waits or is being written."""
        return not (self._queue or self._writing)

    def queued(self) -> list[str]:
        """Return the destinations of what waits."""
        return [name for name, count in self._queued.items() if count]

    def has(self, destination: str) -> bool:
        """Return whether something of this destination waits or is being written."""
        return self._queued[destination] > 0 or self.is_writing(destination)

    def is_writing(self, destination: str) -> bool:
        """Return whether something of this destination is being written."""
        return any(publish.destination == destination for publish in self._writing)

    def put_forward(self, ms: int) -> None:
        """Advance the time of what waits by ms, for a bus in memory."""
        for publish in self._queue:
            publish.deadline_ms -= ms

    # Ends.
    def expire(self, now: int) -> None:
        """Settle what has passed its deadline."""
        late = [publish for publish in self._queue if publish.deadline_ms <= now]
        if late:
            gone = set(late)
            self._queue = deque(each for each in self._queue if each not in gone)
            self._left(late)
            fault = self.fault
            why = f"{DEADLINE_PASSED}; the spool takes nothing: {fault}" if fault else ""
            why = why or self._driver.why_late()
            self._end([publish for publish in late if publish.attempts], UNKNOWN, why)
            self._end(late, REFUSED, why)
        # A disk that hangs: what is being written may be found there later.
        hung = [each for each in self._writing if each.deadline_ms <= now]
        self._end(hung, UNKNOWN, f"{DEADLINE_PASSED} while it was written to the spool")

    def end_all(self) -> int:
        """Settle everything: the publisher has stopped. Returns how many messages no disk has for sure."""
        writing, queued = self._writing, list(self._queue)
        self._writing = []
        if self._append is not None:
            self._append.done.cancel()
        self._queue.clear()
        left = [*writing, *queued]
        self._left(left)
        self._end(writing, UNKNOWN, PUBLISHER_STOPPED)
        self._end(queued, REFUSED, PUBLISHER_STOPPED)
        return sum(publish.count for publish in left)

    def _end(self, publishes: list[Publish], outcome: str, reason: str = "") -> None:
        self._driver.settle(self._ends.settle(publishes, End(outcome, reason)))

    # Writing.
    async def run(self) -> None:
        """Write what waits, whenever it is wanted. Never ends; one that was cancelled may begin again."""
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            try:
                await self._write_queued()
            except Exception as fault:  # of the library: its publishes are not to wait for ever
                self.failed(fault)

    async def _write_queued(self) -> None:
        await self._appended()  # of a task that was cancelled meanwhile
        self._release()
        while self._queue and self._keeper.taken_over.is_set() and monotonic_ms() >= self._retry_ms:
            group = self._next_group(self._count_max())
            if not group:
                break
            self._begin_append(group)
            await self._appended()
            self._release()

    def _next_group(self, count_max: int) -> list[Publish]:
        """Take as many publishes off the queue as are written together, and as the spool has room for."""
        if count_max <= 0:
            return []
        room = self._settings.messages_max - self._keeper.messages
        room_bytes = self._settings.bytes_max - self._keeper.bytes
        group_bytes = min(GROUP_BYTES, room_bytes - HEADER_BYTES)
        group: list[Publish] = []
        size = count = 0
        while self._queue:
            publish = self._queue[0]
            size += _size_of(publish)
            count += publish.count
            if group and count > count_max:
                break
            # The first one may be larger than a group.
            if count > room or size > (group_bytes if group else room_bytes):
                break
            group.append(self._queue.popleft())
        if self._queue and not group:
            self._full()
        return group

    def _full(self) -> None:
        if self.disk is Disk.TAKING:
            messages, size = self._keeper.messages, self._keeper.bytes
            self.disk, self.fault = Disk.FULL, f"it is full: {messages} messages, {size} bytes"
            log.error("spool is full messages=%d bytes=%d docs=%s", messages, size, SpoolFull.docs)

    def _begin_append(self, group: list[Publish]) -> None:
        """Give the thread a group to write."""
        keeper = self._keeper
        try:
            own = keeper.own()
        except Exception as fault:  # as below
            self._queue.extendleft(reversed(group))
            self.failed(fault)
            return
        index, header, ms = own.index, b"", max(0, wall_ms())
        parts: list[bytes] = []
        written: list[tuple[int, str]] = []
        self._writing, keeper.is_writing = group, True
        try:
            last = index.segments[-1] if index.segments else None
            if last is None or last.is_closed or last.end >= SEGMENT_BYTES:
                header = index.begin_segment(segment_name(index.next_number))
            for publish in group:
                place, lane = self._records.place_of(publish.target)
                for properties, body in self._records.contents_of(publish):
                    number = index.next()
                    parts.append(encode_record(index.spool_id, number, ms, place, properties, body))
                    written.append((number, lane))
            segment = index.segments[-1]
            done = keeper.disk.call(
                own.folder.append, segment.name, header, b"".join(parts), segment.end
            )
        except Exception as fault:  # of the library
            self._not_appended(own, fault)
        else:
            records = [(*each, len(part)) for each, part in zip(written, parts, strict=True)]
            self._append = _Append(done, own, ms, records)

    async def _appended(self) -> None:
        """Wait for the thread, which goes on where this is cancelled, and settle what it has written."""
        if (append := self._append) is None:
            return
        await asyncio.wait([append.done])
        self._append = None
        if append.done.cancelled():  # by `end_all`, which has settled it
            return
        if (fault := append.done.exception()) is not None:
            self._not_appended(append.own, fault)
            return
        writing = self._written()
        for number, lane, size in append.records:
            append.own.index.written(number, lane, append.ms, size)
        self._keeper.written_ms = monotonic_ms()
        if self.fault:
            log.warning("spool takes messages again after reason=%r", self.fault)
            self._recovered()
        self._left(writing)
        self._end(writing, SPOOLED)
        self._on_written(sum(publish.count for publish in writing))

    def _not_appended(self, own: Store, fault: BaseException) -> None:
        """Queue what was being written again. fault: of the disk; any other one is of the library."""
        own.index.close_segment()
        writing = self._written()
        self._queue.extendleft(reversed([each for each in writing if each.end is None]))
        self._left([each for each in writing if each.end is not None])
        if isinstance(fault, FileNotFoundError):
            self._keeper.file_gone(own)
        self.failed(fault)

    def _written(self) -> list[Publish]:
        """Take out what was being written; nothing, when `end_all` has settled it."""
        writing, self._writing, self._keeper.is_writing = self._writing, [], False
        return writing

    # What the disk says.
    def failed(self, fault: BaseException) -> None:
        """Note a fault of the disk, or of the library; it is tried again after DISK_RETRY_MS."""
        self._retry_ms = monotonic_ms() + DISK_RETRY_MS
        if not self.fault:
            unexpected = None if isinstance(fault, OSError) else fault
            folder, words = self._keeper.root, words_of(fault)
            log.error("spool fails folder=%s reason=%r", folder, words, exc_info=unexpected)
        self.disk, self.fault = Disk.FAILING, words_of(fault)

    def _recovered(self) -> None:
        self.disk, self.fault = Disk.TAKING, ""

    def has_room_again(self) -> None:
        """Note that files were deleted: a full spool takes messages again."""
        if self.disk is Disk.FULL:
            self._recovered()


def fits(packing: Packing, settings: Spool) -> bool:
    """Return whether an empty spool has room for a bundle of this size."""
    most = packing.bytes_max + packing.count_max * AROUND_BYTES
    return packing.count_max <= settings.messages_max and most <= settings.bytes_max - HEADER_BYTES


def _size_of(publish: Publish) -> int:
    """Return the most bytes that its records take."""
    return publish.size + publish.count * AROUND_BYTES + len(publish.properties or b"")
