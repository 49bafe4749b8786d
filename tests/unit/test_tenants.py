"""Promise: a topic for each tenant, and the concurrency of its handler as its weight, are fair among tenants.

The control shows what they replace: in one topic a tenant waits behind all that another one has sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing

import pytest

from messagebus import App
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async

FLOOD, FEW = 600, 60
RUN_S = 0.002
WITHIN_S = 60.0


@pytest.mark.guarantee("tenants-by-weight")
@pytest.mark.parametrize(("weight", "control"), [(1, False), (3, False), (1, True)])
async def test_a_tenant_that_floods_takes_its_weight_and_no_more(
    weight: int, control: bool
) -> None:
    """The quiet tenant publishes after the flood. control: both in one topic, with as many runs at once."""
    app, handled, at_the_end = App(), Counter[str](), 0

    async def run(tenant: str) -> None:
        nonlocal at_the_end
        await asyncio.sleep(RUN_S)
        handled[tenant] += 1
        if handled["quiet"] == FEW and not at_the_end:
            at_the_end = handled["loud"]

    topics = {"loud": "jobs", "quiet": "jobs"} if control else {t: t for t in ("loud", "quiet")}
    if control:
        app.subscriber("jobs", subscription="work", concurrency=weight + 1)(run)
    else:
        app.subscriber("loud", subscription="work", concurrency=weight)(run)
        app.subscriber("quiet", subscription="work", concurrency=1)(run)
    with closing(MemoryBus(brokers=1)) as bus:
        bus.declare(*(f"{topic}/work" for topic in {*topics.values()}))
        with bus.publisher() as publisher:
            publisher.send_many(topics["loud"], ["loud"] * FLOOD)
            publisher.send_many(topics["quiet"], ["quiet"] * FEW)
        app.use(bus)
        async with app:
            await eventually_async(lambda: handled["quiet"] == FEW, within_s=WITHIN_S)
    print(f"{at_the_end} of the loud tenant were handled while {FEW} of the quiet one were")
    if control:
        assert at_the_end > 0.9 * FLOOD
    else:
        assert 0.6 * weight * FEW < at_the_end < 1.4 * weight * FEW
