from __future__ import annotations

import pytest

from bench.clients.jvm.kafka_java import options, parse, started
from bench.errors import BenchError, InputInvalid
from bench.load.profile import Profile

SAID = """\
250 records sent, 49.8 records/sec (0.05 MB/sec), 9.1 ms avg latency, 301.0 ms max latency.
400 records sent, 49.962528 records/sec (0.05 MB/sec), 7.61 ms avg latency, 301.00 ms max latency, \
6 ms 50th, 12 ms 95th, 40 ms 99th, 301 ms 99.9th.
"""


def profile(consumers: int = 0) -> Profile:
    return Profile.from_values(
        {
            "name": "x",
            "system": {"name": "kafka-java"},
            "load": {"schedule": {"kind": "constant", "rate_per_s": 50}, "consumers": consumers},
            "time": {"warm_up_s": 2, "measured_s": 8},
        },
        "x",
    )


def test_its_last_line_is_read() -> None:
    rate, percentiles = parse(SAID)
    assert rate == pytest.approx(49.96, abs=0.01)
    assert percentiles == {"p50": 6, "p95": 12, "p99": 40, "p99.9": 301}


def test_without_a_last_line_there_is_no_result() -> None:
    with pytest.raises(BenchError, match="no total"):
        parse(SAID.splitlines()[0])


def test_its_command_line_has_the_load_of_the_profile() -> None:
    found = options(profile(), "127.0.0.201:9092")
    assert found[found.index("--throughput") + 1] == "50"
    assert found[found.index("--num-records") + 1] == "500"
    assert {"bootstrap.servers=127.0.0.201:9092", "acks=all"} <= set(found)


def test_a_load_that_it_cannot_make_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputInvalid, match=r"load\.consumers = 0"):
        started(profile(consumers=1), "127.0.0", print)
