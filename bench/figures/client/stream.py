"""Ten million messages through one consumer process: its memory must not grow.

Publishers run one after the other, a process for each portion, and stay ahead of the consumer by a portion
or so, so that the broker's queue does not grow either.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.client.mesh import MB
from bench.figures.form import Figure, below
from bench.figures.scene import Group, Scene, repeat_command
from bench.figures.turns import DIRECT, direct_task, purge, queue_of, take_turn
from bench.harness.loop import best_loop
from bench.harness.sampling import MEMORY_UNIT, Probe, Sample, Sampler
from bench.harness.turn import Turn

__all__ = ["GROUP", "figures_of", "growth_mb"]

NAME = "client.stream"
MESSAGES, PORTION = 10_000_000, 500_000
BATCH, BODY_BYTES = 50, 200
BATCHES_OPEN, WINDOW = 50, 10_000
# The part of the time after which its buffers have their final size.
SETTLED_PART = 0.1
GOAL_GROWTH_MB = 5.0
TAKEN_WITHIN_S = 600.0
POLL_S = 0.5


def stream_figures(scene: Scene) -> Iterator[Figure]:
    task = replace(direct_task(scene), body_bytes=BODY_BYTES, batch=BATCH, loop=best_loop())
    purge(scene, task)
    total, portion, name = scene.part(MESSAGES), scene.part(PORTION), scene.cluster.names[0]
    publishing = replace(task, way="send_many", window=BATCHES_OPEN, warm_up=0)

    def counts() -> Mapping[str, int]:
        with scene.cluster.management(name) as management:
            found = management.get(queue_of(task)).raise_for_status().json()
        return {"ready": int(found.get("messages", 0))}

    argv = [sys.executable, "-m", "bench.figures.client.idle", "stream", task.topic]
    argv += [task.subscription, *map(str, (total, WINDOW, BATCH))]
    env = {**os.environ, **task.env}
    with subprocess.Popen(
        argv, cwd=CHECKOUT, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        sampler = Sampler([Probe("consumer", process.pid, counts)], time.monotonic_ns())
        sampler.start()
        try:
            for published in range(0, total, portion):
                take_turn("portion", replace(publishing, messages=min(portion, total - published)))
                _taken(sampler, portion // BATCH)
                scene.say(f"{published + portion:,} of {total:,} published")
            said, _ = process.communicate(timeout=TAKEN_WITHIN_S)
        finally:
            process.kill()
            samples, _ = sampler.stop()
    if process.returncode:
        raise BenchError(f"the consumer ended with exit code {process.returncode}")
    yield from figures_of(samples, Turn.from_json(said), repeat_command(NAME))


def _taken(sampler: Sampler, batches_max: int) -> None:
    """Wait until few batches are in the queue. Raises BenchError when that takes too long."""
    until_s = time.monotonic() + TAKEN_WITHIN_S
    while sampler.waiting() > batches_max:
        if time.monotonic() > until_s:
            raise BenchError(f"{sampler.waiting():,} batches wait in the queue")
        time.sleep(POLL_S)


def figures_of(samples: Sequence[Sample], turn: Turn, repeat: str) -> Iterator[Figure]:
    growth = growth_mb(samples)
    what = f"{turn.messages:,} messages through one consumer process"
    yield Figure(
        id=f"{NAME}.growth_mb",
        what=f"{what}: largest change of its memory after the first {SETTLED_PART:.0%}",
        value=growth,
        unit="MB",
        repeat=repeat,
        **below(GOAL_GROWTH_MB, growth, "MB"),
    )
    ahead = f"published and received at the same time, {BODY_BYTES} bytes, {BATCH} in a batch"
    for id, said, value, unit in (
        ("memory_mb", "its memory at the end", samples[-1].memory_mib * MEMORY_UNIT / MB, "MB"),
        ("rate", ahead, turn.rate_per_s, "messages/s"),
        ("cpu_us", "its CPU time per message, its start included", turn.cpu_us, "us"),
    ):
        yield Figure(
            id=f"{NAME}.{id}", what=f"{what}: {said}", value=value, unit=unit, repeat=repeat
        )


def growth_mb(samples: Sequence[Sample]) -> float:
    """Return the largest distance of a later sample from the first settled one."""
    settled_s = samples[0].at_s + (samples[-1].at_s - samples[0].at_s) * SETTLED_PART
    later = [each.memory_mib for each in samples if each.at_s >= settled_s]
    return max(abs(each - later[0]) for each in later) * MEMORY_UNIT / MB


GROUP = Group(NAME, 1, DIRECT, stream_figures)
