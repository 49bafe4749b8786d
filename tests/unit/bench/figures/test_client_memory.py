from bench.figures.client.mesh import MB
from bench.figures.client_memory import growth_mb


def test_growth_is_the_largest_distance_from_the_settled_sample() -> None:
    samples = [int(value * MB) for value in (10, 50, 52, 49, 58, 51)]
    assert growth_mb(samples, 1) == 8
    assert growth_mb(samples, 4) == 7
    assert growth_mb(samples, 5) == 0
