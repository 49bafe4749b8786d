"""The replayer of a publisher's spool: sends what is on the disk, in passes, as far as brokers take it.

A spooled message is sent like any other publish, and its record is done after the confirm. Runs on the
publisher's loop.
"""

# A record:  on the disk ─ wanted in this pass, and there is room ─▶ under way ─▶ confirmed: done
#                ▲                                                      ├─▶ not taken: a later pass
#                └──────────────────────────────────────────────────────┴─▶ withdrawn: a stop, no broker
#
# Owners: `SpoolIndex` has the state of each record and lane; `Room` bounds what is under way; the
# `Keeper` deletes a segment when all of it is done. The door says whether brokers take messages now.

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter, defaultdict
from collections.abc import Callable

from messagebus._io.amqp.properties import read_message_id
from messagebus._io.hooks import HookChain
from messagebus._io.publish.door import MemoryDoor
from messagebus._io.publish.publishes import Publish
from messagebus._io.publish.spool.folder import Store
from messagebus._io.publish.spool.keeper import CURSOR_CONFIRMS, DISK_RETRY_MS, Keeper, words_of
from messagebus._io.publish.spool.records import Records
from messagebus._io.publish.spool.writer import Pace
from messagebus.clock import monotonic_ms
from messagebus.config import PublisherConfig
from messagebus.core.ends import NO_DEADLINE_MS
from messagebus.core.spool import (
    HEADER_BYTES,
    Hole,
    Record,
    Segment,
    SegmentDamaged,
    scan,
)
from messagebus.errors import NameInvalid
from messagebus.stats import CONFIRMED_OUTCOME, Published

log = logging.getLogger("messagebus.publisher")

# Messages of the spool under way at once, at most half of the backlog.
REPLAY_MESSAGES, REPLAY_BYTES = 2_000, 4 * 1024 * 1024


class Replayed:
    """The waiter for the end of a message that is sent from the spool."""

    __slots__ = ("_replayer", "lane", "name", "number", "size", "store")

    def __init__(self, replayer: Replayer, store: Store, record: Record, lane: str) -> None:
        self._replayer, self.store, self.number, self.lane = replayer, store, record.number, lane
        self.name, self.size = record.place.partition(" ")[0], record.size

    def done(self) -> bool:
        return False

    def set_result(self, published: Published) -> None:
        self._replayer.ended(self, published)


