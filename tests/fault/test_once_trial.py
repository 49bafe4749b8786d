"""Promise: an order is billed once, whatever dies meanwhile.

`make once` is the long form: TESTS_MINUTES, TESTS_ORDERS, TESTS_SEED. With TESTS_DEFECT, one of
`once_app.DEFECTS`, a fault is planted, and the test must fail.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops.local.cluster import LocalCluster
from tests.support.faults import forget, restore
from tests.support.servers import MakeServer
from tests.support.trials.once import Trial
from tests.support.trials.once_app import TABLES
from tests.support.trials.once_site import Site

SEED = int(os.environ.get("TESTS_SEED", "11"))
# Faults last until each kind has happened: these are the least.
LASTS_S = 60 * float(os.environ.get("TESTS_MINUTES", "0.33"))
ORDERS = int(os.environ.get("TESTS_ORDERS", "500"))
DEFECT = os.environ.get("TESTS_DEFECT", "")


@pytest.mark.guarantee("once-end-to-end", "application-survives-kills")
@pytest.mark.guarantee("handled-once")
@pytest.mark.guarantee("inbox")
@pytest.mark.guarantee("outbox-survives-kills")
def test_each_order_is_billed_once_through_kills_of_everything(
    broken: LocalCluster, make_server: MakeServer, tmp_path: Path
) -> None:
    """Each kind of fault at least once."""
    said: list[str] = []
    site = Site(broken, tmp_path, make_server, said.append)
    try:
        trial = Trial(site, tmp_path, seconds=LASTS_S, orders=ORDERS, seed=SEED, defect=DEFECT)
        verdict = trial.run(say=said.append)
    finally:
        restore(broken)
        for topic in {place.partition("/")[0] for place in TABLES.values()}:
            forget(broken, topic)
    print(verdict.as_json())
    assert verdict.faults == [], said
    assert verdict.orders >= ORDERS
