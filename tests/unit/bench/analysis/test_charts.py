from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from bench.analysis.charts import over_time_chart, percentile_chart
from bench.analysis.result import gather
from tests.support.runs import BROKERS, write_run

KILL = {"at_s": 5, "what": "kill", "broker": 1, "lasts_s": 2}


def names(svg: str) -> set[str | None]:
    return {text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


def test_charts_are_well_formed_named_and_fetch_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, disturbances=[KILL])
    result = gather(tmp_path)
    by_percentile, over_time = percentile_chart(result), over_time_chart(result)
    measures = {"publish, from intended", "publish, from sent", "end to end", "pacing"}
    assert names(by_percentile) > measures
    assert names(over_time) > {*BROKERS, "confirm, p99", "delivery, p50", "kill", "kill over"}
    assert "waiting" in " ".join(filter(None, names(over_time)))
    for svg in (by_percentile, over_time):
        assert not re.search(r"(?:href|src)=\"(?!#)|url\((?!#)", svg)


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, outage=range(12))
    assert "no samples" in names(over_time_chart(gather(tmp_path)))
