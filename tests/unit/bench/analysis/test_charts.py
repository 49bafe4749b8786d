from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from bench.analysis.charts import Line, by_percentile, over_time


def plain(value: float) -> str:
    return f"{value:g}"


def test_charts_are_well_formed_named_and_fetch_nothing() -> None:
    lines = [Line("a <b>", [0, 50, 99.9, 100], [0.1, 1, 20, 900]), Line("c", [0], [1], dashed=True)]
    for svg in (
        by_percentile(lines, label="L & M", unit=plain),
        over_time(lines, label="L", unit=plain, shaded=(1, 3)),
    ):
        (root,) = ET.fromstring(svg)
        assert root.tag == "svg"
        assert "a <b>" in [text.text for text in root.iter("text")]
        assert not re.search(r"href|url\(", svg)


def test_the_maximum_is_no_percentile() -> None:
    svg = by_percentile([Line("a", [0, 100], [1, 1e6])], label="", unit=plain)
    (points,) = re.findall(r'points="([^"]*)"', svg)
    assert points.count(",") == 1


def test_nothing_to_draw_is_said() -> None:
    assert "no samples" in by_percentile([], label="", unit=plain)
    assert "no samples" in over_time([], label="", unit=plain, shaded=(0, 1))


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(0, "0 1"), (2, "0 1 2"), (5, "0 1 2 3 4 5"), (7, "0 2 4 6 8"), (100, "0 25 50 75 100")],
)
def test_no_two_ticks_of_a_count_read_the_same(most: float, ticks: str) -> None:
    svg = over_time([Line("a", [0, 1], [0, most])], label="", unit=whole, shaded=(0, 1))
    assert re.findall(r'text-anchor="end">(\d+)', svg) == ticks.split()


def whole(value: float) -> str:
    return f"{value:,.0f}"
