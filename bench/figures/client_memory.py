"""The costs of a client: memory of publishers and consumers at work, memory and CPU of one at rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.figures.client.mesh import MB, rest_figures, rss_bytes_of
from bench.figures.form import Figure, below
from bench.harness.workers import at_work, open_ended
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster

__all__ = ["growth_mb", "memory_figures"]

TOPIC, SUBSCRIPTION = "memory", "sink"
CLIENTS = 10
LASTS_S = 60
SETTLED_AFTER_S = 10
# The rate of all publishers together: busy, but within two cores for 20 processes and 3 brokers.
RATE_PER_S = 500.0
BODY_BYTES = 1024
GOAL_GROWTH_MB = 5.0
REPEAT = "python -m bench figures way.memory"


def memory_figures(
    cluster: LocalCluster, folder: Path, say: Callable[[str], None]
) -> Iterator[Figure]:
    declare(BusConfig.from_env(cluster.client_env()), [f"{TOPIC}/{SUBSCRIPTION}"])
    samples = _sample(cluster, folder, say)
    for kind in ("publisher", "consumer"):
        series = [values for name, values in samples.items() if name.startswith(kind)]
        growth = max(growth_mb(values, SETTLED_AFTER_S) for values in series)
        yield Figure(
            id=f"way.memory.{kind}_growth_mb",
            what=f"Largest change of a {kind}'s memory from second {SETTLED_AFTER_S} to {LASTS_S}, "
            f"{CLIENTS} publishers and {CLIENTS} consumers at work",
            value=growth,
            unit="MB",
            repeat=REPEAT,
            **below(GOAL_GROWTH_MB, growth, "MB"),
        )
        yield Figure(
            id=f"way.memory.{kind}_mb",
            what=f"Memory of the largest {kind} process at work (the harness included)",
            value=max(max(values) for values in series) / MB,
            unit="MB",
            repeat=REPEAT,
        )
    for kind in ("publisher", "consumer"):
        yield from rest_figures(cluster, kind, TOPIC, SUBSCRIPTION)


def growth_mb(rss_bytes: Sequence[int], settled_after: int) -> float:
    """Return the largest distance of a sample from the settled one; one sample a second."""
    settled = rss_bytes[settled_after]
    return max(abs(value - settled) for value in rss_bytes[settled_after:]) / MB


def _sample(
    cluster: LocalCluster, folder: Path, say: Callable[[str], None]
) -> dict[str, list[int]]:
    """Return process name -> its memory at every second while all processes work."""
    profile = open_ended(
        TOPIC,
        [f"{TOPIC}/{SUBSCRIPTION}"] * CLIENTS,
        publishers=CLIENTS,
        rate_per_s=RATE_PER_S,
        body_bytes=BODY_BYTES,
    )
    with at_work(profile, folder, cluster.client_env()) as clients:
        samples: dict[str, list[int]] = {
            name: [] for name in (*clients.publishers, *clients.consumers)
        }
        began_s = time.monotonic()
        for second in range(LASTS_S + 1):
            time.sleep(max(0.0, began_s + second - time.monotonic()))
            clients.check()
            for name, values in samples.items():
                values.append(rss_bytes_of(clients.pid(name)))
            if second % 20 == 0:
                largest = max(values[-1] for values in samples.values())
                say(f"{second} s: the largest client has {largest / MB:.1f} MB")
        clients.finish()
    return samples
