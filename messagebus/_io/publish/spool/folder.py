"""The files of the disk spool: locked folders, segments, the cursor, and the thread that waits for the disk.

A spool's folder has a numbered sub-folder for each publisher, which holds its lock as long as it lives. The
next process on the same bus, whose name is in a file, takes over the files of one that has ended, oldest
sub-folder first. Only `DiskThread` blocks;
`core.spool` decides what is written, read and deleted. All functions here raise OSError.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import logging
import os
import queue
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from messagebus.core.spool import (
    HEADER_BYTES,
    SPOOL_ID_BYTES,
    Cursor,
    Hole,
    Segment,
    SegmentDamaged,
    SpoolIndex,
    lane_of,
    read_cursor,
    read_header,
    scan,
    write_cursor,
)
from messagebus.files import owner_only, sync_folder
from messagebus.message import BODY_BYTES_MAX

log = logging.getLogger("messagebus.publisher")

T = TypeVar("T")

LOCK, CURSOR, BUS = "lock", "cursor", "bus"
SEGMENT, DAMAGED, HOLE = ".seg", ".damaged", ".hole"
SEGMENT_BYTES = 16 * 1024 * 1024
"""A segment that has reached this size takes no more."""
# A segment ends with one group of records; larger files are none of ours, and not read into memory.
FILE_BYTES_MAX = SEGMENT_BYTES + 4 * BODY_BYTES_MAX
FOLDERS_MAX = 100_000
# Faults of reading that say nothing against a file.
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)

# Looked up at each call: tests put others in their place.
sync = getattr(os, "fdatasync", os.fsync)
write = os.write


class DiskThread:
    """The thread that all files of one publisher are used in. One call at a time, in order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="messagebus-spool", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call the function in the thread; the future has its result or error."""
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = function(*args)
            except Exception as fault:
                self._answer(future, functools.partial(future.set_exception, fault))
            else:
                self._answer(future, functools.partial(future.set_result, result))

        self._calls.put(run)
        return future

    def _answer(self, future: asyncio.Future[T], settle: Callable[[], None]) -> None:
        def on_loop() -> None:
            if not future.done():
                settle()

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(on_loop)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def stop(self) -> None:
        """End the thread after its last call, without waiting for a disk that hangs."""
        self._calls.put(None)


class SpoolFolder:
    """One sub-folder, locked by this process until `close`. Used by one thread at a time."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self._fd = -1
        self._name = ""  # of the segment that is open for writing
        _open_folders.add(self)

    # Locks.
    @classmethod
    def create(cls, root: Path, bus: str) -> SpoolFolder:
        """Make the next sub-folder, so that the order of their names is that of their publishers.

        bus: the name of the bus that its messages are for.
        """
        missing = [each for each in (root, *root.parents) if not each.exists()]
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in missing:
            sync_folder(each.parent)
        last = max((int(path.name) for path in sub_folders(root)), default=0)
        for number in range(last + 1, last + FOLDERS_MAX):
            path = root / f"{number:08d}"
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            if (made := cls.lock(path, flags=os.O_CREAT)) is not None:
                try:
                    made.write_bus(bus)
                    sync_folder(root)
                except BaseException:
                    made.close(remove=True)
                    raise
                return made
        raise OSError(errno.EMFILE, "too many sub-folders", str(root))

    @classmethod
    def lock(cls, path: Path, *, flags: int = 0) -> SpoolFolder | None:
        """Lock a sub-folder. None: a living process has it, or it has just gone."""
        try:
            fd = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino == (path / LOCK).stat().st_ino:
                return cls(path, fd)
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def close(self, *, remove: bool = False) -> None:
        """Give up the lock. remove: the sub-folder, too, if nothing else is in it."""
        self._close_segment()
        if remove:
            with contextlib.suppress(OSError):
                ours = (f"{CURSOR}.new", CURSOR, BUS, LOCK)
                if {each.name for each in self.path.iterdir()} <= {*ours}:
                    for name in ours:
                        (self.path / name).unlink(missing_ok=True)
                    self.path.rmdir()
        self.release()

    def release(self) -> None:
        """Close the lock's file; also in a fork, whose copy would keep the lock of its parent."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        _open_folders.discard(self)

    def is_there(self, name: str = LOCK) -> bool:
        """Return whether the sub-folder is still ours, and has this file."""
        with contextlib.suppress(OSError):
            ours = (self.path / LOCK).stat().st_ino == os.fstat(self._lock_fd).st_ino
            return ours and (self.path / name).exists()
        return False

    # The bus.
    @property
    def bus(self) -> str:
        """The name of the bus that its messages are for; "" where none is noted: for any publisher."""
        with contextlib.suppress(FileNotFoundError):
            return (self.path / BUS).read_text(errors="replace").strip()
        return ""

    def write_bus(self, bus: str) -> None:
        """Note the bus, before there is any message."""
        fd = os.open(self.path / BUS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, f"{bus}\n".encode())
            sync(fd)
        finally:
            os.close(fd)
        sync_folder(self.path)

    # Writing.
    def append(self, name: str, header: bytes, data: bytes, end: int) -> None:
        """Append to this segment and wait until it is on the disk. header: of a new segment, else empty.

        end: its size so far. After an error the segment has no more than that, as far as the disk obeys.
        """
        try:
            if header or name != self._name:
                self._open(name, header)
            _write_all(self._fd, data)
            sync(self._fd)
            if header:
                sync_folder(self.path)
            # A file in a folder that was deleted takes everything, and nobody finds it.
            if os.fstat(self._fd).st_ino != (self.path / name).stat().st_ino:
                raise FileNotFoundError(errno.ENOENT, "the segment was replaced", name)
        except OSError:
            with contextlib.suppress(OSError):
                if header:
                    (self.path / name).unlink(missing_ok=True)
                elif self._fd >= 0 and self._name == name:
                    os.ftruncate(self._fd, end)
            self._close_segment()
            raise

    def _open(self, name: str, header: bytes) -> None:
        self._close_segment()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(
            self.path / name, flags | (os.O_CREAT | os.O_EXCL if header else 0), 0o600
        )
        self._name = name
        _write_all(self._fd, header)

    def _close_segment(self) -> None:
        if self._fd >= 0:
            fd, self._fd, self._name = self._fd, -1, ""
            os.close(fd)

    def save_cursor(self, raw: bytes, *, safely: bool) -> None:
        """Replace the cursor. safely: it is on the disk when this returns."""
        path, new = self.path / CURSOR, self.path / f"{CURSOR}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, raw)
            if safely:
                sync(fd)
        finally:
            os.close(fd)
        new.replace(path)
        if safely:
            sync_folder(self.path)

    def delete(self, names: list[str], cursor: bytes) -> None:
        """Delete segments. The cursor first: it tells a deleted segment from a missing one.

        On a full disk there is room for it when they are gone.
        """
        is_full = False
        try:
            self.save_cursor(cursor, safely=True)
        except OSError as fault:
            is_full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
            if not is_full:
                raise
        for name in names:
            if name == self._name:
                self._close_segment()
            (self.path / name).unlink(missing_ok=True)
        if is_full:
            self.save_cursor(cursor, safely=True)

    # Reading.
    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a file from begin to end; fewer where it is shorter."""
        fd = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size > FILE_BYTES_MAX:
                raise SegmentDamaged(f"{size} bytes are too many for a segment")
            wanted = (size if end is None else min(end, size)) - begin
            parts = []
            while wanted > 0 and (part := os.pread(fd, wanted, begin)):
                parts.append(part)
                begin, wanted = begin + len(part), wanted - len(part)
            return b"".join(parts)
        finally:
            os.close(fd)


