"""The keeper of a publisher's spool: its folders, those of processes that have ended, and what is deleted.

It decides nothing about messages: `core.spool.SpoolIndex` counts them, the writer adds them, the replayer
sends them. All files are used in the thread of `DiskThread`; the rest runs on the publisher's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from messagebus._io.loop import Tasks
from messagebus._io.publish.spool.folder import (
    SEGMENT_BYTES,
    DiskThread,
    Store,
    adopt,
    cursor_bytes,
)
from messagebus._io.publish.spool.records import Records, read_place
from messagebus.clock import monotonic_ms
from messagebus.core.spool import Segment
from messagebus.errors import ConfigError, NameInvalid, reason_of

log = logging.getLogger("messagebus.publisher")

# A disk that failed is tried again after this.
DISK_RETRY_MS = 1_000
# The cursor is written after so many confirms, and each second in which there was one.
CURSOR_CONFIRMS, CURSOR_MS = 1_000, 1_000
# The segment in use is deleted when nothing has been in it for this time.
IDLE_MS = 1_000
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


def words_of(fault: BaseException) -> str:
    """Return words for a fault of the disk, or of the library itself."""
    words = fault.strerror if isinstance(fault, OSError) else None
    return words or reason_of(fault)


class Keeper:
    """The sub-folders of one publisher's spool. Raises ConfigError for a folder that cannot be used."""

    def __init__(
        self,
        root: Path,
        bus_name: str,
        records: Records,
        tasks: Tasks,
        on_deleted: Callable[[], None],
    ) -> None:
        """Make a sub-folder of its own. on_deleted: called when there is more room on the disk."""
        self.root = root
        self._bus_name, self._records, self._tasks = bus_name, records, tasks
        self._on_deleted = on_deleted
        self._others: list[Store] = []  # of processes that ended, oldest first
        self._own: Store | None = None
        self.first_fault: OSError | None = None
        """The reason why there is no sub-folder yet: it is tried again."""
        try:
            self.own()
        except OSError as fault:
            if fault.errno in WRONG_SETTING:
                raise ConfigError(f"spool {str(root)!r}: {fault.strerror}") from None
            self.first_fault = fault
        self.disk = DiskThread()
        self._adopting: asyncio.Future[tuple[list[Store], int]] | None = None
        self._foreign: set[Path] = set()  # sub-folders of other buses, logged
        self.taken_over = asyncio.Event()
        """Set when all is known that processes have left which had ended before the start."""
        self.damaged = 0
        """Damaged places seen so far."""
        self.confirms = 0
        """Messages confirmed since the cursor was written."""
        self.is_writing = False
        """True while the thread writes messages to its own sub-folder."""
        self.written_ms = self._saved_ms = monotonic_ms()
        self._is_tidying, self._tidy_at_ms = False, 0
        self._tidy_fault = ""  # the last one that was logged

    # What there is.
    def own(self) -> Store:
        """Return the sub-folder that is written to; make one, where there is none. Raises OSError."""
        if self._own is None:
            self._own = Store.create(self.root, self._bus_name)
        return self._own

    def stores(self) -> list[Store]:
        """Return all stores, in the order in which they are sent."""
        return [*self._others, self._own] if self._own is not None else self._others

    def is_unread(self, destination: str) -> bool:
        """Return whether something of this destination is on the disk, and was not sent from there yet."""
        lane = self._records.lanes.get(destination)
        return any(lane in store.index.unread for store in self.stores())

    @property
    def has_unread(self) -> bool:
        """True when something on the disk was not sent from there yet."""
        return any(store.index.unread for store in self.stores())

    @property
    def messages(self) -> int:
        """The number of messages on the disk."""
        return sum(store.index.messages for store in self.stores())

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return sum(store.size_bytes for store in self.stores())

    @property
    def oldest_s(self) -> float:
        """The age of the oldest message, 0 for none; no less than 0 where clocks jump."""
        times = [store.index.oldest_ms() for store in self.stores()]
        oldest_ms = min((each for each in times if each is not None), default=None)
        return 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)

    def put_forward(self, ms: int) -> None:
        """Advance the time of waits by ms, for a bus in memory."""
        for store in self.stores():
            store.index.put_forward(ms)

    # What others leave.
    async def take_over(self) -> None:
        """Take over what processes that ended have left. Where this is cancelled, the next call ends it."""
        adopting = self._adopting
        if adopting is None:
            adopting = self.disk.call(adopt, self.root, self._bus_name, self._foreign)
            self._adopting = adopting
        await asyncio.wait([adopting])
        if self._adopting is not adopting:  # a call beside this one has them
            return
        self._adopting = None
        if (fault := adopting.exception()) is None:
            found, damaged = adopting.result()
        else:  # of the disk, or of the library: publishes go on
            found, damaged = [], 0
            log.error("spool unreadable folder=%s reason=%r", self.root, words_of(fault))
        self.damaged += damaged
        for store in found:
            for lane in store.index.lanes:
                with contextlib.suppress(NameInvalid):  # of a later version: logged when it is sent
                    self._records.lanes[read_place(lane).destination] = lane
            log.warning(
                "spool taken over folder=%s messages=%d", store.folder.path, store.index.messages
            )
        self._others += found
        self.taken_over.set()

    # What is lost.
    def give_up(
        self, store: Store, segment: Segment, readable: Mapping[str, Collection[int]], why: str
    ) -> None:
        """Give up what cannot be read of a segment, and log it. readable: lane -> the numbers that are."""
        following = [each.first for each in store.index.segments if each.first > segment.first]
        until = following[0] - 1 if following else store.index.last_number
        lost = store.index.forget(segment, until, readable)
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

    def file_gone(self, own: Store) -> None:
        """Give up what somebody deleted. Write to another sub-folder from now on, if it was all of ours."""
        for segment in list(own.index.segments):
            if not own.folder.is_there(segment.name):
                self.give_up(own, segment, {}, os.strerror(errno.ENOENT))
        if not own.folder.is_there():
            own.folder.release()
            self._own = None
            if own.index.messages:  # they are under way
                self._others.append(own)

    # What is deleted.
    def tidy(self, now: int) -> None:
        """Delete what is confirmed, and write the cursor, if it is time for it."""
        if self._is_tidying or not self.taken_over.is_set() or now < self._tidy_at_ms:
            return
        if self.messages or self.bytes:
            self._is_tidying = True
            self._tasks.spawn(self._tidy(now))

    async def _tidy(self, now: int) -> None:
        is_due = self.confirms and now - self._saved_ms >= CURSOR_MS
        is_due = bool(is_due or self.confirms >= CURSOR_CONFIRMS)
        try:
            for store in self.stores():
                if await self._tidy_store(store, now, is_due=is_due):
                    self._on_deleted()
            self._tidy_fault = ""
        except OSError as fault:
            self._tidy_at_ms = now + DISK_RETRY_MS
            if self._tidy_fault != (words := words_of(fault)):
                self._tidy_fault = words
                log.warning("spool keeps what is sent reason=%r", words)
        finally:
            self._is_tidying = False

    async def _tidy_store(self, store: Store, now: int, *, is_due: bool) -> bool:
        """Delete what is confirmed of a store. Returns whether it was something."""
        index, is_own = store.index, store is self._own
        is_idle = now - self.written_ms >= IDLE_MS or index.size_bytes >= SEGMENT_BYTES
        if is_own and not index.messages and not self.is_writing and is_idle:
            index.close_segment()
        store.gone += index.deletable()
        if gone := bool(store.gone):
            await self.disk.call(store.delete)
            store.gone.clear()
        elif is_due and index.messages:
            self.confirms, self._saved_ms = 0, now
            await self.disk.call(store.save_cursor, cursor_bytes(index))
        if not is_own and not index.segments and store in self._others:
            self._others.remove(store)
            log.info("spool sent folder=%s", store.folder.path)
            await self.disk.call(store.leave)
        return gone

    # The end.
    async def close(self) -> None:
        """Give up all sub-folders, and end the thread."""
        closed = self.disk.call(self._close)
        self.disk.stop()
        # No executor works while the interpreter exits.
        await asyncio.wait([closed], timeout=CLOSE_S)

    def _close(self) -> None:
        """Give up all sub-folders. In the disk's thread, as its last call."""
        for store in self.stores():
            with contextlib.suppress(OSError):
                if not store.index.messages:
                    store.gone += store.index.segments
                if store.gone:
                    store.delete()
                elif store.index.messages:
                    store.save_cursor(cursor_bytes(store.index))
            store.folder.close(remove=not store.index.messages)
