from __future__ import annotations

import pytest

from bench.run.growth import between


def test_a_counter_is_known_between_its_points_alone() -> None:
    points = [(1.0, 10.0), (3.0, 30.0)]
    assert between(points, 1.5, 2.5) == pytest.approx(10)
    assert between(points, 0.5, 2.0) is None
    assert between(points, 2.0, 3.5) is None
    assert between([], 0.0, 1.0) is None