# A fork has copies of the locks' files and no thread to use them.
_open_folders: weakref.WeakSet[SpoolFolder] = weakref.WeakSet()


def _release_in_fork() -> None:
    for folder in list(_open_folders):
        folder.release()


os.register_at_fork(after_in_child=_release_in_fork)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[write(fd, left) :]


def sub_folders(root: Path) -> list[Path]:
    """Return the publishers' sub-folders, oldest first."""
    try:
        found = [path for path in root.iterdir() if path.name.isdecimal() and path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda path: int(path.name))


def segment_name(number: int) -> str:
    """Return the name of the segment whose first record has this number."""
    return f"{number:016d}{SEGMENT}"


@dataclass(slots=True)
class Store:
    """One sub-folder with what lies in it. faults: in words, what cannot be read there.

    no_segments: names of files that are no segments of it. holes: file, place and bytes of what is damaged.
    torn: bytes of an end that a cut-off write left. gone: segments that are to be deleted.
    """

    folder: SpoolFolder
    index: SpoolIndex
    faults: list[str] = field(default_factory=list)
    no_segments: list[str] = field(default_factory=list)
    holes: list[tuple[str, Hole, bytes]] = field(default_factory=list)
    torn: int = 0
    gone: list[Segment] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes of its segments, also of those that are to be deleted."""
        return self.index.size_bytes + sum(segment.end for segment in self.gone)

    def delete(self) -> None:
        """Delete what is to be deleted; after an error all of it is tried again."""
        self.folder.delete([segment.name for segment in self.gone], cursor_bytes(self.index))

    def save_cursor(self, raw: bytes) -> None:
        """Replace the cursor, which may be late after a power-off."""
        self.folder.save_cursor(raw, safely=False)

    def leave(self) -> None:
        """Give up the sub-folder, of which everything is sent."""
        self.folder.close(remove=True)

    @classmethod
    def create(cls, root: Path, bus: str) -> Store:
        return cls(SpoolFolder.create(root, bus), SpoolIndex(secrets.token_bytes(SPOOL_ID_BYTES)))


def load(folder: SpoolFolder) -> Store:
    """Read a sub-folder: count its records, and name all that is damaged. Changes nothing.

    Raises OSError where the process, and not the file, is why a segment cannot be read now.
    """
    names = sorted(path.name for path in folder.path.glob(f"*{SEGMENT}"))
    store = Store(folder, SpoolIndex(b""))
    last = None
    for name in names:
        try:
            data = folder.read(name)
            header = read_header(data)
            if name != segment_name(header.first):
                raise SegmentDamaged(f"its first record has the number {header.first}")
            if last is not None and header.spool_id != store.index.spool_id:
                raise SegmentDamaged("it belongs to another spool")
        except SegmentDamaged as fault:
            if name == names[-1] and _is_unwritten(folder, name):
                store.torn += 1
                continue
            store.faults.append(f"{name}: {fault}")
            store.no_segments.append(name)
            continue
        except (
            FileNotFoundError
        ):  # its publisher has sent it; the numbers tell of one that is missing
            continue
        except OSError as fault:
            if fault.errno in PASSING:
                raise
            # What is left would be passed over by a cursor that the segments behind it have moved on.
            store.faults.append(f"{name}: {fault.strerror}")
            store.no_segments.append(name)
            continue
        if last is None:
            store.index = SpoolIndex(header.spool_id, _cursor_of(folder, header.spool_id, store))
            last = store.index.deleted
        if header.after > last:
            store.faults.append(
                f"{name}: records {last + 1} to {header.after} before it are missing"
            )
        last = _load_segment(store, name, data, header.first, is_last=name == names[-1])
    return store


def _is_unwritten(folder: SpoolFolder, name: str) -> bool:
    """Return whether a segment was made, and its first group of records never safely written."""
    if (folder.path / name).stat().st_size < HEADER_BYTES:
        return True
    with contextlib.suppress(SegmentDamaged):
        return not any(folder.read(name))
    return False


def _cursor_of(folder: SpoolFolder, spool_id: bytes, store: Store) -> Cursor | None:
    try:
        return read_cursor(folder.read(CURSOR), spool_id)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        store.faults.append(f"{CURSOR}: {fault}; what was sent already may be sent again")
        return None


def _load_segment(store: Store, name: str, data: bytes, first: int, *, is_last: bool) -> int:
    """Count the records of a segment. Returns the number of its last one."""
    segment = Segment(name, first, end=len(data), is_closed=True)
    store.index.segments.append(segment)
    last = first - 1
    for found in scan(data, store.index.spool_id, at=HEADER_BYTES, expected=first):
        if isinstance(found, Hole):
            if found.torn and is_last:
                store.torn += found.size
            else:
                store.holes.append((name, found, data[found.at : found.at + found.size]))
            continue
        store.index.load_record(segment, found.number, lane_of(found.place), found.ms)
        last = found.number
    return last


def adopt(root: Path, bus: str, logged: set[Path]) -> tuple[list[Store], int]:
    """Lock and load what processes that ended have left, oldest first. Puts aside what is damaged.

    A file that is no segment is renamed; damaged parts of a segment are copied into files of their own.
    What is for another bus stays, and is logged once. logged: the sub-folders for which that was done.
    Returns the stores with messages, and the number of damaged places in all.
    """
    stores, damaged = [], 0
    for folder in _free_folders(root):
        try:
            if folder.bus not in ("", bus):
                _leave(folder, bus, logged)
                continue
            store = load(folder)
            put_aside(store)
        except OSError as fault:
            log.error("spool unreadable folder=%s reason=%r", folder.path, fault.strerror)
            folder.close()
            damaged += 1
            continue
        damaged += len(store.faults) + len(store.holes)
        if store.index.messages:
            stores.append(store)
        else:
            _clear(store)
    return stores, damaged


def _leave(folder: SpoolFolder, bus: str, logged: set[Path]) -> None:
    """Leave a sub-folder to the publishers of its bus."""
    if folder.path not in logged:
        logged.add(folder.path)
        log.warning(
            "spool of another bus stays folder=%s its=%r ours=%r: a publisher of that bus sends it",
            folder.path,
            folder.bus,
            bus,
        )
    folder.close()


def _clear(store: Store) -> None:
    """Delete a sub-folder of which everything is confirmed, but nothing that is damaged."""
    with contextlib.suppress(OSError):
        for segment in store.index.segments:
            (store.folder.path / segment.name).unlink(missing_ok=True)
        for path in store.folder.path.glob(f"*{SEGMENT}"):
            if path.stat().st_size <= HEADER_BYTES:  # made, and nothing written
                path.unlink()
    store.folder.close(remove=True)


def _free_folders(root: Path) -> Iterator[SpoolFolder]:
    for path in sub_folders(root):
        try:
            folder = SpoolFolder.lock(path)
        except OSError as fault:
            log.error("spool unreadable folder=%s reason=%r", path, fault.strerror)
            continue
        if folder is not None:
            yield folder


def put_aside(store: Store) -> None:
    """Keep what is damaged in files of its own, and tell it."""
    path = store.folder.path
    for fault in store.faults:
        log.error("spool damaged folder=%s reason=%r", path, fault)
    for name in store.no_segments:
        (path / name).rename(path / f"{name}{DAMAGED}")
    for name, hole, raw in store.holes:
        until = "the end" if hole.until is None else f"{hole.until - 1}"
        log.error(
            "spool damaged folder=%s reason=%r",
            path,
            f"{name}: {hole.size} bytes at {hole.at}, records {hole.first} to {until}",
        )
        if raw:
            with open(path / f"{name}{HOLE}-{hole.at}", "wb", opener=owner_only) as file:
                file.write(raw)
    if store.torn:
        log.warning("spool has a torn end folder=%s bytes=%d", path, store.torn)


def cursor_bytes(index: SpoolIndex) -> bytes:
    """Return the cursor of this index as it is written."""
    return write_cursor(index.spool_id, index.cursor)
