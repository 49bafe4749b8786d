"""A short run on each other system, fetched at first; where that is impossible, CI fails.

Its JVMs start fast and compile little: what is shown is that a run is measured, not how fast it is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from bench.analysis.result import gather, percentiles
from bench.clients import artemis, kafka
from bench.clients.packages import PACKAGES
from bench.clients.rabbitmq import Standalone
from bench.commands import of_any_load
from bench.errors import BenchError
from bench.harness.coordinator import conduct
from bench.harness.interface import started
from bench.load.profile import Profile, places
from messagebus import Topic
from messagebus.destination import Subscription
from ops.local.cluster import LocalCluster
from tests.support.faults import purge_queue

NETWORK = f"127.{1 + os.getpid() % 250}.90"
RATE_PER_S = 100


@pytest.fixture(autouse=True)
def fast_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xmx512m"
    monkeypatch.setenv("JDK_JAVA_OPTIONS", options)
    for module in (artemis, kafka):
        monkeypatch.setattr(module, "JVM", ("-Djava.net.preferIPv4Stack=true",))


def profile(system: str, kind: str = "poisson", measured_s: float = 1) -> Profile:
    return Profile.from_values(
        {
            "name": system,
            "system": {"name": system, "brokers": 1},
            "load": {"schedule": {"kind": kind, "rate_per_s": RATE_PER_S}, "window": 50},
            "time": {"warm_up_s": 1, "measured_s": measured_s, "drain_s": 60},
        },
        "test",
    )


@pytest.mark.parametrize("system", ["kafka", "artemis", "nats", "redis-streams"])
def test_every_message_of_a_run_has_its_fate_and_nothing_of_the_system_stays(
    system: str, tmp_path: Path
) -> None:
    if system in PACKAGES:
        fetch(system)
    before_s, wanted = time.time(), profile(system)
    with started(wanted, NETWORK, print) as running:
        running.declare(wanted)
        conduct(wanted, tmp_path / "run", running, print)
        probes = running.probes()
    result = gather(tmp_path / "run")
    fates = result.fates
    assert fates is not None
    assert fates.published == fates.confirmed == fates.delivered > RATE_PER_S
    assert (fates.lost, fates.altered, fates.orphan) == (0, 0, 0)
    assert result.per_s > 0
    for measure in ("confirm", "service", "delivery"):
        assert percentiles(result.bins(measure))["p50"] > 0
    assert "fsynced by one broker" in result.about["durability"]
    assert result.about["system"]["nodes"].startswith("1 ")
    assert set(result.brokers) == {probe.broker for probe in probes}
    assert not [probe for probe in probes if _runs(probe.pid, before_s)]


def test_a_load_of_its_own_says_its_rates_and_what_it_does_not_measure(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    fetch("perf-test")
    wanted = profile("perf-test", kind="constant", measured_s=2)
    result = of_any_load(wanted, tmp_path / "run", Standalone(cluster, direct=True))
    assert result["complete"]
    assert result["confirmed_per_s"] > RATE_PER_S / 10
    assert result["delivered_per_s"] > RATE_PER_S / 10
    assert result["percentiles_ms"]["service"]["p50"] > 0
    assert result["lacks"]
    assert "fsynced" in result["durability"]
    # PerfTest leaves what was under way at its end, and others' runs go through this queue.
    ((topic, subscription),) = places(wanted)
    purge_queue(cluster, cluster.names[0], Subscription(Topic(topic), subscription).amqp_queue)


def fetch(name: str) -> None:
    try:
        PACKAGES[name].fetch()
    except BenchError as fault:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(fault))


def _runs(pid: int, since_s: float) -> bool:
    try:
        return psutil.Process(pid).create_time() >= since_s - 1
    except psutil.NoSuchProcess:
        return False
