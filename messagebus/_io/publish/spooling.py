"""The publisher's driver with a disk spool: to the disk while no broker takes anything, then on to one.

`core.spool` says what lies where and what may be sent, `spool_folder` does it, in a thread of its own. A
publish that goes to the disk waits in `_queue`; all that wait are written together, with one fdatasync, and
end as spooled after it. A spooled message is sent like any other publish, and its record is done after the
confirm. A destination of which something waits for the disk, or was not sent from there yet, takes nothing
past the spool, so nothing is overtaken.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import cast

from messagebus._io.amqp.properties import IN_BATCH, bare_shape, encode, read_message_id
from messagebus._io.hooks import HookChain
from messagebus._io.loop import now_ms
from messagebus._io.publish.driver import PublishDriver, SpoolCounts, encode_publish
from messagebus._io.publish.publishes import Address, Bundle, Many, Publish, Target, Waiter, tell
from messagebus._io.publish.spool_folder import (
    SEGMENT_BYTES,
    DiskThread,
    Store,
    adopt,
    cursor_bytes,
    segment_name,
)
from messagebus._io.wire import Wire
from messagebus.broker import Broker
from messagebus.clock import whole_ms
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.pending import CONFIRMED, NO_DEADLINE_MS, REFUSED, SPOOLED, UNKNOWN, Item
from messagebus.core.spool import (
    HEADER_BYTES,
    RECORD_BYTES,
    Hole,
    Record,
    Segment,
    SegmentDamaged,
    encode_record,
    lane_of,
    scan,
)
from messagebus.destination import Delay, Queue, parse_destination
from messagebus.errors import ConfigError, NameInvalid, reason_of
from messagebus.message import Message
from messagebus.stats import Durability, Outcome, Published

log = logging.getLogger("messagebus.publisher")

# One group: as much as is written and fsynced together.
GROUP_BYTES = 4 * 1024 * 1024
# Messages of the spool under way at once, at most half of the backlog.
REPLAY_MESSAGES, REPLAY_BYTES = 2_000, 4 * 1024 * 1024
# While messages are sent from the spool (the last one no longer ago than PROGRESS_MS), one new message may be
# written for so many that were sent.
SENT_FOR_ONE, PROGRESS_MS = 2, 1_000
# A disk that failed is tried again after this.
DISK_RETRY_MS = 1_000
# The cursor is written after so many confirms, and each second in which there was one.
CURSOR_CONFIRMS, CURSOR_MS = 1_000, 1_000
# The segment in use is deleted when nothing has been in it for this time.
IDLE_MS = 1_000
# What other processes leave behind is looked for in this interval, while brokers take messages.
ADOPT_MS = 30_000
# Limit of a stop for what still goes to the disk.
STOP_S = 10.0
# Limit for the end of the disk's thread: a disk may hang.
CLOSE_S = 5.0
# With these faults of the folder at the start somebody has to change a setting or a right.
WRONG_SETTING = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.ENOENT,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EEXIST,
)
CONFIRMED_OUTCOME = Outcome.CONFIRMED  # looked up once: an enum's members are found slowly
# Options of a queue that a place has as words: it may be made by the publish.
QUEUE_FLAGS = ("create", "plain", "single_active")
DELIVERY_MODE = 1 << 4  # in the first byte of a property list


def place_of(target: Target) -> str:
    """Return the destination of a target as text, with all that is needed to publish to it again."""
    address = target.address
    destination, *delay = address.wanted
    words = [address.name, *(f"delay={cast(Delay, each).ms}" for each in delay)]
    if target.durability is not Durability.FSYNC:
        words.append(target.durability.value)
    if isinstance(destination, Queue):
        words += [name for name in QUEUE_FLAGS if getattr(destination, name)]
        if destination.delivery_limit:
            words.append(f"limit={destination.delivery_limit}")
    return " ".join(words)


def read_place(place: str) -> Target:
    """Return the target of a place. Raises NameInvalid."""
    name, *words = place.split(" ")
    destination, delay = parse_destination(name), None
    durability, limit, flags = Durability.FSYNC, 0, set[str]()
    for word in words:
        key, _, value = word.partition("=")
        try:
            match key:
                case "delay":
                    delay = Delay(int(value))
                case "limit":
                    limit = int(value)
                case _ if word in QUEUE_FLAGS:
                    flags.add(word)
                case _:
                    durability = Durability(word)
        except ValueError:
            raise NameInvalid(f"place {place!r}: {word!r} is not known") from None
    if isinstance(destination, Queue):
        options = {name: name in flags for name in QUEUE_FLAGS}
        destination = Queue(destination.name, durability, limit, **options)
    else:
        destination = type(destination)(destination.name, durability)
    return Target(Address.of(destination, delay), "")


def name_of(bus: BusConfig) -> str:
    """Return the name of a bus in spools: its cluster's name, or the address of its entry; and the vhost."""
    entry = f"cluster={bus.cluster}" if bus.cluster else f"broker={Broker.parse(bus.broker).name}"
    return f"{entry} vhost={bus.vhost}"


