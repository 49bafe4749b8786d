"""The costs of a client: memory of publishers and consumers at work, memory and CPU of one at rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.form import Figure, below
from bench.harness.workers import at_work, open_ended
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster

__all__ = ["growth_mb", "memory_figures", "rss_bytes_of"]

TOPIC, SUBSCRIPTION = "memory", "sink"
CLIENTS = 10
LASTS_S = 60
SETTLED_AFTER_S = 10
# The rate of all publishers together: busy, but within two cores for 20 processes and 3 brokers.
RATE_PER_S = 500.0
BODY_BYTES = 1024
GOAL_GROWTH_MB = 5.0
REST_S = 10.0
REST_WITHIN_S = 90.0
GOAL_REST_MB = 60.0
GOAL_REST_CPU_PERCENT = 1.0
MB = 1e6
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
        yield from _rest_figures(cluster, kind, say)


def growth_mb(rss_bytes: Sequence[int], settled_after: int) -> float:
    """Return the largest distance of a sample from the settled one; one sample a second."""
    settled = rss_bytes[settled_after]
    return max(abs(value - settled) for value in rss_bytes[settled_after:]) / MB


def rss_bytes_of(pid: int) -> int:
    """Return the resident memory of another process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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


def _rest_figures(cluster: LocalCluster, kind: str, say: Callable[[str], None]) -> Iterator[Figure]:
    argv = [sys.executable, "-m", "bench.figures.rest", kind, TOPIC, SUBSCRIPTION, str(REST_S)]
    env = {key: text for key, text in os.environ.items() if not key.startswith("MESSAGEBUS_")}
    done = subprocess.run(
        argv,
        env=env | cluster.client_env(),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=REST_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"{kind} at rest: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout)
    say(f"{kind} at rest: {found}")
    memory_mb, cpu_percent = found["rss_bytes"] / MB, found["cpu_s"] / REST_S * 100
    yield Figure(
        id=f"way.rest.{kind}_mb",
        what=f"Memory of a {kind} at rest, the interpreter included",
        value=memory_mb,
        unit="MB",
        repeat=REPEAT,
        **below(GOAL_REST_MB, memory_mb, "MB"),
    )
    yield Figure(
        id=f"way.rest.{kind}_cpu_percent",
        what=f"CPU of a {kind} at rest, of one core",
        value=cpu_percent,
        unit="%",
        repeat=REPEAT,
        **below(GOAL_REST_CPU_PERCENT, cpu_percent, "%"),
    )
