"""agent.mismatch: what exists otherwise is told argument by argument."""

from __future__ import annotations

from typing import Any

import pytest

from messagebus.agent.mismatch import differences
from messagebus.topology import QueueSpec

QUEUE = QueueSpec(name="q", arguments={"x-queue-type": "quorum", "mb-born": 7})


@pytest.mark.parametrize(
    ("exists", "told"),
    [
        ({"durable": True, "x-queue-type": "quorum", "mb-born": 3}, ""),
        ({"durable": True}, "x-queue-type is wanted 'quorum' and exists 'classic'"),
        ({"durable": False, "x-queue-type": "quorum"}, "durable is wanted True and exists False"),
        (
            {"durable": True, "x-queue-type": "quorum", "x-expires": 5},
            "x-expires is wanted none and exists 5",
        ),
    ],
)
def test_each_argument_that_differs_is_named(exists: dict[str, Any], told: str) -> None:
    assert differences(QUEUE, exists) == told