class Room:
    """The bound of what is under way from the spool, in messages and bytes."""

    def __init__(self, config: PublisherConfig) -> None:
        self._messages_max = min(REPLAY_MESSAGES, max(1, config.backlog_messages_max // 2))
        self._bytes_max = min(REPLAY_BYTES, config.backlog_bytes_max // 2)
        self._messages = self._bytes = 0
        self._free = asyncio.Event()

    def is_there(self, size: int) -> bool:
        """Return whether one more of this size in bytes may be sent; a single one may be larger."""
        if not self._messages:
            return True
        return self._messages < self._messages_max and self._bytes + size <= self._bytes_max

    async def wait(self, size: int) -> None:
        """Wait until `is_there`."""
        while not self.is_there(size):
            self._free.clear()
            await self._free.wait()

    def take(self, size: int) -> None:
        """Note that a message is under way."""
        self._messages += 1
        self._bytes += size

    def give(self, size: int) -> None:
        """Note that a message is under way no more."""
        self._messages -= 1
        self._bytes -= size
        if self._messages <= self._messages_max // 2:
            self._free.set()


class Replayer:
    """The messages on their way from the disk to a broker."""

    def __init__(
        self,
        memory: MemoryDoor,
        keeper: Keeper,
        records: Records,
        config: PublisherConfig,
        hooks: HookChain | None,
        *,
        may_send: Callable[[], bool],
        on_disk_fault: Callable[[OSError], None],
        on_pass: Callable[[], None],
        on_failed: Callable[[], None],
    ) -> None:
        """Create it. may_send: returns whether brokers take messages from the disk now.

        on_disk_fault: called where the disk cannot be read. on_pass: called after each pass. on_failed:
        called when a message was not taken: it is to be sent again.
        """
        self._memory, self._keeper, self._records, self._hooks = memory, keeper, records, hooks
        self._may_send, self._on_disk_fault, self._on_pass = may_send, on_disk_fault, on_pass
        self._on_failed = on_failed
        self.wanted = asyncio.Event()
        """Set when there may be something to send."""
        self.pace = Pace()
        self.failures = 0
        """Times that a message was not taken."""
        self.ends: Counter[str] = Counter()
        """Ends of messages by outcome, without those confirmed."""
        self._room = Room(config)
        self._fault = ""  # the last one that was logged

    async def run(self) -> None:
        """Send what is on the disk, whenever it is wanted. Never ends."""
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            try:
                await self._pass()
            except Exception as fault:  # of the library: what is left is tried again
                if self._fault != (words := words_of(fault)):
                    self._fault = words
                    log.exception("spool not sent folder=%s", self._keeper.root)
                await asyncio.sleep(DISK_RETRY_MS / 1000)
            self._on_pass()

    async def _pass(self) -> None:
        blocked: set[str] = set()
        for store in self._keeper.stores():
            if not self._may_send():
                break
            ready = store.index.begin_pass(monotonic_ms(), blocked)
            for segment in list(store.index.segments) if ready else ():
                if any(segment.waiting.get(lane) for lane in ready):
                    await self._replay(store, segment)
            blocked |= store.index.unread.keys()

    async def _replay(self, store: Store, segment: Segment) -> None:
        """Send what is wanted of a segment, as far as brokers take it."""
        seen: defaultdict[str, set[int]] = defaultdict(set)
        at, expected, wants = HEADER_BYTES, segment.first, store.index.wants
        while at < segment.end:
            end = segment.end
            try:
                data = await self._keeper.disk.call(store.folder.read, segment.name, at, end)
            except (OSError, SegmentDamaged) as fault:
                self._unreadable(store, segment, fault)
                return
            if not self._may_send():
                return
            for found in scan(data, store.index.spool_id, at=0, expected=expected):
                if isinstance(found, Hole):  # logged when it was taken over
                    continue
                expected = found.number + 1
                lane = self._records.lane_of(found.place)
                seen[lane].add(found.number)
                if not self._room.is_there(found.size):
                    await self._room.wait(found.size)
                    if not self._may_send():
                        return
                if wants(lane, found.number):
                    self._send(store, found, lane)
            at = end
            if segment.end == end and sum(map(len, seen.values())) < segment.records:
                self._keeper.give_up(store, segment, seen, "records of it have vanished")

    def _send(self, store: Store, record: Record, lane: str) -> None:
        waiter = Replayed(self, store, record, lane)
        store.index.sent(lane, record.number, record.ms)
        self._room.take(record.size)
        try:
            target = self._records.target_of(record.place)
        except NameInvalid as fault:  # of a later version
            self._failed(waiter, str(fault))
            return
        message_id, properties = read_message_id(record.properties), record.properties
        self._memory.accept_alone(
            Publish(message_id, target, record.body, properties, NO_DEADLINE_MS, waiter)
        )

    def _unreadable(self, store: Store, segment: Segment, fault: OSError | SegmentDamaged) -> None:
        """Try again later, unless it is gone or no segment any more."""
        if isinstance(fault, OSError) and fault.errno != errno.ENOENT:
            self._on_disk_fault(fault)
        else:
            words = fault.strerror if isinstance(fault, OSError) else str(fault)
            self._keeper.give_up(store, segment, {}, words or "it cannot be read")

    # Ends.
    def ended(self, sent: Replayed, published: Published) -> None:
        """Record the end of a message that was sent from the spool."""
        if published.outcome is not CONFIRMED_OUTCOME:
            self.ends[published.outcome.value] += 1
            self._failed(sent, published.reason or published.outcome.value)
            return
        self._room.give(sent.size)
        sent.store.index.confirmed(sent.lane, sent.number)
        self.pace.sent += 1
        self._keeper.confirms += 1
        if self._keeper.confirms >= CURSOR_CONFIRMS:
            self._keeper.tidy(monotonic_ms())
        if self._hooks is not None:
            self._hooks.spooled(sent.name, published)

    def withdrawn(self, sent: Replayed) -> None:
        """Record that a message is under way no more, and on the disk."""
        self._room.give(sent.size)
        sent.store.index.withdrawn(sent.lane, sent.number)

    def _failed(self, sent: Replayed, reason: str) -> None:
        self._room.give(sent.size)
        self.failures += 1
        times = sent.store.index.failed(sent.lane, sent.number, monotonic_ms())
        if times == 1 or times % 10 == 0:
            log.warning(
                "spool: not taken destination=%s times=%d reason=%r", sent.name, times, reason
            )
        self._on_failed()
