import pytest

from bench.figures.ops.spread import unevenness


def test_the_broker_that_is_farthest_from_an_even_share_counts() -> None:
    assert unevenness({"mb1": 12, "mb2": 12, "mb3": 12}) == 0
    assert unevenness({"mb1": 13, "mb2": 14, "mb3": 9}) == pytest.approx(25)
    assert unevenness({"mb1": 18, "mb2": 18, "mb3": 0}) == pytest.approx(100)
