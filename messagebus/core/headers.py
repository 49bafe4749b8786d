"""Headers that mean something to a broker: an application neither sets nor sees them.

RabbitMQ routes a message by some headers and counts in others. It reads them from whoever wrote them:
at a list in ``x-death`` that is not of its own form RabbitMQ 3.10 ends the dead-lettering of all queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OF_DEAD_LETTERING = frozenset(
    {
        "x-death",
        *("x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"),
        *("x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"),
    }
)
"""RabbitMQ's own headers of dead-lettering, by which a delayed message leaves its step."""
STREAM_OFFSET = "x-stream-offset"
"""Header of a message that was read from a stream: its offset."""
OF_BROKERS = OF_DEAD_LETTERING | {
    "CC",
    "BCC",
    "x-delivery-count",
    "x-acquired-count",
    STREAM_OFFSET,
}
"""Names of all of them. Whole names: ``x-deaths`` is an application's."""
DEATH_MARK = b"x-death"
"""Bytes in the properties of every message that was dead-lettered, or whose ``x-death`` is a client's."""

CRC_HEADER = "mb-crc"
"""Header with the CRC-32 of a body as it was published."""
CRC_MARK = CRC_HEADER.encode()
"""Bytes in the properties of every message that has one."""


def has_strange_deaths(headers: Mapping[str, Any]) -> bool:
    """Return whether ``x-death`` is a list that a broker cannot count on; False without one.

    headers: all of a message, as they arrived. A broker must not dead-letter such a message. It replaces an
    ``x-death`` that is no list. Source: RabbitMQ 3.10, `rabbit_dead_letter:update_x_death_header`.
    """
    deaths = headers.get("x-death")
    return isinstance(deaths, list) and not all(map(_can_be_counted, deaths))


def _can_be_counted(death: object) -> bool:
    if not isinstance(death, dict):
        return False
    is_named = isinstance(death.get("queue"), str) and isinstance(death.get("reason"), str)
    return is_named and type(death.get("count", 0)) is int
