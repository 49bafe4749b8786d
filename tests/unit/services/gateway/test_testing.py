"""The fixture for testers."""

from __future__ import annotations

import httpx

from messagebus.services.gateway.testing import messagebus_gateway as messagebus_gateway
from messagebus.testing import MemoryBus


def test_a_program_speaks_http_to_brokers_in_memory(
    messagebus_bus: MemoryBus, messagebus_gateway: str
) -> None:
    messagebus_bus.declare("orders/billing")
    answer = httpx.post(
        f"{messagebus_gateway}/v1/topics/orders/messages", content=b"x", trust_env=False
    )
    assert answer.status_code == 201
    messagebus_bus.assert_published("orders", body=b"x", count=1)
