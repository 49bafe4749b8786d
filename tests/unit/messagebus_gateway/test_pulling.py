"""Deliveries as JSON, whatever other clients have put into their headers."""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from messagebus import Delivery, Message, Queue
from messagebus.core.deliveries import Receipt
from messagebus.message import decode_json
from messagebus_gateway.leases import Lease
from messagebus_gateway.problems import encoded
from messagebus_gateway.pulling import Held, as_json

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"\xff", {"base64": base64.b64encode(b"\xff").decode()}),
        (AT, {"time": AT.isoformat()}),
        (Decimal("1.50"), {"decimal": "1.50"}),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        ([AT, {"time": "x"}], [{"time": AT.isoformat()}, {"object": {"time": "x"}}]),
        ({"count": 1, "time": AT}, {"count": 1, "time": {"time": AT.isoformat()}}),
        (None, None),
        (1.5, 1.5),
    ],
)
def test_a_header_of_another_client_spoils_no_answer(value: Any, told: Any) -> None:
    """A broker's own x-death has a time: one message would be 500 to all who pull."""
    delivery = Delivery(Message(body=b"x", message_id="1"), Receipt("b:1", 1, 1), Queue("jobs"))
    object.__setattr__(delivery.message, "headers", {"h": value})
    lease = Lease("token", "shop", Held(None, delivery), 0, 1)  # type: ignore[arg-type]
    assert decode_json(encoded(as_json(lease)))["headers"] == {"h": told}
