import pytest

from bench.figures.client.stream import figures_of, growth_mb
from bench.harness.sampling import MEMORY_UNIT, Sample
from bench.harness.turn import Turn


def samples(*megabytes: float) -> list[Sample]:
    return [Sample("consumer", n, 0, mb * 1e6 / MEMORY_UNIT, 0) for n, mb in enumerate(megabytes)]


def test_memory_is_compared_with_that_after_the_first_tenth() -> None:
    assert growth_mb(samples(30, 40, 50, *[51] * 17, 54)) == pytest.approx(4)
    assert growth_mb(samples(30, 40, 50, *[50] * 17, 44)) == pytest.approx(6)


def test_flat_is_below_the_goal() -> None:
    turn = Turn(messages=2000, took_s=2, cpu_s=0.02)
    found = {f.id: f for f in figures_of(samples(*[50] * 20), turn, "again")}
    assert found["client.stream.growth_mb"].met is True
    assert found["client.stream.memory_mb"].value == pytest.approx(50)
    assert found["client.stream.rate"].value == pytest.approx(1000)
    assert found["client.stream.cpu_us"].value == pytest.approx(10)
