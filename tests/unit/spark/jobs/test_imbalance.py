from __future__ import annotations

from spark.jobs import imbalance
from spark.page import render_text
from tests.support.events import BROKERS, PUBLISHERS
from tests.unit.spark.conftest import Planted


def test_brokers_and_connections_are_judged_and_no_key_is_no_hot_key(planted_run: Planted) -> None:
    answer = imbalance.measure(planted_run.run)
    judged = answer.found["judged"]
    assert judged["brokers, messages confirmed"]["count"] == len(BROKERS)
    assert judged["connections, messages confirmed"]["count"] == len(BROKERS) * len(PUBLISHERS)
    assert judged["keys, messages"] is None
    assert answer.found["hot_keys"] == []
    assert "the busiest broker took" in render_text(answer.page)