def _told(fault: Exception) -> str:
    """Return words for a fault of the disk, or of the library itself."""
    told = fault.strerror if isinstance(fault, OSError) else None
    return told or reason_of(fault)


class _Replayed:
    """Waiter for the end of a message that is sent from the spool."""

    __slots__ = ("_driver", "lane", "name", "number", "size", "store")

    def __init__(self, driver: SpoolingDriver, store: Store, record: Record, lane: str) -> None:
        self._driver, self.store, self.number, self.lane = driver, store, record.number, lane
        self.name, self.size = record.place.partition(" ")[0], record.size

    def done(self) -> bool:
        return False

    def set_result(self, published: Published) -> None:
        self._driver.replay_ended(self, published)


class SpoolingDriver(PublishDriver):
    """All links of one publisher, and its spool. Raises ConfigError for a folder that cannot be used."""

    def __init__(
        self,
        bus: BusConfig,
        config: PublisherConfig,
        on_room: Callable[[], None],
        wire: Wire,
        hooks: HookChain | None,
    ) -> None:
        super().__init__(bus, config, on_room, wire)
        assert config.spool is not None
        self._settings, self._hooks = config.spool, hooks
        self._root = Path(config.spool.path).absolute()  # whatever folder the process goes to
        self._bus_name = name_of(bus)
        self._foreign: set[Path] = set()  # sub-folders of other buses, logged
        self._stores: list[Store] = []  # of processes that ended, oldest first
        self._own: Store | None = None
        self._make_own(at_start=True)
        self._disk = DiskThread()
        # Publishes on their way to the disk: waiting, by destination, and in the thread's hands.
        self._queue: deque[Publish] = deque()
        self._queued: Counter[str] = Counter()
        self._writing: list[Publish] = []
        self._to_write, self._to_replay = asyncio.Event(), asyncio.Event()
        self._replay_room = asyncio.Event()
        self._under_way = self._under_way_bytes = 0
        self._replay_messages = min(REPLAY_MESSAGES, max(1, config.backlog_messages_max // 2))
        self._replay_bytes = min(REPLAY_BYTES, config.backlog_bytes_max // 2)
        self._is_adopting = True
        self._adopted = asyncio.Event()
        self._is_away = False
        self._is_ending = False
        self._is_plain = False  # nothing concerns the spool: publishes go their usual way
        self._usable_ms = self._written_ms = self._saved_ms = self._adopted_ms = now_ms()
        self._disk_retry_ms = self._confirms = 0
        self._is_tidying, self._tidy_at_ms = False, 0
        self._is_full = False  # and `fault` says so
        self._replay_fault = self._tidy_fault = ""  # the last ones that were logged
        # Messages sent from the spool: as of the last tick, and those for which others were written.
        self._seen_replayed = self._paid = 0
        self._progress_ms = -PROGRESS_MS
        self._lanes: dict[str, str] = {}  # destination -> lane
        self._places: dict[Target, tuple[bytes, str]] = {}
        self._targets: dict[str, Target] = {}
        self._lane_of: dict[str, str] = {}  # place -> lane
        self._shapes: dict[str, tuple[int, bytes, bytes]] = {}
        self.replayed = self.failures = self.damaged = 0

    # Life.
    def start(self) -> None:
        self._tasks.spawn(self._take_over())
        self._tasks.spawn(self._write_all())
        self._tasks.spawn(self._replay_all())
        super().start()

    def _make_own(self, *, at_start: bool = False) -> Store | None:
        """Make a sub-folder of our own, where there is none."""
        if self._own is None:
            try:
                self._own = Store.create(self._root, self._bus_name)
            except OSError as fault:
                if at_start and fault.errno in WRONG_SETTING:
                    told = f"spool {str(self._root)!r}: {fault.strerror}"
                    raise ConfigError(told) from None
                self._disk_failed(fault)
        return self._own

    async def _take_over(self) -> None:
        """Take over what processes that ended have left."""
        self._adopted_ms = now_ms()
        try:
            found, damaged = await self._disk.call(adopt, self._root, self._bus_name, self._foreign)
        except Exception as fault:  # any other one is a fault of the library: publishes go on
            log.error("spool unreadable folder=%s reason=%r", self._root, _told(fault))
            found, damaged = [], 0
        self.damaged += damaged
        for store in found:
            for lane in store.index.lanes:
                with contextlib.suppress(NameInvalid):  # of a later version: told when it is sent
                    self._lanes[read_place(lane).destination] = lane
            log.warning(
                "spool taken over folder=%s messages=%d", store.folder.path, store.index.messages
            )
        self._stores += found
        self._is_adopting = False
        self._adopted.set()
        self._reflect()

    async def stop(self, timeout_s: float) -> int:
        """Do as without a spool; but what no broker has confirmed by then goes to the disk."""
        self._is_ending = True
        await self.flush(timeout_s)
        self._is_away = True
        self._withdraw()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while (self._queue or self._writing) and not self.fault:
                    self._to_write.set()
                    await asyncio.sleep(0.001)
        left = [*self._writing, *self._queue]
        self._settle(self._end(self._writing, UNKNOWN, "the publisher was stopped"))
        self._settle(self._end(list(self._queue), REFUSED, "the publisher was stopped"))
        self._queue.clear()
        count = sum(publish.count for publish in left) + await super().stop(0)
        closed = self._disk.call(self._close)
        self._disk.stop()
        await asyncio.wait(
            [closed], timeout=CLOSE_S
        )  # no executor works while the interpreter exits
        return count

    def _close(self) -> None:
        """Give up all sub-folders. In the disk's thread, as its last call."""
        for store in [*self._stores, *([self._own] if self._own else [])]:
            with contextlib.suppress(OSError):
                if not store.index.messages:
                    store.gone += store.index.segments
                if store.gone:
                    store.delete()
                elif store.index.messages:
                    store.folder.save_cursor(cursor_bytes(store.index), safely=False)
            store.folder.close(remove=not store.index.messages)

    async def flush(self, timeout_s: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._adopted.wait()
        return await super().flush(timeout_s)

    def unsettled(self) -> list[Item]:
        ours = [
            item
            for item in self.pending.unsettled()
            if not isinstance(cast(Publish, item).waiter, _Replayed)
        ]
        return [*ours, *self._queue, *self._writing]

    # Accepting.
    def submit(
        self,
        target: Target,
        body: bytes,
        message: Message | None,
        timeout_ms: int,
        waiter: Waiter | Many | None,
    ) -> Publish:
        if self._is_plain or not self._goes_to_disk(target):
            return super().submit(target, body, message, timeout_ms, waiter)
        message_id = (message.message_id if message else "") or next(self._ids)
        publish = Publish(message_id, target, body, None, now_ms() + timeout_ms, waiter)
        try:
            if message is None:
                publish.properties = self._bare(target.content_type, message_id)
            else:
                publish.properties = encode_publish(target, message, message_id, alone=True)
        except Exception as fault:  # an AMQP table cannot hold it
            self.pending.refuse(publish, f"cannot be encoded: {type(fault).__name__}")
            self._loop.call_soon(tell, [publish], time.monotonic_ns())
            return publish
        self._enqueue(publish)
        self._to_write.set()
        return publish

    def submit_bundle(
        self, target: Target, bodies: list[bytes], size: int, timeout_ms: int, waiter: Many
    ) -> Bundle:
        if self._is_plain or not self._goes_to_disk(target):
            return super().submit_bundle(target, bodies, size, timeout_ms, waiter)
        ids = [next(self._ids) for _ in bodies]
        bundle = Bundle(ids, bodies, size, target, now_ms() + timeout_ms, waiter)
        self._enqueue(bundle)
        self._to_write.set()
        return bundle

    def _goes_to_disk(self, target: Target) -> bool:
        if not target.confirms:
            return False
        if self._is_away or self._is_adopting or self._settings.always:
            return True
        return self._is_behind(target.destination)

    def _is_behind(self, destination: str) -> bool:
        """Return whether something of this destination waits for the disk, or was not sent from there yet."""
        return self._queued[destination] > 0 or self._is_unread(destination)

    def _is_unread(self, destination: str) -> bool:
        if any(publish.destination == destination for publish in self._writing):
            return True
        lane = self._lanes.get(destination)
        return any(lane in store.index.unread for store in self._all())

    def _all(self) -> list[Store]:
        """Return all stores, in the order in which they are sent."""
        return [*self._stores, self._own] if self._own is not None else self._stores

    def _enqueue(self, publish: Publish) -> None:
        self._queue.append(publish)
        self._queued[publish.destination] += publish.count
        self.pending.waiting += publish.count
        self.pending.waiting_bytes += publish.size
        self._is_plain = False

    def _dequeued(self, publishes: list[Publish]) -> None:
        for publish in publishes:
            self._queued[publish.destination] -= publish.count
            self.pending.waiting -= publish.count
            self.pending.waiting_bytes -= publish.size

    def _bare(self, content_type: str, message_id: str) -> bytes:
        stamp_s = int(time.time())
        shape = self._shapes.get(content_type)
        if shape is None or shape[0] != stamp_s:
            shape = self._shapes[content_type] = (stamp_s, *bare_shape(content_type, stamp_s))
        return shape[1] + message_id.encode() + shape[2]

    # Whether a broker takes publishes.
    def _tick(self) -> None:
        now = now_ms()
        if self._is_usable(now):
            self._usable_ms = now
            if self._is_away and not self._is_ending:
                self._is_away = False
                log.warning("spool is sent broker=%s messages=%d", self.route.broker, self.messages)
        elif not self._is_away and (
            now - self._usable_ms >= whole_ms(self._settings.after_s)
            or any(item.deadline_ms <= now for item in self.pending.unsettled())
        ):
            self._is_away = True
            self._reflect()
            log.warning("no broker takes messages: they go to the spool folder=%s", self._root)
        if self._is_away:
            self._withdraw()
        super()._tick()
        if self._seen_replayed != self.replayed:
            if now - self._progress_ms > PROGRESS_MS:
                self._paid = self.replayed
            self._seen_replayed, self._progress_ms = self.replayed, now
        self._expire(now)
        self._release()
        self._tidy_up(now)
        if now - self._adopted_ms >= ADOPT_MS and not self._is_away and not self._is_adopting:
            self._tasks.spawn(self._take_over())
        self._to_write.set()
        self._to_replay.set()

    def _is_usable(self, now: int) -> bool:
        link = self._links.get(self.route.current or 0)
        if link is None or not link.is_open or self._blocked:
            return False
        return self.pending.unanswered_ms(now) < self._slow_ms

    def put_forward(self, ms: int) -> None:
        """Advance the time by ms, for a bus in memory."""
        for publish in self._queue:
            publish.deadline_ms -= ms
        self._usable_ms -= ms
        for store in self._all():
            store.index.put_forward(ms)
        super().put_forward(ms)

    def _withdraw(self) -> None:
        """Take out of `pending` all that waits for a broker: to the disk, if it is not there already."""
        taken = self.pending.take_out(lambda item: cast(Publish, item).target.confirms)
        for publish in cast(list[Publish], taken):
            if isinstance(publish.waiter, _Replayed):
                sent = publish.waiter
                self._left(sent)
                sent.store.index.withdrawn(sent.lane, sent.number)
                continue
            if type(publish) is Publish:
                publish.properties = self._alone(publish)
            self._enqueue(publish)
        if taken:
            self._to_write.set()

    def _alone(self, publish: Publish) -> bytes:
        """Return the properties as a message has them that travels alone."""
        raw = publish.properties
        if raw is None:
            return self._bare(publish.target.content_type, publish.message_id)
        if raw[0] & DELIVERY_MODE:
            return raw
        message = IN_BATCH.message(raw, b"")
        return encode(message, publish.message_id, int(time.time()))

    def _release(self) -> None:
        """Give what waits for the disk to `pending`, where brokers take it and nothing is before it."""
        if self._is_adopting or self._is_away or self._settings.always or not self._queue:
            return
        stay = {name for name, count in self._queued.items() if count and self._is_unread(name)}
        gone = [publish for publish in self._queue if publish.destination not in stay]
        if gone:
            self._queue = deque(each for each in self._queue if each.destination in stay)
            self._dequeued(gone)
            for publish in gone:
                if publish.destination not in self._known_destinations:
                    self._open_destination(publish.target)
                if isinstance(publish, Bundle):
                    self.pending.accept_bundle(publish)
                else:
                    self.pending.accept(publish, alone=True)
            self._wake()
            self._reflect()

    def _expire(self, now: int) -> None:
        late = [publish for publish in self._queue if publish.deadline_ms <= now]
        if late:
            gone = set(late)
            self._queue = deque(each for each in self._queue if each not in gone)
            self._dequeued(late)
            why = (
                f"deadline passed; the spool takes nothing: {self.fault}"
                if self.fault
                else (f"deadline passed{self._last_fault}")
            )
            sent = [publish for publish in late if publish.attempts]
            self._settle(self._end(sent, UNKNOWN, why))
            self._settle(self._end(late, REFUSED, why))
        # A disk that hangs: what is being written may be found there later.
        hung = [each for each in self._writing if each.deadline_ms <= now]
        self._settle(self._end(hung, UNKNOWN, "deadline passed while it was written to the spool"))

    def _end(self, publishes: list[Publish], outcome: str, reason: str = "") -> list[Item]:
        return self.pending.end(cast(list[Item], publishes), outcome, reason)

    def _reflect(self) -> None:
        """Find out anew whether anything concerns the spool; wake who may have something to do."""
        self._is_plain = self._concerns_nothing()
        self._to_write.set()
        self._to_replay.set()

    def _concerns_nothing(self) -> bool:
        return not (
            self._is_away
            or self._is_adopting
            or self._settings.always
            or self._queue
            or self._writing
            or any(store.index.unread for store in self._all())
        )

    # Counts.
    def spool_counts(self) -> SpoolCounts:
        self.replay_ends[CONFIRMED] = self.replayed
        return SpoolCounts(
            self.messages,
            self.spool_bytes,
            self.oldest_s,
            self.replayed,
            self.failures,
            self.damaged,
        )

    @property
    def messages(self) -> int:
        """The number of messages in the spool."""
        return sum(store.index.messages for store in self._all())

    @property
    def spool_bytes(self) -> int:
        """The bytes of its files."""
        return sum(store.size_bytes for store in self._all())

    @property
    def oldest_s(self) -> float:
        """The age of the oldest message, 0 for none; no less than 0 where clocks jump."""
        times = [store.index.oldest_ms() for store in self._all()]
        oldest_ms = min((each for each in times if each is not None), default=None)
        return 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)

    # Writing.
    async def _write_all(self) -> None:
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            try:
                await self._write_queued()
            except Exception as fault:  # of the library: its publishes are not to wait for ever
                self._disk_failed(fault)

    async def _write_queued(self) -> None:
        self._release()
        while self._queue and not self._is_adopting and now_ms() >= self._disk_retry_ms:
            group = self._next_group(self._count_max())
            if not group:
                break
            await self._write(group)
            self._release()

    def _count_max(self) -> int:
        """Return how many messages may be written now: fewer than are sent meanwhile, so that the spool ends.

        Callers wait for it, as for a broker. Without a limit, publishers under load filled it as fast as it
        was sent, for ever. Where nothing is sent there is none.
        """
        least = REPLAY_MESSAGES if self._settings.always else 0
        if self._is_away or now_ms() - self._progress_ms > PROGRESS_MS or self.messages <= least:
            return self._settings.messages_max
        return (self.replayed - self._paid) // SENT_FOR_ONE

    def _next_group(self, count_max: int) -> list[Publish]:
        """Take as many publishes off the queue as are written together, and as the spool has room for."""
        if count_max <= 0:
            return []
        room = self._settings.messages_max - self.messages
        room_bytes = min(GROUP_BYTES, self._settings.bytes_max - self.spool_bytes - HEADER_BYTES)
        group: list[Publish] = []
        size = count = 0
        while self._queue:
            publish = self._queue[0]
            size += (
                publish.size + publish.count * (RECORD_BYTES + 256) + len(publish.properties or b"")
            )
            count += publish.count
            fits = count <= room and size <= room_bytes
            if group and count > count_max:
                break
            if not fits and (group or not self._fits_alone(publish, room, size)):
                break
            group.append(self._queue.popleft())
        if self._queue and not group:
            self._full()
        return group

    def _fits_alone(self, publish: Publish, room: int, size: int) -> bool:
        """Return whether a publish larger than a group has room."""
        return publish.count <= room and size <= self._settings.bytes_max - self.spool_bytes

    def _full(self) -> None:
        if not self.fault:
            self._is_full = True
            self.fault = f"it is full: {self.messages} messages, {self.spool_bytes} bytes"
            log.error("spool is full messages=%d bytes=%d", self.messages, self.spool_bytes)

    async def _write(self, group: list[Publish]) -> None:
        own = self._make_own()
        if own is None:
            self._queue.extendleft(reversed(group))
            return
        count = sum(publish.count for publish in group)
        self._paid = min(self.replayed, self._paid + count * SENT_FOR_ONE)
        index, header, ms = own.index, b"", max(0, time.time_ns() // 1_000_000)
        parts: list[bytes] = []
        written: list[tuple[int, str]] = []
        self._writing = group
        try:
            last = index.segments[-1] if index.segments else None
            if last is None or last.is_closed or last.end >= SEGMENT_BYTES:
                header = index.begin_segment(segment_name(index.next_number))
            for publish in group:
                place, lane = self._place_of(publish.target)
                for properties, body in self._records_of(publish):
                    number = index.next()
                    parts.append(encode_record(index.spool_id, number, ms, place, properties, body))
                    written.append((number, lane))
            segment = index.segments[-1]
            await self._disk.call(
                own.folder.append, segment.name, header, b"".join(parts), segment.end
            )
        except Exception as fault:  # of the disk; any other one is a fault of the library
            self._writing = []
            index.close_segment()
            self._queue.extendleft(reversed([each for each in group if each.end is None]))
            self._dequeued([each for each in group if each.end is not None])
            if isinstance(fault, FileNotFoundError):
                self._file_gone(own)
            self._disk_failed(fault)
            return
        self._writing = []
        for (number, lane), part in zip(written, parts, strict=True):
            index.written(number, lane, ms, len(part))
        self._written_ms = now_ms()
        if self.fault:
            log.warning("spool takes messages again after reason=%r", self.fault)
            self._no_fault()
        self._dequeued(group)
        self._settle(self._end(group, SPOOLED))
        self._to_replay.set()

    def _records_of(self, publish: Publish) -> list[tuple[bytes, bytes]]:
        if isinstance(publish, Bundle):
            content_type = publish.target.content_type
            return [
                (self._bare(content_type, message_id), body)
                for message_id, body in zip(publish.ids, publish.bodies, strict=True)
            ]
        assert publish.properties is not None
        return [(publish.properties, publish.body)]

    def _place_of(self, target: Target) -> tuple[bytes, str]:
        found = self._places.get(target)
        if found is None:
            place = place_of(target)
            found = self._places[target] = (place.encode(), lane_of(place))
            self._lanes[target.destination] = lane_of(place)
        return found

    def _disk_failed(self, fault: Exception) -> None:
        self._disk_retry_ms = now_ms() + DISK_RETRY_MS
        if not self.fault:
            unexpected = None if isinstance(fault, OSError) else fault
            log.error(
                "spool fails folder=%s reason=%r", self._root, _told(fault), exc_info=unexpected
            )
        self.fault, self._is_full = _told(fault), False

    def _no_fault(self) -> None:
        self.fault, self._is_full = "", False

    def _file_gone(self, own: Store) -> None:
        """Give up what somebody deleted. Write to another sub-folder from now on, if it was all of ours."""
        for segment in list(own.index.segments):
            if not own.folder.is_there(segment.name):
                self._give_up(own, segment, {}, os.strerror(errno.ENOENT))
        if not own.folder.is_there():
            own.folder.release()
            self._own = None
            if own.index.messages:  # they are under way
                self._stores.append(own)

    # Sending.
    async def _replay_all(self) -> None:
        while True:
            await self._to_replay.wait()
            self._to_replay.clear()
            try:
                await self._replay_stores()
            except Exception as fault:  # of the library: what is left is tried again
                if self._replay_fault != (told := _told(fault)):
                    self._replay_fault = told
                    log.exception("spool not sent folder=%s", self._root)
                await asyncio.sleep(DISK_RETRY_MS / 1000)
            self._release()
            self._is_plain = self._concerns_nothing()

    async def _replay_stores(self) -> None:
        blocked: set[str] = set()
        for store in self._all():
            if self._is_adopting or not self._may_replay():
                break
            ready = store.index.begin_pass(now_ms(), blocked)
            for segment in list(store.index.segments) if ready else ():
                if any(segment.waiting.get(lane) for lane in ready):
                    await self._replay(store, segment)
            blocked |= store.index.unread.keys()

    def _may_replay(self) -> bool:
        return not (self._is_away or self._is_ending) and self._is_usable(now_ms())

    async def _replay(self, store: Store, segment: Segment) -> None:
        """Send what is wanted of a segment, as far as brokers take it."""
        seen: defaultdict[str, set[int]] = defaultdict(set)
        at, expected, lanes, wants = HEADER_BYTES, segment.first, self._lane_of, store.index.wants
        while at < segment.end:
            end = segment.end
            try:
                data = await self._disk.call(store.folder.read, segment.name, at, end)
            except (OSError, SegmentDamaged) as fault:
                self._unreadable(store, segment, fault)
                return
            if not self._may_replay():
                return
            for found in scan(data, store.index.spool_id, at=0, expected=expected):
                if isinstance(found, Hole):  # told when it was taken over
                    continue
                expected = found.number + 1
                lane = lanes.get(found.place) or lanes.setdefault(found.place, lane_of(found.place))
                seen[lane].add(found.number)
                if self._under_way and not self._has_replay_room(found.size):
                    await self._wait_for_replay_room(found.size)
                    if not self._may_replay():
                        return
                if wants(lane, found.number):
                    self._send_record(store, found, lane)
            at = end
            if segment.end == end and sum(map(len, seen.values())) < segment.records:
                self._give_up(store, segment, seen, "records of it have vanished")

    async def _wait_for_replay_room(self, size: int) -> None:
        while self._under_way and not self._has_replay_room(size):
            self._replay_room.clear()
            await self._replay_room.wait()

    def _has_replay_room(self, size: int) -> bool:
        return (
            self._under_way < self._replay_messages
            and self._under_way_bytes + size <= self._replay_bytes
        )

    def _send_record(self, store: Store, record: Record, lane: str) -> None:
        waiter = _Replayed(self, store, record, lane)
        store.index.sent(lane, record.number, record.ms)
        self._under_way += 1
        self._under_way_bytes += record.size
        try:
            target = self._target_of(record.place)
        except NameInvalid as fault:  # of a later version
            self._failed(waiter, str(fault))
            return
        if target.destination not in self._known_destinations:
            self._open_destination(target)
        message_id = read_message_id(record.properties)
        publish = Publish(
            message_id, target, record.body, record.properties, NO_DEADLINE_MS, waiter
        )
        self.pending.accept(publish, alone=True)
        self._wake()

    def _target_of(self, place: str) -> Target:
        target = self._targets.get(place)
        if target is None:
            target = self._targets[place] = read_place(place)
            self._lanes[target.destination] = lane_of(place)
        return target

    def _left(self, sent: _Replayed) -> None:
        self._under_way -= 1
        self._under_way_bytes -= sent.size
        if self._under_way <= self._replay_messages // 2:
            self._replay_room.set()

    def replay_ended(self, sent: _Replayed, published: Published) -> None:
        """Record the end of a message that was sent from the spool."""
        if published.outcome is not CONFIRMED_OUTCOME:
            outcome = published.outcome.value
            self.replay_ends[outcome] = self.replay_ends.get(outcome, 0) + 1
            self._failed(sent, published.reason or outcome)
            return
        self._left(sent)
        sent.store.index.confirmed(sent.lane, sent.number)
        self.replayed += 1
        self._confirms += 1
        if self._confirms >= CURSOR_CONFIRMS:
            self._tidy_up(now_ms())
        if self._hooks is not None:
            self._hooks.spooled(sent.name, published)

    def _failed(self, sent: _Replayed, reason: str) -> None:
        self._left(sent)
        self.failures += 1
        times = sent.store.index.failed(sent.lane, sent.number, now_ms())
        if times == 1 or times % 10 == 0:
            log.warning(
                "spool: not taken destination=%s times=%d reason=%r", sent.name, times, reason
            )
        self._is_plain = False

    def _unreadable(self, store: Store, segment: Segment, fault: Exception) -> None:
        """Try again later, unless it is gone or no segment any more."""
        if isinstance(fault, OSError) and fault.errno != errno.ENOENT:
            self._disk_failed(fault)
        else:
            told = fault.strerror if isinstance(fault, OSError) else str(fault)
            self._give_up(store, segment, {}, told or "it cannot be read")

    def _give_up(
        self, store: Store, segment: Segment, seen: Mapping[str, Collection[int]], why: str
    ) -> None:
        """Give up what cannot be read of a segment, and tell it. seen: lane -> numbers that can be read."""
        following = [each.first for each in store.index.segments if each.first > segment.first]
        until = following[0] - 1 if following else store.index.last_number
        lost = store.index.forget(segment, until, seen)
        if not lost:
            return
        self.damaged += 1
        log.error(
            "spool damaged folder=%s segment=%s lost=%d reason=%r",
            store.folder.path,
            segment.name,
            lost,
            why,
        )

    # Deleting.
    def _tidy_up(self, now: int) -> None:
        """Delete what is confirmed, and write the cursor, if it is time for it."""
        if self._is_tidying or self._is_adopting or now < self._tidy_at_ms:
            return
        if not (self.messages or self.spool_bytes):
            return
        self._is_tidying = True
        self._tasks.spawn(self._tidy(now))

    async def _tidy(self, now: int) -> None:
        is_due = self._confirms and now - self._saved_ms >= CURSOR_MS
        is_due = bool(is_due or self._confirms >= CURSOR_CONFIRMS)
        try:
            for store in self._all():
                index = store.index
                is_own = store is self._own
                is_idle = now - self._written_ms >= IDLE_MS or index.size_bytes >= SEGMENT_BYTES
                if is_own and not index.messages and not self._writing and is_idle:
                    index.close_segment()
                store.gone += index.deletable()
                if gone := bool(store.gone):
                    await self._disk.call(store.delete)
                    store.gone.clear()
                elif is_due and index.messages:
                    self._confirms, self._saved_ms = 0, now
                    raw = cursor_bytes(index)
                    await self._disk.call(self._save, store, raw)
                if not is_own and not index.segments and store in self._stores:
                    self._stores.remove(store)
                    log.info("spool sent folder=%s", store.folder.path)
                    await self._disk.call(self._leave_folder, store)
                if gone:
                    if self._is_full:
                        self._no_fault()
                    self._reflect()
            self._tidy_fault = ""
        except OSError as fault:
            self._tidy_at_ms = now + DISK_RETRY_MS
            if self._tidy_fault != (told := _told(fault)):
                self._tidy_fault = told
                log.warning("spool keeps what is sent reason=%r", told)
        finally:
            self._is_tidying = False

    def _save(self, store: Store, raw: bytes) -> None:
        store.folder.save_cursor(raw, safely=False)

    def _leave_folder(self, store: Store) -> None:
        store.folder.close(remove=True)
