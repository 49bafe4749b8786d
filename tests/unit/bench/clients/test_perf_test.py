from __future__ import annotations

import dataclasses

import pytest

from bench.clients.perf_test import Second, full_speed, latencies, options, parse, turn_of
from bench.errors import BenchError
from tests.support.bench_task import bench_task
from tests.support.results import profile_with

LINE = (
    "id: test-1, time 3.001 s, sent: 305 msg/s, returned: 0 msg/s, confirmed: 301 msg/s, "
    "nacked: 0 msg/s, received: 299 msg/s, min/median/75th/95th/99th consumer latency: "
    "500/900/1200/2000/3000 µs, confirm latency: 400/800/900/1100/1500 µs"
)
END = (
    "id: test-1, consumer latency min/median/75th/95th/99th 398/1470/4080/13800/18600 µs\n"
    "id: test-1, confirm latency min/median/75th/95th/99th 1/2/3/4/5 ms\n"
)
SENT = (
    "id: test-1, time 2.002 s, sent: 24909 msg/s, returned: 0 msg/s, confirmed: 24735 msg/s, "
    "nacked: 0 msg/s, min/median/75th/95th/99th confirm latency: 534/13691/17621/29995/40256 µs"
)
RECEIVED = "id: test-1, time 1.015 s, received: 52396 msg/s, min/median/75th/95th/99th consumer ..."
PROFILE = profile_with(
    {"publishers": 3, "window": 7}, 300, system={"name": "perf-test", "brokers": 1}
)


def test_a_line_of_rates_has_both() -> None:
    assert parse(LINE) == Second(3.001, 301.0, 299.0)
    assert parse("id: test-1, sending rate avg: 299 msg/s") is None


def test_its_latencies_are_service_times_in_ms() -> None:
    found = latencies(END)
    assert found["service"] == {"p0": 1.0, "p50": 2.0, "p75": 3.0, "p95": 4.0, "p99": 5.0}
    assert found["sent to received"]["p50"] == 1.47


def seconds(*rates: float) -> list[Second]:
    return [Second(float(n), rate, 0.0, cpu_s=n * 0.3) for n, rate in enumerate(rates, 1)]


def test_a_line_of_one_end_has_its_rate() -> None:
    sent = parse(SENT)
    received = parse(RECEIVED)
    assert sent
    assert received
    assert (sent.at_s, sent.per_s) == (2.002, 24735)
    assert (received.at_s, received.per_s) == (1.015, 52396)
    assert parse("id: test-1, starting consumer #0") is None


def test_only_the_seconds_of_a_turn_after_the_warm_up_count() -> None:
    turn = turn_of(seconds(1, 1000, 5000, 10_000, 30_000), warm_up_s=3)
    assert (turn.messages, turn.took_s) == (40_000, 2)
    assert turn.cpu_s == pytest.approx(0.6)


def test_the_second_in_which_the_queue_ran_dry_and_later_ones_do_not_count() -> None:
    turn = turn_of(seconds(40_000, 50_000, 60_000, 60_000, 10_000, 0), warm_up_s=2)
    assert turn.messages == 120_000
    assert turn.took_s == 2


def test_too_short_a_turn_is_an_error() -> None:
    with pytest.raises(BenchError, match="before it was warm"):
        turn_of(seconds(100, 100), warm_up_s=3)
    with pytest.raises(BenchError, match="before it was warm"):
        turn_of([], warm_up_s=3)


def test_the_command_line_of_a_turn_names_what_is_there_and_no_password() -> None:
    publishing = full_speed(bench_task(system="perf-test", window=50, seconds=8))
    assert publishing[publishing.index("--confirm") + 1] == "50"
    assert "mb.topic/figures" in publishing
    assert "--rate" not in publishing
    consuming = full_speed(bench_task(system="perf-test", verb="consume", window=1000))
    assert consuming[consuming.index("--qos") + 1] == "1000"
    assert consuming[consuming.index("--multi-ack-every") + 1] == "250"
    assert "mb.sub/figures/sink" in consuming
    assert not [word for word in publishing if "amqp://" in word]


def test_it_is_told_the_load_of_the_profile() -> None:
    argv = options(PROFILE)
    assert argv[argv.index("--rate") + 1] == "100"
    assert argv[argv.index("--producers") + 1] == "3"
    assert argv[argv.index("--confirm") + 1] == "7"
    load = dataclasses.replace(PROFILE.load, ack="none")
    assert "--autoack" in options(dataclasses.replace(PROFILE, load=load))
