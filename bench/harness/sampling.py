"""Samples of brokers and machine during the measurement: CPU, memory, disk, waiting messages.

The coordinator takes them from outside, once a second: processes by their numbers in /proc, queues by the
management API. A broker that does not answer has a row without counts, never a zero. The machine as a whole
has a row of its own each time. CPU used neither by brokers nor by load processes is the rest: balancer,
agents, kernel, and other processes. Cores that a hypervisor gave to others are counted separately.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.errors import InputInvalid
from messagebus.errors import reason_of
from messagebus.terminal import plural


def between(points: Sequence[tuple[float, float]], begin: float, end: float) -> float | None:
    """Return the growth from begin to end; None if it is not known.

    points: time and count, in order of time.
    """
    if not points or points[0][0] > begin or points[-1][0] < end:
        return None
    times, values = zip(*points, strict=True)
    return float(np.interp(end, times, values)) - float(np.interp(begin, times, values))


@dataclass(frozen=True, slots=True)
class Busy:
    """A sample of the machine. at_s: since the load began.

    busy_s, stolen_s: sums over all cores, so far. load: average of a minute.
    """

    at_s: float
    busy_s: float
    stolen_s: float
    load: float


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of the machine in cores, on average. rest: neither brokers nor load processes.

    clients: load processes here; None where they are on other hosts.
    """

    cores: int
    busy: float
    brokers: float
    clients: float | None
    stolen: float
    load_max: float

    @property
    def rest(self) -> float:
        return max(0.0, self.busy - self.brokers - (self.clients or 0.0))

    @property
    def others(self) -> str:
        """The cores that neither brokers nor load processes used, in words."""
        return f"other processes used {self.rest:.2f} of {plural(self.cores, 'core')}"

    def __str__(self) -> str:
        load = "on other hosts" if self.clients is None else f"{self.clients:.2f}"
        told = (
            f"{self.busy:.2f} of {self.cores} cores busy: load {load}, brokers "
            f"{self.brokers:.2f}, all else {self.rest:.2f}"
        )
        return told + (f"; {self.stolen:.2f} given to others" if self.stolen >= 0.01 else "")


def look_at_machine(at_s: float) -> Busy:
    times = psutil.cpu_times()
    stolen_s = getattr(times, "steal", 0.0)
    busy_s = times.user + times.system + times.nice
    busy_s += getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
    return Busy(at_s, busy_s, stolen_s, os.getloadavg()[0])


def usage(
    samples: Sequence[Busy], within: range, *, cores: int, brokers: float, clients: float | None
) -> Usage | None:
    """Return the use in these seconds; None if there are too few samples. brokers, clients: as of `Usage`."""
    if not samples:
        return None
    begin_s, end_s = max(within.start, samples[0].at_s), min(within.stop, samples[-1].at_s)
    busy_s = between([(each.at_s, each.busy_s) for each in samples], begin_s, end_s)
    stolen_s = between([(each.at_s, each.stolen_s) for each in samples], begin_s, end_s)
    if busy_s is None or stolen_s is None or end_s <= begin_s:
        return None
    return Usage(
        cores=cores,
        # The kernel counts in ticks, which may be slightly ahead of the clock.
        busy=min(float(cores), busy_s / (end_s - begin_s)),
        brokers=brokers,
        clients=clients,
        stolen=stolen_s / (end_s - begin_s),
        load_max=max(each.load for each in samples),
    )


