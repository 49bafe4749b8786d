"""The consumer list as a file: noticed when it changes, served as it is, waited for.

The file is the source. A new file that is bad, of another cluster or of an older generation changes
nothing: the last good one is served on, and the fault is counted and told once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from messagebus.broker import LIST_BYTES_MAX, BrokerList
from messagebus.errors import ListInvalid

__all__ = ["LOOK_INTERVAL_S", "ListFile"]

log = logging.getLogger("messagebus.agent")

# A stat of one file; a change is served within a quarter of a second.
LOOK_INTERVAL_S = 0.2

Mark = tuple[int, int, int]


class ListFile:
    """The last good list of one file.

    current: None until a good list was read. faults: bad files seen. fault: why, "" while good.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._mark: Mark | None = None
        self._news = asyncio.Event()
        self._has_ended = False
        self.current: BrokerList | None = None
        self.text = ""
        self.faults = 0
        self.fault = "not read yet"

    @property
    def etag(self) -> str:
        """The generation; of a file without one, a digest of its text."""
        if self.current is not None and self.current.generation:
            return f'"{self.current.generation}"'
        return f'"0-{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"'

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Look every LOOK_INTERVAL_S, for ever; call on_change after each new good list."""
        while True:
            if self.look():
                on_change()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def look(self) -> bool:
        """Read the file if it is another one than before. Returns whether there is a new list."""
        try:
            stat = self._path.stat()
            mark = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if mark == self._mark:
                return False
            self._mark = mark
            return self._take(self._read())
        except (OSError, UnicodeDecodeError, ListInvalid) as fault:
            self._refuse(str(fault))
            return False

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self._news.set()
        self._news = asyncio.Event()

    def end(self) -> None:
        """End all waits, and those that are still to come."""
        self._has_ended = True
        self.wake()

    async def newer_than(self, generation: int) -> bool:
        """Wait, without a bound, until the list's generation is above this. False: `end` was called."""
        while self.current is None or self.current.generation <= generation:
            if self._has_ended:
                return False
            await self._news.wait()
        return True

    def _read(self) -> str:
        with self._path.open("rb") as file:
            return file.read(LIST_BYTES_MAX + 1).decode()

    def _take(self, text: str) -> bool:
        new, old = BrokerList.parse(text), self.current
        if old is not None and new.generation < old.generation:
            raise ListInvalid(f"generation {new.generation} is older than {old.generation}")
        if old is not None and old.cluster and new.cluster != old.cluster:
            raise ListInvalid(f"of cluster {new.cluster!r}, not {old.cluster!r}")
        if old is not None and new != old and new.generation == old.generation:
            log.warning("list changed without a new generation generation=%d", new.generation)
        self.current, self.text, self.fault = new, text, ""
        log.info("list read generation=%d brokers=%d", new.generation, len(new.listed))
        self.wake()
        return new != old

    def _refuse(self, fault: str) -> None:
        if fault == self.fault:
            return
        self.faults += 1
        self.fault = fault
        log.warning('list refused, serving the last good one file=%s fault="%s"', self._path, fault)
