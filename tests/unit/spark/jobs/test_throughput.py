from __future__ import annotations

from spark.jobs import throughput
from spark.page import render_html
from tests.unit.spark.conftest import Planted


def test_every_dimension_adds_up_to_the_whole(planted_run: Planted) -> None:
    answer = throughput.measure(planted_run.run)
    whole = {row["kind"]: row["messages"] for row in answer.found["whole"]}
    assert whole == {
        "confirmed": planted_run.truth.confirmed,
        "delivered": planted_run.truth.deliveries,
    }
    for dim in ("brokers", "topics", "subscriptions", "publishers"):
        for kind, messages in whole.items():
            rows = [row for row in answer.found[dim] if row["kind"] == kind]
            assert sum(row["messages"] for row in rows) == messages
    assert answer.page.faults == ()
    assert "confirmed per second" in render_html(answer.page)