EVERY_S = 1.0
# Shorter runs do not report CPU of brokers: their start and delayed work weigh too much.
CPU_LEAST_S = 10.0
# On a busy machine the last sample may be this much older than the end of the measured part.
LATE_S = 5.0
MEMORY_UNIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a broker. at_s: since the load began.

    cpu_s, written_bytes, syncs: of the broker's processes, so far. ready, unacked: messages in all queues,
    None where the broker did not answer. syncs: fsyncs that the broker counts itself, None where it does not.
    """

    broker: str
    at_s: float
    cpu_s: float
    memory_mib: float
    written_bytes: int
    syncs: int | None = None
    ready: int | None = None
    unacked: int | None = None


Row = TypeVar("Row", Sample, Busy)


@dataclass(frozen=True, slots=True)
class Probe:
    """The access to one broker. pid: of its process; counts: asks it for syncs, ready, unacked."""

    broker: str
    pid: int
    counts: Callable[[], Mapping[str, int]]


class Sampler:
    """A thread that samples until it is stopped, first and last at its very start and end."""

    def __init__(self, probes: Sequence[Probe], start_ns: int) -> None:
        self._samples: list[Sample] = []
        self._busy: list[Busy] = []
        self._probes = probes
        self._start_ns = start_ns
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def waiting(self) -> int:
        """Return the messages in the queues of all brokers that answered in the last round of samples."""
        last = {each.broker: (each.ready or 0) + (each.unacked or 0) for each in self._samples}
        return sum(last.values())

    def stop(self) -> tuple[list[Sample], list[Busy]]:
        """Stop sampling; return the samples of the brokers and of the machine."""
        self._over.set()
        self._thread.join(EVERY_S * 5)
        return self._samples, self._busy

    def _run(self) -> None:
        with ThreadPoolExecutor(max(1, len(self._probes))) as pool:
            self._look(pool)
            while not self._over.wait(EVERY_S):
                self._look(pool)
            self._look(pool)

    def _look(self, pool: ThreadPoolExecutor) -> None:
        at_s = (time.monotonic_ns() - self._start_ns) / 1e9
        self._busy.append(look_at_machine(at_s))
        looked = pool.map(partial(look, at_s=at_s), self._probes)
        self._samples += [sample for sample in looked if sample is not None]


def look(probe: Probe, at_s: float) -> Sample | None:
    """Take one sample; None if the process is gone."""
    try:
        process = psutil.Process(probe.pid)
        cpu = process.cpu_times()
        memory = process.memory_info().rss
        written = process.io_counters().write_bytes
    except psutil.Error:
        return None
    try:
        counts = probe.counts()
    except httpx.HTTPError:
        counts = {}
    return Sample(
        probe.broker,
        at_s,
        cpu.user + cpu.system,
        memory / MEMORY_UNIT,
        written,
        counts.get("syncs"),
        counts.get("ready"),
        counts.get("unacked"),
    )


def totals(samples: Sequence[Sample], from_s: float, to_s: float) -> dict[str, dict[str, Any]]:
    """Return broker -> cpu_s, written_bytes, syncs in that time; the largest memory_mib and ready.

    Values are interpolated between samples. memory_mib and ready_max are None without a sample in that time,
    as on a machine that gave the sampler no CPU time. Brokers whose process ended early are left out: their
    cost is not known.
    """
    names = sorted({each.broker for each in samples})
    found = {
        name: _used([each for each in samples if each.broker == name], from_s, to_s)
        for name in names
    }
    return {name: used for name, used in found.items() if used is not None}


def _used(own: Sequence[Sample], from_s: float, to_s: float) -> dict[str, Any] | None:
    begin_s, end_s = max(from_s, own[0].at_s), min(to_s, own[-1].at_s)
    if end_s <= begin_s or end_s < to_s - LATE_S:
        return None
    near = [each for each in own if begin_s - EVERY_S <= each.at_s <= end_s + EVERY_S]
    ready = [each.ready for each in near if each.ready is not None]

    def grew(what: Callable[[Sample], float | None]) -> float | None:
        points = [(each.at_s, value) for each in own if (value := what(each)) is not None]
        return between(points, begin_s, end_s)

    syncs = grew(lambda each: each.syncs)
    return {
        "seconds": end_s - begin_s,
        "cpu_s": grew(lambda each: each.cpu_s),
        "written_bytes": round(grew(lambda each: each.written_bytes) or 0),
        "syncs": None if syncs is None else round(syncs),
        "memory_mib": max((each.memory_mib for each in near), default=None),
        "ready_max": max(ready, default=None),
    }


def save(path: Path, rows: Sequence[Sample] | Sequence[Busy]) -> None:
    """Write a row per sample."""
    pq.write_table(pa.Table.from_pylist([asdict(each) for each in rows]), path)


def load(path: Path, kind: type[Row]) -> list[Row]:
    """Read samples; empty without a file. Raises InputInvalid for a spoilt one."""
    if not path.exists():
        return []
    try:
        return [kind(**row) for row in pq.read_table(path).to_pylist()]
    except (OSError, TypeError, pa.ArrowException) as fault:
        raise InputInvalid(f"{path.name}: not readable: {reason_of(fault)}") from fault
