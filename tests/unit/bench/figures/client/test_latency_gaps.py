"""Figures of latencies and gaps, made from measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.figures.client.gaps import KINDS, S, figures_of, gaps_s
from bench.figures.client.latency import (
    added_percent,
    latency_figures,
    latency_tasks,
)
from bench.figures.groups import Setup
from bench.harness.turn import Turn
from tests.support.bench_task import bench_task

SETUP = Setup(Path(), print)


def turn(p50: float) -> Turn:
    both = {"p50": p50, "p99": p50 * 2, "p99.9": p50 * 3}
    ends = {"confirm": both, "delivery": both}
    return Turn(messages=30_000, took_s=10, cpu_s=0, percentiles_ms=ends)


def test_what_is_added_is_a_part_of_the_others() -> None:
    turns = {"ours": [turn(105)], "pika": [turn(100)]}
    assert added_percent(turns, "ours", "confirm") == pytest.approx([5])


def test_only_the_third_client_goes_through_the_balancer() -> None:
    tasks = latency_tasks(bench_task(), SETUP, "10.0.0.1:5672")
    assert {name: task.env["MESSAGEBUS_BROKER"] for name, task in tasks.items()} == {
        "ours": "127.0.0.1:5672",
        "pika": "127.0.0.1:5672",
        "haproxy": "10.0.0.1:5672",
    }
    assert tasks["pika"].system == "pika"


def test_all_clients_have_the_same_event_loop() -> None:
    tasks = latency_tasks(bench_task(), SETUP, "10.0.0.1:5672")
    assert {task.loop for task in tasks.values()} == {"asyncio"}


def test_pairs_are_compared_within_their_repetition() -> None:
    turns = {
        "ours": [turn(1.010), turn(2.200), turn(0.520)],
        "pika": [turn(1.000), turn(2.000), turn(0.500)],
        "haproxy": [turn(1.500), turn(3.000), turn(0.800)],
    }
    found = {figure.id: figure for figure in latency_figures(turns, "again")}
    added = found["client.latency.confirm.ours_added_p50"]
    assert added.value == pytest.approx(4)
    # One repetition of three added a tenth: that the median adds less proves nothing.
    assert (added.met, added.is_unsure) == (False, True)
    assert found["client.latency.delivery.haproxy_added_p50"].met is None
    assert len(found["client.latency.confirm.ours_p99_9_ms"].samples) == 3
    assert found["client.latency.confirm.pika_p50_ms"].value == 1


def test_a_client_that_does_not_keep_up_has_no_figures() -> None:
    turns = {name: [turn(1), turn(2)] for name in ("ours", "pika", "haproxy")}
    turns["pika"][1] = replace(turn(2), took_s=20)
    with pytest.raises(BenchError, match="pika came to 1,500 of 3,000/s: the machine is too busy"):
        list(latency_figures(turns, "again"))


def ns(*seconds: float) -> list[int]:
    return [int(each * S) for each in seconds]


def test_a_gap_lasts_from_the_event_or_between_two_confirms_after_it() -> None:
    confirmed = ns(0.9, 1.5, 1.6, 2.4, 2.5, 9, 10.1)
    assert gaps_s(confirmed, ns(1.0), 1.4) == pytest.approx([0.8])
    assert gaps_s(confirmed, ns(1.0), 1.0) == pytest.approx([0.8])
    assert gaps_s(ns(0.9, 1.7, 1.8, 2.5), ns(1.0), 0.75) == pytest.approx([0.7])


def test_a_silence_that_ends_after_the_watch_counts_whole() -> None:
    assert gaps_s(ns(1.1, 8, 9), ns(1.0), 2.0) == pytest.approx([6.9])
    assert gaps_s(ns(0.5, 8, 9), ns(1.0), 2.0) == pytest.approx([7.0])


def test_a_silence_without_an_end_is_an_error() -> None:
    with pytest.raises(BenchError, match="no confirm"):
        gaps_s(ns(1.1, 1.2), ns(1.0), 2.0)
    with pytest.raises(BenchError, match="no confirm"):
        gaps_s([], ns(1.0), 2.0)


def test_the_worst_event_is_the_figure_and_all_are_kept() -> None:
    kill = next(kind for kind in KINDS if kind.name == "kill")
    (figure,) = figures_of(kill, [0.1, 0.3, 0.2], "again")
    assert figure.id == "client.gap.kill_s"
    assert (figure.value, figure.met) == (0.3, False)
    assert figure.samples == (0.1, 0.3, 0.2)
