"""Clients at work, a fault every few seconds, and an audit.

Faults are drawn from a seed, so that a failed run can be repeated: the same faults at the same brokers, as
far as the machine's timing allows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench.audit import Audit
from bench.faults import FAULTS, Fault
from bench.harness.workers import Workers, at_work, read_progress
from messagebus.recording.manifest import Incident, Manifest
from ops.local.cluster import LocalCluster
from tests.support.trials.outer_faults import OUTER_FAULTS
from tests.support.trials.strange_faults import STRANGE_FAULTS

ALL_FAULTS = FAULTS | OUTER_FAULTS | STRANGE_FAULTS
TOPIC = "soak"
PLACES = [f"{TOPIC}/{name}" for name in ("billing", "audit")]
PUBLISHERS, READERS = 4, 2
BODY_BYTES = 512
# The rate of all publishers together: two cores also run three brokers and eight clients.
RATE_PER_S = 400.0
WHOLE_WITHIN_S = 300.0
CUT_STEP_NS = 500_000_000


def draws(
    seed: int, names: Sequence[str], faults: Iterable[str] = tuple(ALL_FAULTS)
) -> Callable[[], tuple[str, str]]:
    """Return a function that draws the next fault and its broker; the same for the same seed.

    No fault comes a second time before each has come once, so that a short run has many of them.
    """
    chance, among, waiting = random.Random(seed), sorted(faults), list[str]()

    def draw() -> tuple[str, str]:
        if not waiting:
            waiting.extend(chance.sample(among, len(among)))
        return waiting.pop(), chance.choice(sorted(names))

    return draw


class Soak:
    """One run in a folder of its own."""

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        *,
        say: Callable[[str], None],
        rate_per_s: float = RATE_PER_S,
    ) -> None:
        self._cluster, self._folder, self._say = cluster, folder, say
        self._rate_per_s = rate_per_s
        self._incidents: list[Incident] = []
        self._began_s = time.monotonic()

    def run(
        self, *, lasts_s: float, every_s: float, faults: Callable[[], tuple[str, str]]
    ) -> tuple[Manifest, Audit]:
        """Do the run. Raises BenchError when a process ends, or the cluster is not whole again in time."""
        cluster = self._cluster
        # A forged list then names a cluster or a host that no client accepts.
        env = {
            "MESSAGEBUS_CLUSTER": cluster.layout.cluster,
            "MESSAGEBUS_BROKER_HOSTS_ALLOWED": "127.*",
        }
        load = at_work(
            cluster,
            self._folder,
            PLACES * READERS,
            publishers=PUBLISHERS,
            rate_per_s=self._rate_per_s,
            body_bytes=BODY_BYTES,
            env=env,
        )
        with load as clients:
            self._began_s = time.monotonic()
            next_s = every_s
            while next_s < lasts_s:
                self._wait_until(next_s)
                name, target = faults()
                self._do(ALL_FAULTS[name](cluster, target), clients)
                clients.check()
                next_s = max(next_s, self._at_s // every_s * every_s) + every_s
            self._wait_until(lasts_s)
            self._say(f"{self._at_s:6.1f} s the end: what is open is waited for")
            clients.finish()
        manifest, _, result = clients.judged(cluster.brokers, self._incidents)
        return manifest, result

    def _do(self, fault: Fault, clients: Workers) -> None:
        """Begin the fault, let it last, end it, and wait until every broker takes publishes again."""
        at_s, began_ns = self._at_s, time.monotonic_ns()
        fault.begin()
        begun_ns = time.monotonic_ns()
        time.sleep(fault.lasts_s)
        fault.end()
        self._cluster.wait_ready(within_s=WHOLE_WITHIN_S)
        if fault.cuts:
            broker, done_ns = self._cluster.node(fault.target).broker, time.monotonic_ns()
            # Links of one broker may end one after the other, while the fault begins.
            for cut_ns in (*range(began_ns, begun_ns, CUT_STEP_NS), begun_ns):
                self._incidents.append(Incident(fault.cuts, broker, cut_ns, done_ns))
        progress = read_progress(self._folder)
        done = sum(sum(progress[name].brokers.values()) for name in clients.publishers)
        took_s = self._at_s - at_s
        self._say(f"{at_s:6.1f} s {fault}: whole again after {took_s:.1f} s, {done:,} confirmed")

    @property
    def _at_s(self) -> float:
        return time.monotonic() - self._began_s

    def _wait_until(self, at_s: float) -> None:
        time.sleep(max(0.0, at_s - self._at_s))
