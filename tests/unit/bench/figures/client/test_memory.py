from __future__ import annotations

import os

import pytest

from bench.figures.client.memory import figures_of, growth_mb
from bench.figures.client.mesh import MB, rss_bytes_of
from bench.figures.client.mesh import figures_of as mesh_figures_of
from bench.harness.sampling import MEMORY_UNIT, Sample
from bench.harness.turn import Turn


def test_growth_is_the_largest_distance_from_the_settled_sample() -> None:
    samples = [int(value * MB) for value in (10, 50, 52, 49, 58, 51)]
    assert growth_mb(samples, 1) == 8
    assert growth_mb(samples, 4) == 7
    assert growth_mb(samples, 5) == 0


TURN = Turn(messages=2000, took_s=2, cpu_s=0.02)


def samples(*megabytes: float) -> list[Sample]:
    return [Sample("consumer", n, 0, mb * 1e6 / MEMORY_UNIT, 0) for n, mb in enumerate(megabytes)]


@pytest.mark.parametrize(
    ("megabytes", "growth"),
    [((30, 40, 50, *[51] * 17, 54), 4), ((30, 40, 50, *[50] * 17, 44), 6)],
)
def test_memory_is_compared_with_that_after_the_first_tenth(
    megabytes: tuple[float, ...], growth: float
) -> None:
    found = {f.id: f for f in figures_of(samples(*megabytes), TURN, "again")}
    assert found["client.stream.growth_mb"].value == pytest.approx(growth)


def test_flat_is_below_the_goal() -> None:
    found = {f.id: f for f in figures_of(samples(*[50] * 20), TURN, "again")}
    assert found["client.stream.growth_mb"].met is True
    assert found["client.stream.memory_mb"].value == pytest.approx(50)
    assert found["client.stream.rate"].value == pytest.approx(1000)
    assert found["client.stream.cpu_us"].value == pytest.approx(10)


def test_the_worst_consumer_counts_and_links_on_average() -> None:
    attached = [{"attach_s": 1.0}, {"attach_s": 3.0}]
    idle = [
        {"cpu_percent": 0.5, "rss_bytes": 60e6, "link_bytes": 200e3},
        {"cpu_percent": 1.5, "rss_bytes": 50e6, "link_bytes": 100e3},
    ]
    found = {f.id: f for f in mesh_figures_of(attached, idle, 50e3, brokers=64, repeat="again")}
    assert found["client.mesh.attach_s"].value == 3
    assert found["client.mesh.idle_cpu_percent"].met is False
    assert found["client.mesh.consumer_mb"].value == pytest.approx(60)
    assert found["client.mesh.consumer_mb"].met is True
    assert found["client.mesh.link_kb"].value == pytest.approx(150)
    assert found["client.mesh.server_link_kb"].value == pytest.approx(50)


def test_memory_of_a_process_is_read_from_proc() -> None:
    assert rss_bytes_of(os.getpid()) > 5 * MB
