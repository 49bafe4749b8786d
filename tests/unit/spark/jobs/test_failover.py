from __future__ import annotations

from spark.jobs import failover
from spark.page import render_text
from tests.support.events import KILLED, PUBLISHERS
from tests.unit.spark.conftest import Planted


def test_the_silence_around_a_kill_is_found_per_publisher_and_broker(planted_run: Planted) -> None:
    answer = failover.measure(planted_run.run)
    kinds = [one["kind"] for one in answer.found["incidents"]]
    assert kinds == ["add", "remove", "kill", "start", "reload"]
    killed = kinds.index("kill")
    held_back = {
        row["publisher"]: row["gap_ms"]
        for row in answer.found["publishers"]
        if row["number"] == killed
    }
    assert set(held_back) == set(PUBLISHERS)
    # All were held back for 300 ms.
    assert all(250 < gap < 400 for gap in held_back.values())
    down = [
        row["gap_ms"]
        for row in answer.found["brokers"]
        if row["number"] == killed and row["broker"] == KILLED
    ]
    assert down
    assert all(2_900 < gap < 3_500 for gap in down)
    assert f"kill {KILLED}" in render_text(answer.page)
