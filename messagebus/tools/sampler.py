"""Recorder of the number of messages that wait in the brokers, beside the rows of a `Recorder`.

    with QueueSampler("runs/november", bus, ["orders/billing"], run_id="november"):
        ...

One sampler for a run is enough. Rows are those of ``sampled`` in `messagebus.recording.events`. For a broker
that does not answer there is no row.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from messagebus.admin.directory import SubscriptionCount, SubscriptionCounts, count_subscriptions
from messagebus.config import BusConfig, bus_of
from messagebus.destination import Queue, Subscription
from messagebus.errors import ConfigError, MessageBusError, NameInvalid, RecordingFailed, Stopped
from messagebus.recording.files import EventFile, anchor_now
from messagebus.recording.parts import RunPart, begin, note, process_name
from messagebus.topology import parse_wanted

__all__ = ["QueueSampler", "SamplerStats"]

log = logging.getLogger("messagebus.queuesampler")

# A depth over time needs no more, and a thousand queues take a broker 0.1 s to count.
EVERY_S = 10.0
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStats:
    """Counts of a sampler. written: rows written. missed: times that a broker, or all, did not answer."""

    written: int
    missed: int


class QueueSampler:
    """Writer of ``sampled-NAME.ndjson`` on a thread of its own.

    folder, run_id: of the run. bus: settings with list_urls, because the agents count the messages; None for
    those of the environment. names: subscriptions and queues to count, such as ``orders/billing`` and
    ``queue:jobs``. every_s: seconds between two counts. count: function that asks the agents, for tests.
    Raises NameInvalid or ConfigError.
    """

    def __init__(
        self,
        folder: Path | str,
        bus: BusConfig | None,
        names: Iterable[str],
        *,
        run_id: str,
        every_s: float = EVERY_S,
        count: Callable[[BusConfig], SubscriptionCounts] = count_subscriptions,
    ) -> None:
        self._pairs = {name: _pair(name) for name in names}
        if not self._pairs or every_s <= 0:
            raise ConfigError("QueueSampler: names: at least one; every_s: above 0")
        self._folder, self._bus, self._run_id = Path(folder), bus_of(bus), run_id
        self._every_s, self._count = every_s, count
        name = process_name("queues-")
        self._part = RunPart(
            run_id=run_id, name=name, anchor=anchor_now(name), start_ns=time.monotonic_ns()
        )
        self._written = self._missed = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write. Raises RecordingFailed if the folder cannot be written."""
        if self._thread is not None:
            raise Stopped("a sampler starts once")
        begin(self._folder, self._part)
        path = self._folder / f"sampled-{self._part.name}.ndjson"
        file = EventFile(path, self._part.anchor, clock_ns=time.monotonic_ns)
        self._thread = threading.Thread(
            target=self._run, args=(file,), name="messagebus-queuesampler", daemon=True
        )
        self._thread.start()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> SamplerStats:
        """End the thread and complete the manifest."""
        if self._thread is not None and not self._stopping.is_set():
            self._stopping.set()
            self._thread.join(timeout_s)
            self._part.end_ns = time.monotonic_ns()
            note(self._folder, self._part)
        return self.stats()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stats(self) -> SamplerStats:
        """Return a snapshot; cheap."""
        return SamplerStats(written=self._written, missed=self._missed)

    def look(self, file: EventFile) -> None:
        """Count once, and write the rows. Raises RecordingFailed."""
        try:
            found = self._count(self._bus)
        except MessageBusError as fault:
            self._miss(str(fault))
            return
        at_ns = time.monotonic_ns()
        rows = [self._row(one, at_ns) for one in found.counts if one.name in self._pairs]
        for row in rows:
            file.write(json.dumps(row))
        file.flush()
        self._written += len(rows)
        for broker, why in found.unanswered.items():
            self._miss(f"{broker}: {why}")

    def _run(self, file: EventFile) -> None:
        try:
            with file:
                self.look(file)
                while not self._stopping.wait(self._every_s):
                    self.look(file)
        except RecordingFailed as fault:
            log.warning("no more samples error=%s", fault)

    def _row(self, one: SubscriptionCount, at_ns: int) -> dict[str, str | int | None]:
        topic, subscription = self._pairs[one.name]
        return {
            "run_id": self._run_id,
            "broker": one.broker,
            "topic": topic,
            "subscription": subscription,
            "ready": one.ready,
            "unacked": one.unacked,
            "at_ns": at_ns,
        }

    def _miss(self, why: str) -> None:
        self._missed += 1
        if self._missed == 1:
            log.warning("no sample, more are counted error=%s", why)


def _pair(name: str) -> tuple[str, str]:
    """Return topic and subscription, as recorders write them."""
    wanted = parse_wanted(name)
    if isinstance(wanted, Subscription):
        return str(wanted.topic), wanted.name
    if isinstance(wanted, Queue):
        return str(wanted), wanted.name
    raise NameInvalid(f"{name}: a subscription is TOPIC/NAME, a queue is queue:NAME")
