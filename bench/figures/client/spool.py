"""The disk spool of a publisher: messages taken per second without a broker, and sent when there is one.

Brokers are in memory, so that the figures are the publisher's own and the disk's: the spool lies in the
folder of the run.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.scene import Scene, repeat_command
from messagebus import Outcome, Publisher, Spool
from messagebus.testing import MemoryBus

GROUP = "once.spool"
BODY = b"x" * 1024
MESSAGES, THREADS = 40_000, 64
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class _Turn:
    """One repetition: rates per second, and bytes on the disk beside each body."""

    publish: float
    accept: float
    replay: float
    more_bytes: float


def spool_figures(scene: Scene) -> Iterator[Figure]:
    """Measure what the spool takes and sends per second, and its bytes."""
    turns = [_turn() for _ in range(scene.repeat)]
    make = Maker("once", repeat_command(GROUP, scene.repeat))
    yield make(
        "spool_accept",
        f"Spooled without a broker: send_safe in {THREADS} threads, 1 KB, one fdatasync for many",
        [turn.accept for turn in turns],
        "/s",
        (at_least, 10_000.0),
    )
    yield make(
        "spool_replay",
        "Sent from the spool and confirmed, 1 KB, to a broker in memory",
        [turn.replay for turn in turns],
        "/s",
    )
    yield make(
        "spool_replay_ratio",
        "The same, as a share of what send_many of that publisher publishes without the spool",
        [turn.replay / turn.publish for turn in turns],
        "",
        (at_least, 0.5),
    )
    yield make(
        "spool_bytes",
        "Bytes of the spool for each message beside its body",
        [turn.more_bytes for turn in turns],
        "B",
        (at_most, 120.0),
    )


def _turn() -> _Turn:
    folder = Path(tempfile.mkdtemp(prefix="messagebus-spool-"))
    bus = MemoryBus()
    bus.declare("orders/billing")
    try:
        with bus.publisher(spool=Spool(folder)) as publisher:
            publisher.flush()
            began = time.perf_counter()
            publisher.send_many("orders", [BODY] * MESSAGES)
            publish = MESSAGES / (time.perf_counter() - began)
            bus.stop_brokers()
            while publisher.send_safe("orders", BODY).outcome is not Outcome.SPOOLED:
                pass
            accept = _accepted_per_s(publisher)
            stats = publisher.stats()
            more_bytes = stats.spool_bytes / stats.spool_messages - len(BODY)
            bus.start_brokers()
            replay = _replayed_per_s(publisher)
    finally:
        shutil.rmtree(folder)
    return _Turn(publish, accept, replay, more_bytes)


def _accepted_per_s(publisher: Publisher) -> float:
    def send() -> None:
        for _ in range(MESSAGES // THREADS):
            publisher.send_safe("orders", BODY)

    threads = [threading.Thread(target=send) for _ in range(THREADS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return MESSAGES // THREADS * THREADS / (time.perf_counter() - began)


def _replayed_per_s(publisher: Publisher) -> float:
    """Measure from the first confirm on: the dial is another figure."""
    while not (first := publisher.stats().replayed):
        time.sleep(POLL_S)
    began = time.perf_counter()
    while publisher.stats().spool_messages:
        time.sleep(POLL_S)
    return (publisher.stats().replayed - first) / (time.perf_counter() - began)
