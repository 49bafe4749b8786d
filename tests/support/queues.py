"""Messages in a broker's queue, as they are there."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually_async


@dataclass(frozen=True)
class Raw:
    """Message, not read by any client of ours."""

    message_id: str
    headers: dict[str, Any]
    body: bytes


async def take_raw(cluster: LocalCluster, queue: str, *, within_s: float) -> Raw:
    """Take one message out of this queue, of any broker that has one."""
    found: list[Raw] = []

    def look() -> bool:
        found.extend(raw for name in cluster.names for raw in _take(cluster, name, queue))
        return bool(found)

    await eventually_async(look, within_s=within_s, what=f"something is in {queue}")
    return found[0]


def _take(cluster: LocalCluster, name: str, queue: str) -> list[Raw]:
    wanted = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "base64"}
    with cluster.management(name) as management:
        answer = management.post(f"/api/queues/%2F/{quote(queue, safe='')}/get", json=wanted)
    return [
        Raw(
            each["properties"].get("message_id", ""),
            each["properties"].get("headers", {}),
            base64.b64decode(each["payload"]),
        )
        for each in answer.raise_for_status().json()
    ]
