"""Against HdrHistogram, fed the same rows one by one."""

from __future__ import annotations

import json

from hdrh.histogram import HdrHistogram

from spark import hdr
from spark.jobs import latency
from spark.latency import CONFIRM, END_TO_END, RECEIVED_SENT, SENT
from spark.page import render_html
from spark.pipeline import CURVE
from tests.unit.spark.conftest import Planted


def test_percentiles_are_those_of_the_rows_themselves(planted_run: Planted) -> None:
    answer = latency.measure(planted_run.run)
    reference = {name: HdrHistogram(1, hdr.TOP_NS, hdr.DIGITS) for name in (CONFIRM, SENT)}
    for path in planted_run.folder.glob("published-*.ndjson"):
        for line in path.read_text().splitlines()[1:]:
            row = json.loads(line)
            for name, since in ((CONFIRM, "intended_ns"), (SENT, "sent_ns")):
                reference[name].record_value(row["confirmed_ns"] - row[since])
    for row in answer.found["percentiles"]:
        if row["scope"] == "all" and row["measure"] in reference:
            expected = reference[row["measure"]]
            assert row["total"] == expected.get_total_count()
            for each in CURVE:
                assert row[hdr.name(each)] == expected.get_value_at_percentile(each)
    assert {
        name: text for name, text in answer.found["histograms"].items() if name in reference
    } == {name: each.encode().decode() for name, each in reference.items()}
    assert set(answer.found["histograms"]) == {CONFIRM, SENT, END_TO_END, RECEIVED_SENT}
    # The planted swap lets one message arrive before it was sent; one clock alone never goes back.
    assert set(answer.found["below_zero"]) <= {END_TO_END, RECEIVED_SENT}
    assert "sent to confirmed" in render_html(answer.page)
