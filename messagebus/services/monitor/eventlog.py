"""Events of the bus and actions of people, in SQLite; in memory where that is broken or not wanted.

Methods may be called from any thread; each takes a few milliseconds at most.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from messagebus.files import owner_only

KEPT_MS = 30 * 86_400_000
# Of all events but actions: whoever makes many of the others pushes out no record of what was done.
KEPT_MAX = 100_000
ACTION = "action"
MEMORY_MAX = 2_000
PRUNED_EVERY = 500
TEXT_CHARS_MAX = 2_000
BUSY_S = 0.5

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, about TEXT NOT NULL,
    text TEXT NOT NULL, by TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_about ON events (about, number);
"""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. kind: a word such as ``broker``, ``rule``, ``look`` or `ACTION`.

    about: the broker, subscription or client; "" for the bus. text: one line. by: who did it; "" for nobody.
    """

    at_ms: int
    kind: str
    about: str
    text: str
    by: str = ""


class EventLog:
    """All actions of the last 30 days, and other events, at most 100,000.

    path: of the database; "" for memory only.
    """

    def __init__(self, path: str = "") -> None:
        self._lock = threading.Lock()
        self._memory: deque[Event] = deque(maxlen=MEMORY_MAX)
        self._db: sqlite3.Connection | None = None
        # Of a time when nothing could be written.
        self._unwritten: deque[Event] = deque(maxlen=MEMORY_MAX)
        self._added = 0
        self.fault = ""
        """The reason why events are in memory only though a file was wanted; "" when all is well."""
        if path:
            try:
                Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # SQLite gives its journals the mode of the file.
                open(path, "ab", opener=owner_only).close()
                self._db = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
                self._db.executescript(_SCHEMA)
                self._db.execute("PRAGMA journal_mode=WAL")
            except (OSError, sqlite3.Error) as fault:
                self._broke(fault)

    @property
    def is_durable(self) -> bool:
        """True when what is added survives this process."""
        return self._db is not None and not self.fault

    def add(self, events: Iterable[Event]) -> bool:
        """Add events; False when they are not on the disk, but in memory only.

        Those of a time when the disk took nothing are written with the next that it takes; without events
        that is tried, too.
        """
        rows = [(e.at_ms, e.kind, _plain(e.about), _plain(e.text), _plain(e.by)) for e in events]
        if not (rows or self.fault):
            return self.is_durable
        with self._lock:
            new = [Event(*row) for row in rows]
            self._memory.extend(new)
            if self._db is None:
                return False
            self._unwritten.extend(new)
            rows = [(e.at_ms, e.kind, e.about, e.text, e.by) for e in self._unwritten]
            try:
                with self._db:
                    self._db.executemany(
                        "INSERT INTO events (at_ms, kind, about, text, by) VALUES (?, ?, ?, ?, ?)",
                        rows,
                    )
                    self._added += len(rows)
                    if self._added >= PRUNED_EVERY:
                        self._prune(rows[-1][0])
            except sqlite3.Error as fault:
                self._broke(fault)
                return False
            self.fault = ""
            self._unwritten.clear()
            return True

    def recent(self, count_max: int, *, kind: str = "", about: str = "") -> list[Event]:
        """Return the latest events, the newest first."""
        with self._lock:
            if self._db is not None and not self.fault:
                try:
                    return self._read(count_max, kind, about)
                except sqlite3.Error as fault:
                    self._broke(fault)
            found = [
                e for e in reversed(self._memory) if kind in ("", e.kind) and about in ("", e.about)
            ]
            return found[:count_max]

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _read(self, count_max: int, kind: str, about: str) -> list[Event]:
        assert self._db is not None
        rows = self._db.execute(
            "SELECT at_ms, kind, about, text, by FROM events"
            " WHERE (? = '' OR kind = ?) AND (? = '' OR about = ?) ORDER BY number DESC LIMIT ?",
            (kind, kind, _plain(about), _plain(about), count_max),
        )
        return [Event(*row) for row in rows]

    def _prune(self, now_ms: int) -> None:
        assert self._db is not None
        self._added = 0
        self._db.execute("DELETE FROM events WHERE at_ms < ?", (now_ms - KEPT_MS,))
        self._db.execute(
            "DELETE FROM events WHERE kind != ? AND number <= (SELECT number FROM events"
            " WHERE kind != ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (ACTION, ACTION, KEPT_MAX),
        )

    def _broke(self, fault: Exception) -> None:
        self.fault = f"events are kept in memory only: {fault}"


def _plain(text: str) -> str:
    """Return one line that SQLite takes: no lone surrogates, at most 2,000 characters."""
    return " ".join(text[:TEXT_CHARS_MAX].split()).encode("utf-8", "replace").decode()
