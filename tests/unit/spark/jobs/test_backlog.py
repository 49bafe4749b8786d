from __future__ import annotations

from spark.jobs import backlog
from spark.page import render_html
from tests.support.events import KILLED
from tests.unit.spark.conftest import Planted


def test_what_a_dead_broker_held_is_its_backlog_and_what_is_lost_stays(
    planted_run: Planted,
) -> None:
    answer = backlog.measure(planted_run.run)
    drains = answer.found["drains"]
    oldest = max(row["age_ms"] for row in drains if row["broker"] == KILLED)
    assert 2_000 < oldest < 6_000
    not_emptied = [row for row in drains if row["empty_second"] is None]
    assert [row["subscription"] for row in not_emptied] == ["audit"]
    assert len(answer.page.faults) == 1
    assert "audit: not empty at the end" in answer.page.faults[0]
    assert "oldest" in render_html(answer.page)
