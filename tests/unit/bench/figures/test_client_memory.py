import os

from bench.figures.client_memory import MB, growth_mb, rss_bytes_of


def test_growth_is_the_largest_distance_from_the_settled_sample() -> None:
    samples = [int(value * MB) for value in (10, 50, 52, 49, 58, 51)]
    assert growth_mb(samples, 1) == 8
    assert growth_mb(samples, 4) == 7
    assert growth_mb(samples, 5) == 0


def test_memory_of_a_process_is_read_from_proc() -> None:
    assert rss_bytes_of(os.getpid()) > 5 * MB
