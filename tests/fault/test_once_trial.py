"""Promise: an order is billed once, whatever dies meanwhile: the short form of `python -m bench once`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.trials.once import Trial
from bench.trials.once_app import TABLES
from bench.trials.once_site import Site
from ops.local.cluster import LocalCluster
from tests.support.faults import forget, restore
from tests.support.servers import MakeServer

SEED = 11
# Faults last until each kind has happened: these are the least.
LASTS_S, ORDERS = 20.0, 500


@pytest.mark.guarantee("once-end-to-end")
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
        verdict = Trial(site, tmp_path, seconds=LASTS_S, orders=ORDERS, seed=SEED).run(
            say=said.append
        )
    finally:
        restore(broken)
        for topic in {place.partition("/")[0] for place in TABLES.values()}:
            forget(broken, topic)
    assert verdict.faults == [], said
    assert verdict.orders >= ORDERS
