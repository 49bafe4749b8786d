from __future__ import annotations

import dataclasses

from bench.clients.perf_test import Second, latencies, options, parse
from bench.load.profile import Profile

LINE = (
    "id: test-1, time 3.001 s, sent: 305 msg/s, returned: 0 msg/s, confirmed: 301 msg/s, "
    "nacked: 0 msg/s, received: 299 msg/s, min/median/75th/95th/99th consumer latency: "
    "500/900/1200/2000/3000 µs, confirm latency: 400/800/900/1100/1500 µs"
)
END = (
    "id: test-1, consumer latency min/median/75th/95th/99th 398/1470/4080/13800/18600 µs\n"
    "id: test-1, confirm latency min/median/75th/95th/99th 1/2/3/4/5 ms\n"
)
PROFILE = Profile.from_values(
    {
        "name": "x",
        "system": {"name": "perf-test", "brokers": 1},
        "load": {"schedule": {"kind": "constant", "rate_per_s": 300}, "publishers": 3, "window": 7},
    },
    "test",
)


def test_a_line_of_rates_has_both() -> None:
    assert parse(LINE) == Second(3.001, 301.0, 299.0)
    assert parse("id: test-1, sending rate avg: 299 msg/s") is None


def test_its_latencies_are_service_times_in_ms() -> None:
    found = latencies(END)
    assert found["service"] == {"p0": 1.0, "p50": 2.0, "p75": 3.0, "p95": 4.0, "p99": 5.0}
    assert found["sent to received"]["p50"] == 1.47


def test_it_is_told_the_load_of_the_profile() -> None:
    argv = options(PROFILE)
    assert argv[argv.index("--rate") + 1] == "100"
    assert argv[argv.index("--producers") + 1] == "3"
    assert argv[argv.index("--confirm") + 1] == "7"
    load = dataclasses.replace(PROFILE.load, ack="none")
    assert "--autoack" in options(dataclasses.replace(PROFILE, load=load))
