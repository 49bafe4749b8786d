"""Kafka's own ProducerPerformance, in Java: an outside reference with a load of its own, publishing alone.

It sends at a rate, bounded by its memory and not by a window. Its latencies count from the sending.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from bench.clients.jvm import kafka_nodes
from bench.clients.jvm.kafka_nodes import SERVERS, Kafka, durability
from bench.clients.jvm.maven import KAFKA
from bench.clients.jvm.processes import run_tool
from bench.errors import BenchError, InputInvalid
from bench.harness.interface import Outside, Running
from bench.load.profile import Profile, places
from bench.load.schedule import Constant

__all__ = ["durability", "measure", "options", "parse", "started"]

OUTPUT = "producer-performance.txt"
MAIN = "org.apache.kafka.tools.ProducerPerformance"
MORE_S = 60.0
LACKS = (
    "fates: lost, doubled, altered or late messages",
    "latency from intended times: it times from the sending",
    "a warm-up: its figures are of its whole run, with the first seconds of its JVM",
    "load.window: it sends until its 32 MiB are full",
    "CPU time of the measured part alone",
)
# Its last line; the lines of each five seconds have no percentiles.
_TOTAL = re.compile(
    r"records sent, (?P<rate>[\d.]+) records/sec .*? (?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, "
    r"(?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99.9th"
)


def started(
    profile: Profile, network: str, say: Callable[[str], None]
) -> AbstractContextManager[Kafka]:
    """Start Kafka for it. Raises InputInvalid for a load that it cannot make."""
    if (profile.load.publishers, profile.load.consumers) != (1, 0):
        raise InputInvalid("kafka-java: load.publishers = 1 and load.consumers = 0 wanted")
    return kafka_nodes.started(profile, network, say)


def measure(profile: Profile, running: Running, folder: Path) -> Outside:
    """Run the tool and return its numbers. Raises BenchError."""
    argv = ["-cp", KAFKA.classpath, MAIN, *options(profile, running.env()[SERVERS])]
    time_s = profile.time.warm_up_s + profile.time.measured_s
    rate, percentiles = parse(run_tool(argv, folder / OUTPUT, time_s + MORE_S))
    return Outside(
        confirmed_per_s=rate,
        percentiles_ms={"service": percentiles},
        argv=["java", *argv],
        lacks=LACKS,
    )


def options(profile: Profile, servers: str) -> list[str]:
    """Return the options of its command line, for an existing topic."""
    schedule, time = profile.load.schedule, profile.time
    assert isinstance(schedule, Constant)
    ((topic, _),) = places(profile)[:1]
    rate = max(1, round(schedule.rate_per_s))
    return [
        *("--topic", topic, "--record-size", str(profile.messages.size)),
        *("--throughput", str(rate)),
        *("--num-records", str(round(rate * (time.warm_up_s + time.measured_s)))),
        *("--producer-props", f"bootstrap.servers={servers}", "acks=all"),
    ]


def parse(text: str) -> tuple[float, dict[str, float]]:
    """Return records a second, and percentile -> ms, from its last line. Raises BenchError."""
    found = _TOTAL.search(text)
    if not found:
        raise BenchError("ProducerPerformance said no total")
    names = {"p50": "p50", "p95": "p95", "p99": "p99", "p99.9": "p999"}
    return float(found["rate"]), {name: float(found[each]) for name, each in names.items()}
