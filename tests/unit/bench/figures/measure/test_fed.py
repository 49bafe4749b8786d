from __future__ import annotations

from pathlib import Path

from bench.figures.measure.fed import fed
from bench.figures.measure.laid import lay


def test_every_publish_is_in_the_histogram_of_its_publisher_and_broker(tmp_path: Path) -> None:
    lay(tmp_path, 1000)
    found = fed(tmp_path)
    assert len({publisher for publisher, _ in found}) == 50
    assert sum(each.get_total_count() for each in found.values()) == 1000
    assert min(each.get_min_value() for each in found.values()) > 1000
