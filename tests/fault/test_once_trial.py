"""Promise: an order is billed once, whatever dies meanwhile: the short form of `python -m bench once`.

TESTS_ONCE_SPARK=1 audits by Spark, too, which takes as long again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.trials.once import Trial, differences, spark_differences
from bench.trials.once_app import PLACES, PLACES_OF_CONTROLS
from ops.local.cluster import LocalCluster
from tests.support.faults import forget, restore

SEED = 11
# Faults last until each kind has happened: these are the least.
LASTS_S, ORDERS = 20.0, 500


@pytest.mark.guarantee("once-end-to-end")
@pytest.mark.guarantee("handled-once")
@pytest.mark.guarantee("inbox")
@pytest.mark.guarantee("outbox-survives-kills")
def test_each_order_is_billed_once_through_kills_of_everything(
    broken: LocalCluster, tmp_path: Path
) -> None:
    """Each kind of fault at least once; the audit of what was recorded counts the same."""
    said: list[str] = []
    trial = Trial(broken, tmp_path / "run", seconds=LASTS_S, orders=ORDERS, seed=SEED)
    try:
        trial.run(say=said.append)
    finally:
        restore(broken)
        for topic in {place.partition("/")[0] for place in (*PLACES, *PLACES_OF_CONTROLS)}:
            forget(broken, topic)
    verdict, audited = trial.judge()
    assert verdict.faults == [], said
    assert differences(verdict, audited) == []
    if os.environ.get("TESTS_ONCE_SPARK"):
        assert spark_differences(tmp_path / "run", audited) == []
    assert verdict.orders >= ORDERS
