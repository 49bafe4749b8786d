"""A process that receives from one subscription, answers at once, and records every delivery."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bench.load.control import Progress, write_progress
from messagebus.message import Delivery
from messagebus.recording.events import body_hash
from messagebus.recording.files import DeliveredFile, EventFile
from messagebus.stats import ConsumerStats

__all__ = ["ConsumeLoad", "RunningConsumer"]

PROGRESS_NS = 400_000_000
# The precision of a link's recorded time.
LOOK_NS = 50_000_000
# The longest wait for a delivery, so that a signal is noticed and blocks are written.
RECEIVE_S = 0.1


class RunningConsumer(Protocol):
    """The part of `messagebus.Consumer` that is used."""

    def receive(self, timeout_s: float) -> Delivery | None: ...

    def ack(self, delivery: Delivery) -> bool: ...

    def stats(self) -> ConsumerStats: ...

    def stop(self) -> object: ...


class ConsumeLoad:
    """A load that receives until `stop` is called (from a signal handler)."""

    def __init__(
        self,
        consumer: RunningConsumer,
        *,
        folder: Path,
        name: str,
        recorder: EventFile,
        rows: DeliveredFile,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._consumer = consumer
        self._folder = folder
        self._recorder = recorder
        self._rows = rows
        self._clock_ns = clock_ns
        self._next_progress_ns = self._next_look_ns = 0
        self._parent = os.getppid()
        self._stopping = False
        self.progress = Progress(name)

    def stop(self) -> None:
        """Receive no more; the delivery in hand is answered."""
        self._stopping = True

    def run(self) -> Progress:
        """Receive until stopped, then stop the consumer; return counts.

        The consumer gives back deliveries that were not handed out. A delivery is recorded after its answer
        was accepted, so a process that is killed in between has answered up to one block of deliveries that
        its file does not show.
        """
        self._show("running")
        while not self._stopping:
            delivery = self._consumer.receive(timeout_s=RECEIVE_S)
            if delivery is not None:
                self._answer(delivery)
            self._tick()
        self._show("stopping")
        self._consumer.stop()
        self._recorder.close()
        self._show("ended")
        return self.progress

    def _answer(self, delivery: Delivery) -> None:
        digest = body_hash(delivery.body)
        acked = self._consumer.ack(delivery)
        self._rows.add(delivery, digest, "acked" if acked else "stale", self._clock_ns())
        self.progress.count(delivery.broker)
        self.progress.bad += not acked

    def _tick(self) -> None:
        now_ns = self._clock_ns()
        self._recorder.tick()
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOOK_NS
            self._look(now_ns)
        if now_ns < self._next_progress_ns:
            return
        self._next_progress_ns = now_ns + PROGRESS_NS
        if os.getppid() != self._parent:
            # The coordinator died: nothing else would ever stop this process.
            self._stopping = True
        self._show(self.progress.state)

    def _look(self, now_ns: int) -> None:
        """Record the brokers with an open link; known ones keep their time."""
        brokers = self._consumer.stats().brokers
        linked = [name for name, broker in brokers.items() if broker.state == "open"]
        self.progress.attached = {name: self.progress.attached.get(name, now_ns) for name in linked}

    def _show(self, state: str) -> None:
        self.progress.state = state
        write_progress(self._folder, self.progress)
