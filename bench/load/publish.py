"""A process that publishes records at a pace and records the outcome of each publish.

Open loop: the pacer gives the intended times, independent of the answers. Publishes are pipelined; an
outcome is noted on the library's thread (one append) and written by the main thread.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.load.control import Progress, RateFile, write_progress
from bench.load.pacer import Pacer
from bench.load.records import key_of
from messagebus.errors import BacklogFull
from messagebus.message import Header, Message
from messagebus.recording.events import body_hash
from messagebus.recording.files import Entry, EventFile, PublishedFile
from messagebus.stats import Outcome, Published

__all__ = ["PublishLoad", "RunningPublisher"]

# How often control files are read and outcomes written; how often progress is shown.
TICK_NS = 100_000_000
PROGRESS_NS = 400_000_000
# The longest sleep, so that a changed rate or a signal is noticed.
NAP_NS = 50_000_000
# The wait for open publishes at the end: a broker that died may need a redial and the list.
FLUSH_S = 60.0
FLUSH_SLICE_S = 0.5


class RunningPublisher(Protocol):
    """The part of `messagebus.Publisher` that is used."""

    def submit(self, destination: str, payload: Message) -> Future[Published]: ...

    def flush(self, timeout_s: float) -> int: ...

    def stop(self) -> int: ...


class PublishLoad:
    """A load that publishes records of one topic to their end, or until `stop` (from a signal handler)."""

    def __init__(
        self,
        publisher: RunningPublisher,
        *,
        folder: Path,
        name: str,
        topic: str,
        rate: RateFile,
        recorder: EventFile,
        rows: PublishedFile,
        rate_per_s: float = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._publisher = publisher
        self._folder = folder
        self._topic = topic
        self._rate = rate
        self._recorder = recorder
        self._rows = rows
        self._clock_ns = clock_ns
        self._sleep_s = sleep_s
        self._pacer = Pacer(rate_per_s, start_ns=clock_ns())
        self._settled: deque[tuple[Entry, Future[Published]]] = deque()
        self._submitted = 0
        self._next_tick_ns = 0
        self._next_progress_ns = 0
        self._parent = os.getppid()
        self._stopping = False
        self.progress = Progress(name)

    def stop(self) -> None:
        """Submit no more; open publishes are still waited for."""
        self._stopping = True

    @property
    def open(self) -> int:
        """The publishes without a known end."""
        return self._submitted - self.progress.done - self.progress.bad

    def run(self, records: Iterable[bytes]) -> Progress:
        """Publish, then stop the publisher, so that every publish has its outcome. Returns counts.

        Raises RecordingFailed when events cannot be written.
        """
        self._show("running")
        for sequence, record in enumerate(records):
            entry, message = self._prepare(sequence, record)
            if not self._wait_turn() or not self._submit(entry, message):
                break
        self._show("stopping")
        self._flush()
        self._publisher.stop()
        self._write_settled()
        self._recorder.close()
        self._show("ended")
        return self.progress

    def _prepare(self, sequence: int, record: bytes) -> tuple[Entry, Message]:
        key = key_of(record)
        headers: dict[str, Header] = {"publisher": self.progress.name, "sequence": sequence}
        entry = Entry(sequence, key, len(record), body_hash(record), intended_ns=0)
        return entry, Message(body=record, key=key, headers=headers)

    def _wait_turn(self) -> bool:
        """Sleep until the next message is intended. Returns False when stop was called."""
        while not self._stopping:
            now_ns = self._clock_ns()
            if now_ns >= self._next_tick_ns:
                self._tick(now_ns)
            early_ns = self._pacer.next_ns() - now_ns
            if early_ns <= 0:
                return True
            self._sleep_s(min(early_ns, NAP_NS) / 1e9)
        return False

    def _submit(self, entry: Entry, message: Message) -> bool:
        """Submit one due message. Returns False when stop was called before there was room."""
        entry = entry._replace(intended_ns=self._pacer.take())
        while not self._stopping:
            try:
                future = self._publisher.submit(self._topic, message)
            except BacklogFull:
                self._tick(self._clock_ns())
                continue
            self._submitted += 1
            future.add_done_callback(partial(self._note, entry))
            return True
        return False

    def _note(self, entry: Entry, future: Future[Published]) -> None:
        """Note an outcome. It runs on the library's thread and must do as little as possible."""
        self._settled.append((entry, future))

    def _tick(self, now_ns: int) -> None:
        self._next_tick_ns = now_ns + TICK_NS
        if (rate := self._rate.changed()) is not None:
            self._pacer.change(rate, now_ns=now_ns)
        if os.getppid() != self._parent:
            # The coordinator died: nothing else would ever stop this process.
            self._stopping = True
        self._write_settled()
        self._recorder.tick()
        if now_ns >= self._next_progress_ns:
            self._next_progress_ns = now_ns + PROGRESS_NS
            self._show(self.progress.state)

    def _write_settled(self) -> None:
        settled, progress, add_row = self._settled, self.progress, self._rows.add
        while settled:
            entry, future = settled.popleft()
            published = future.result()
            add_row(entry, published)
            if published.outcome is Outcome.CONFIRMED:
                progress.count(published.broker)
                progress.latency_ms = (published.settled_ns - entry.intended_ns) / 1e6
            else:
                progress.bad += 1

    def _flush(self) -> None:
        """Wait for open publishes, in slices, so that progress is shown meanwhile."""
        until_ns = self._clock_ns() + int(FLUSH_S * 1e9)
        while self._publisher.flush(timeout_s=FLUSH_SLICE_S) and self._clock_ns() < until_ns:
            self._tick(self._clock_ns())

    def _show(self, state: str) -> None:
        self.progress.state = state
        self.progress.held = self.open
        write_progress(self._folder, self.progress)
