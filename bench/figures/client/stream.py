"""Ten million messages through one consumer process: its memory must not grow.

Publishers run one after the other, a process for each portion, and stay ahead of the consumer by a portion
at most, so that the broker's queue does not grow either.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.client_memory import MB
from bench.figures.form import Figure, below
from bench.figures.scene import Case, Group, Scene, direct_task, purge, repeat_command, take_turn
from bench.harness.loop import best_loop
from bench.processes import wait_until
from bench.systems.turn import Task

__all__ = ["GROUP", "Sample", "figures_of", "growth_mb"]

NAME = "client.stream"
MESSAGES = 10_000_000
PORTION = 500_000
BATCH, BODY_BYTES = 50, 200
WINDOW = 10_000
# The part of the messages after which its buffers have their final size.
SETTLED_PART = 0.1
GOAL_GROWTH_MB = 5.0
TAKEN_WITHIN_S = 600.0
LAST_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Sample:
    received: int
    rss_bytes: int
    cpu_s: float


def stream_figures(scene: Scene) -> Iterator[Figure]:
    task = dataclasses.replace(
        direct_task(scene), body_bytes=BODY_BYTES, batch=BATCH, loop=best_loop()
    )
    purge(scene, task)
    total, portions = scene.part(MESSAGES), scene.part(PORTION)
    began_s = time.monotonic()
    consuming = dataclasses.replace(task, verb="consume", window=WINDOW, messages=total)
    with _Consumer(consuming) as consumer:
        published = 0
        while published < total:
            portion = min(portions, total - published)
            publishing = dataclasses.replace(
                task, way="send_many", window=50, messages=portion, warm_up=0
            )
            take_turn(Case("portion", "ours_async", publishing))
            published += portion
            consumer.wait(published - portions, TAKEN_WITHIN_S)
            scene.say(f"{consumer.received:,} of {total:,} received")
        consumer.wait(total, LAST_WITHIN_S)
        samples = consumer.samples
    yield from figures_of(samples, time.monotonic() - began_s, repeat_command(NAME))


def figures_of(samples: Sequence[Sample], took_s: float, repeat: str) -> Iterator[Figure]:
    total = samples[-1].received
    growth = growth_mb(samples)
    what = f"{total:,} messages through one consumer process"
    yield Figure(
        id=f"{NAME}.growth_mb",
        what=f"{what}: largest change of its memory after the first {SETTLED_PART:.0%}",
        value=growth,
        unit="MB",
        repeat=repeat,
        **below(GOAL_GROWTH_MB, growth, "MB"),
    )
    yield Figure(
        id=f"{NAME}.memory_mb",
        what=f"{what}: its memory at the end",
        value=samples[-1].rss_bytes / MB,
        unit="MB",
        repeat=repeat,
    )
    yield Figure(
        id=f"{NAME}.rate",
        what=f"{what}: published and received at the same time, {BODY_BYTES} bytes, "
        f"{BATCH} in a batch",
        value=total / took_s,
        unit="messages/s",
        repeat=repeat,
    )
    yield Figure(
        id=f"{NAME}.cpu_us",
        what=f"{what}: its CPU time per message, its start included",
        value=samples[-1].cpu_s / total * 1e6,
        unit="us",
        repeat=repeat,
    )


def growth_mb(samples: Sequence[Sample]) -> float:
    """Return the largest distance of a later sample from the first settled one."""
    whole = samples[-1].received
    settled = next(one for one in samples if one.received >= whole * SETTLED_PART)
    later = [one for one in samples if one.received >= settled.received]
    return max(abs(one.rss_bytes - settled.rss_bytes) for one in later) / MB


class _Consumer:
    """The consumer process, and the samples that it has printed so far."""

    def __init__(self, task: Task) -> None:
        self.samples: list[Sample] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.figures.client.stream_consumer", task.to_json()],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)

    @property
    def received(self) -> int:
        return self.samples[-1].received if self.samples else 0

    def wait(self, received: int, within_s: float) -> None:
        """Wait for this many messages. Raises BenchError when the process fails first, or is too slow."""

        def there() -> bool:
            if self._process.poll() and self.received < received:
                raise BenchError(f"the consumer ended with exit code {self._process.returncode}")
            return self.received >= received

        wait_until(there, within_s=within_s, what=f"{received:,} messages received")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.samples.append(Sample(**json.loads(line)))

    def __enter__(self) -> _Consumer:
        self._reading.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reading.join()


GROUP = Group(NAME, 1, "one broker directly, no HAProxy", stream_figures)
