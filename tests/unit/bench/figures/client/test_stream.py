import pytest

from bench.figures.client.stream import Sample, figures_of, growth_mb


def samples(*megabytes: float) -> list[Sample]:
    return [Sample(n * 100, int(mb * 1e6), n * 0.001) for n, mb in enumerate(megabytes, 1)]


def test_memory_is_compared_with_that_after_the_first_tenth() -> None:
    assert growth_mb(samples(30, 50, *[51] * 17, 54)) == pytest.approx(4)
    assert growth_mb(samples(30, 50, *[50] * 17, 44)) == pytest.approx(6)


def test_flat_is_below_the_goal() -> None:
    found = {f.id: f for f in figures_of(samples(*[50] * 20), 2.0, "again")}
    assert found["client.stream.growth_mb"].met is True
    assert found["client.stream.rate"].value == pytest.approx(1000)
    assert found["client.stream.cpu_us"].value == pytest.approx(10)
