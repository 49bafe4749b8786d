"""Figures of delays, made from measurements."""

from __future__ import annotations

from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram

from bench.figures.comfort.delay import cases_of, late_figures, percentile_ms, waiting_figures
from bench.figures.scene import Scene
from bench.systems.turn import Turn
from tests.support.bench_task import bench_task


@pytest.mark.parametrize(("percent", "wanted"), [(0, 1), (50, 2), (51, 3), (99, 4), (100, 4)])
def test_a_percentile_is_one_of_the_values(percent: float, wanted: float) -> None:
    assert percentile_ms([0.004, 0.002, 0.003, 0.001], percent) == wanted


def test_each_step_has_its_percentiles_and_what_came_early_is_counted() -> None:
    late = {1: [[0.001, 0.003], [0.002, -0.001]], 2: [[0.5], [0.7]]}
    found = {figure.id: figure for figure in late_figures(late, "again")}
    assert found["comfort.delay.late_1s_p50_ms"].samples == (1.0, -1.0)
    assert found["comfort.delay.late_2s_max_ms"].value == pytest.approx(600)
    assert (found["comfort.delay.early"].value, found["comfort.delay.early"].met) == (1, False)


def test_every_turn_is_taken_with_and_without_waiting_messages() -> None:
    cases = cases_of(bench_task(), Scene(Path("/c"), print))
    assert [case.name for case in cases] == [
        "consume.idle",
        "latency.idle",
        "consume.waiting",
        "latency.waiting",
    ]
    assert [case.task for case in cases[:2]] == [case.task for case in cases[2:]]


def test_the_rate_with_waiting_messages_is_held_against_the_one_without() -> None:
    histogram = HdrHistogram(1, 60_000_000, 3)
    histogram.record_value(5_000)
    histograms = {"delivery": histogram.encode().decode()}

    def turn(took_s: float) -> Turn:
        return Turn(messages=100, took_s=took_s, user_s=1, system_s=1, histograms=histograms)

    turns = {
        "consume.idle": [turn(1.0), turn(2.0)],
        "consume.waiting": [turn(1.0), turn(4.0)],
        "latency.idle": [turn(1.0)],
        "latency.waiting": [turn(1.0)],
    }
    found = {figure.id: figure for figure in waiting_figures(turns, "again")}
    assert found["comfort.delay.consume_ratio"].samples == (1.0, 0.5)
    assert found["comfort.delay.consume_ratio"].met is False
    assert found["comfort.delay.latency_idle_p50_ms"].value == pytest.approx(5, rel=0.01)
