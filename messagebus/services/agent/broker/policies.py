"""Policies that have a broker lose messages of the library's queues.

A policy of operators for other queues matches ours when its pattern is `.*`. Only arguments are declared, so
nothing else would notice. Source: https://www.rabbitmq.com/docs/parameters#policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from messagebus.observing.snapshot import LOSES

QUEUES = "mb."
EXAMPLES = 3


def losing(queues: Iterable[Mapping[str, Any]]) -> str:
    """Return the policies that lose messages, with what they set and of which queues; "" for none.

    queues: as the management API lists them, with arguments, policy and effective_policy_definition.
    """
    found: dict[str, list[str]] = {}
    for queue in queues:
        if queue["name"].startswith(QUEUES) and (keys := _losing_keys(queue)):
            names = [queue.get(which) for which in ("policy", "operator_policy")]
            by = " and ".join(repr(name) for name in names if name) or "unnamed"
            found.setdefault(f"policy {by} {LOSES} {', '.join(keys)}", []).append(queue["name"])
    return "; ".join(f"{told}: {_some(sorted(names))}" for told, names in sorted(found.items()))


def _losing_keys(queue: Mapping[str, Any]) -> list[str]:
    """Return the keys of the effective policy that lose messages of this queue."""
    policy, own = queue.get("effective_policy_definition"), queue.get("arguments")
    policy = policy if isinstance(policy, dict) else {}  # RabbitMQ writes an empty object as []
    own = own if isinstance(own, dict) else {}
    is_stream = own.get("x-queue-type") == "stream"
    overflow = own.get("x-overflow", policy.get("overflow", "drop-head"))
    keys = [key for key in ("message-ttl", "expires") if key in policy]
    if is_stream or overflow == "drop-head":
        keys += [key for key in ("max-length", "max-length-bytes", "max-age") if key in policy]
    if "x-dead-letter-exchange" not in own and "dead-letter-exchange" in policy:
        keys.append("dead-letter-exchange")
    limit, mine = policy.get("delivery-limit"), own.get("x-delivery-limit")
    if isinstance(limit, int) and not (isinstance(mine, int) and mine <= limit):
        keys.append("delivery-limit")
    return keys


def _some(names: list[str]) -> str:
    more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
    return f"{', '.join(names[:EXAMPLES])}{more}"
