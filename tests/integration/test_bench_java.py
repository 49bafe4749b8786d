"""A small run on each system in Java, fetched by Maven at first; where that is impossible, CI fails."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from bench.clients.java import PACKAGES
from bench.clients.rabbitmq import Standalone
from bench.commands import measured, of_any_load
from bench.errors import BenchError
from bench.harness.interface import started
from bench.load.profile import Profile, places
from messagebus import Topic
from messagebus.destination import Subscription
from ops.local.cluster import LocalCluster
from tests.support.faults import purge_queue

NETWORK = f"127.{1 + os.getpid() % 250}.90"


def profile(system: str, kind: str = "poisson") -> Profile:
    return Profile.from_values(
        {
            "name": system,
            "system": {"name": system, "brokers": 1},
            "load": {"schedule": {"kind": kind, "rate_per_s": 100}, "window": 50},
            "time": {"warm_up_s": 1, "measured_s": 2, "drain_s": 20},
        },
        "test",
    )


@pytest.mark.parametrize("system", ["kafka", "artemis"])
def test_every_message_of_a_run_has_its_fate_and_nothing_of_the_system_stays(
    system: str, tmp_path: Path
) -> None:
    fetch(system)
    before_s = time.time()
    with started(profile(system), NETWORK, print) as running:
        result = measured(profile(system), tmp_path / "run", running)
        probes = running.probes()
    fates = result.fates
    assert fates is not None
    assert fates.published == fates.confirmed == fates.delivered > 100
    assert (fates.lost, fates.altered, fates.strange) == (0, 0, 0)
    assert "fsynced by one broker" in result.about["durability"]
    assert result.about["system"]["nodes"].startswith("1 ")
    assert set(result.brokers) == {probe.broker for probe in probes}
    assert not [probe for probe in probes if _runs(probe.pid, before_s)]


def test_a_load_of_its_own_says_its_rates_and_what_it_does_not_measure(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    fetch("perf-test")
    wanted = profile("perf-test", kind="constant")
    result = of_any_load(wanted, tmp_path / "run", Standalone(cluster, direct=True))
    assert result["complete"]
    assert 50 < result["confirmed_per_s"] < 200
    assert 50 < result["delivered_per_s"] < 200
    assert result["percentiles_ms"]
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
