from dataclasses import replace
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram

from bench.errors import BenchError
from bench.figures.client.latency import added_percent, cases_of, figures_of, percentile_us
from bench.figures.scene import Scene
from bench.systems.turn import DIGITS, HIGHEST_US, Turn
from tests.support.bench_task import bench_task


def turn(*values_us: int) -> Turn:
    histogram = HdrHistogram(1, HIGHEST_US, DIGITS)
    for value in values_us:
        histogram.record_value(value)
    encoded = histogram.encode().decode()
    ends = {"confirm": encoded, "delivery": encoded}
    return Turn(messages=30_000, took_s=10, user_s=0, system_s=0, histograms=ends)


def test_what_is_added_is_a_part_of_the_others() -> None:
    assert percentile_us(turn(100, 200, 300), "confirm", 50) == 200
    assert added_percent(turn(105), turn(100), "confirm", 50) == pytest.approx(5)


def test_only_the_third_client_goes_through_the_balancer() -> None:
    cases = cases_of(bench_task(), Scene(Path(), print), "10.0.0.1:5672")
    brokers = {case.name: case.task.broker for case in cases}
    assert brokers == {
        "ours": "127.0.0.1:5672",
        "pika": "127.0.0.1:5672",
        "haproxy": "10.0.0.1:5672",
    }


def test_all_clients_have_the_same_event_loop() -> None:
    cases = cases_of(bench_task(), Scene(Path(), print), "10.0.0.1:5672")
    assert {case.task.loop for case in cases} == {"asyncio"}


def test_pairs_are_compared_within_their_repetition() -> None:
    turns = {
        "ours": [turn(1010), turn(2200), turn(520)],
        "pika": [turn(1000), turn(2000), turn(500)],
        "haproxy": [turn(1500), turn(3000), turn(800)],
    }
    found = {figure.id: figure for figure in figures_of(turns, "again")}
    added = found["client.latency.confirm.ours_added_p50"]
    assert added.value == pytest.approx(4, abs=0.2)
    # One repetition of three added a tenth: that the median adds less proves nothing.
    assert (added.met, added.is_unsure) == (False, True)
    assert found["client.latency.delivery.haproxy_added_p50"].met is None
    assert len(found["client.latency.confirm.ours_p99_9_ms"].samples) == 3


def test_a_client_that_does_not_keep_up_has_no_figures() -> None:
    turns = {name: [turn(1000), turn(2000)] for name in ("ours", "pika", "haproxy")}
    turns["pika"][1] = replace(turn(2000), took_s=20)
    with pytest.raises(BenchError, match="pika came to 1,500 of 3,000/s: the machine is too busy"):
        list(figures_of(turns, "again"))
