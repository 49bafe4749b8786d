"""The memory of clients: ten million messages through one consumer; publishers and consumers at work.

client.stream: publishers run one after the other, a process for each portion, and stay ahead of the consumer
by a portion or so, so that the broker's queue does not grow either. way.memory: ten publishers and ten
consumers for a minute, and one of each at rest.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.figures.client.mesh import MB, rest_figures, rss_bytes_of
from bench.figures.form import Figure, Maker, below
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.figures.turns import DIRECT, direct_task, purge, queue_of, take_turn
from bench.harness.loop import best_loop
from bench.harness.sampling import MEMORY_UNIT, Probe, Sample, Sampler
from bench.harness.turn import Turn
from bench.harness.workers import at_work
from bench.processes import Answering, wait_until

GOAL_GROWTH_MB = 5.0


def growth_mb(rss_bytes: Sequence[float], settled_after: int) -> float:
    """Return the largest distance of a later sample from the settled one; one sample a second."""
    settled = rss_bytes[settled_after]
    return max(abs(value - settled) for value in rss_bytes[settled_after:]) / MB


STREAMED = "client.stream"
MESSAGES, PORTION = 10_000_000, 500_000
BATCH, STREAM_BODY_BYTES = 50, 200
BATCHES_OPEN, WINDOW = 50, 10_000
# The part of the time after which its buffers have their final size.
SETTLED_PART = 0.1
TAKEN_WITHIN_S = 600.0


def stream_figures(scene: Scene) -> Iterator[Figure]:
    task = replace(direct_task(scene), body_bytes=STREAM_BODY_BYTES, batch=BATCH, loop=best_loop())
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
    with Answering(argv, env, TAKEN_WITHIN_S) as process:
        sampler = Sampler([Probe("consumer", process.pid, counts)], time.monotonic_ns())
        sampler.start()
        try:
            for published in range(0, total, portion):
                take_turn("portion", replace(publishing, messages=min(portion, total - published)))
                wait_until(
                    lambda: sampler.waiting() <= portion // BATCH,
                    within_s=TAKEN_WITHIN_S,
                    what=lambda: f"{sampler.waiting():,} batches wait in the queue",
                )
                scene.say(f"{published + portion:,} of {total:,} published")
            turn = Turn(**process.answer())
        finally:
            samples, _ = sampler.stop()
    yield from figures_of(samples, turn, repeat_command(STREAMED))


def figures_of(samples: Sequence[Sample], turn: Turn, repeat: str) -> Iterator[Figure]:
    make, what = (
        Maker(STREAMED, repeat),
        f"{turn.messages:,} messages through one consumer process:",
    )
    rss_bytes = [each.memory_mib * MEMORY_UNIT for each in samples]
    settled_s = samples[0].at_s + (samples[-1].at_s - samples[0].at_s) * SETTLED_PART
    settled_after = sum(each.at_s < settled_s for each in samples)
    said = f"{what} largest change of its memory after the first {SETTLED_PART:.0%}"
    yield make(
        "growth_mb", said, growth_mb(rss_bytes, settled_after), "MB", (below, GOAL_GROWTH_MB)
    )
    yield make("memory_mb", f"{what} its memory at the end", rss_bytes[-1] / MB, "MB")
    ahead = (
        f"published and received at the same time, {STREAM_BODY_BYTES} bytes, {BATCH} in a batch"
    )
    yield make("rate", f"{what} {ahead}", turn.rate_per_s, "messages/s")
    yield make("cpu_us", f"{what} its CPU time per message, its start included", turn.cpu_us, "us")


STREAM = Group(STREAMED, 1, DIRECT, stream_figures)

WORKED = "way.memory"
TOPIC, SUBSCRIPTION = "memory", "sink"
CLIENTS = 10
LASTS_S = 60
SETTLED_AFTER_S = 10
# The rate of all publishers together: busy, but within two cores for 20 processes and 3 brokers.
RATE_PER_S = 500.0
BODY_BYTES = 1024


def memory_figures(scene: Scene) -> Iterator[Figure]:
    make, samples = Maker(WORKED, repeat_command(WORKED)), _sample(scene)
    for kind in ("publisher", "consumer"):
        series = [values for name, values in samples.items() if name.startswith(kind)]
        growth = max(growth_mb(values, SETTLED_AFTER_S) for values in series)
        what = (
            f"Largest change of a {kind}'s memory from second {SETTLED_AFTER_S} to {LASTS_S}, "
            f"{CLIENTS} publishers and {CLIENTS} consumers at work"
        )
        yield make(f"{kind}_growth_mb", what, growth, "MB", (below, GOAL_GROWTH_MB))
        what = f"Memory of the largest {kind} process at work (the harness included)"
        yield make(f"{kind}_mb", what, max(map(max, series)) / MB, "MB")
    for kind in ("publisher", "consumer"):
        yield from rest_figures(scene.cluster, kind, TOPIC, SUBSCRIPTION)


def _sample(scene: Scene) -> dict[str, list[int]]:
    """Return process name -> its memory at every second while all processes work."""
    load = at_work(
        scene.cluster,
        scene.folder / "load",
        [f"{TOPIC}/{SUBSCRIPTION}"] * CLIENTS,
        publishers=CLIENTS,
        rate_per_s=RATE_PER_S,
        body_bytes=BODY_BYTES,
    )
    with load as clients:
        names = (*clients.publishers, *clients.consumers)
        samples: dict[str, list[int]] = {name: [] for name in names}
        began_s = time.monotonic()
        for second in range(LASTS_S + 1):
            time.sleep(max(0.0, began_s + second - time.monotonic()))
            clients.check()
            for name, values in samples.items():
                values.append(rss_bytes_of(clients.pid(name)))
            if second % 20 == 0:
                largest = max(values[-1] for values in samples.values())
                scene.say(f"{second} s: the largest client has {largest / MB:.1f} MB")
        clients.finish()
    return samples


AT_WORK = Group(WORKED, 3, BEHIND_HAPROXY, memory_figures)
