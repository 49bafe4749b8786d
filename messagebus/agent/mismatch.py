"""What exists on the broker otherwise than wanted, argument by argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from messagebus._io.admin.control import Control
from messagebus.agent.management import Management, ManagementUnavailable
from messagebus.topology import BORN, Declarations, QueueSpec

__all__ = ["differences", "mismatch_on"]


async def mismatch_on(control: Control, management: Management, wanted: Declarations) -> str:
    """What of it exists otherwise, "" for nothing. Raises LinkError.

    The broker itself names one argument that differs, perhaps not the one that tells most.
    """
    told = await control.mismatch(wanted)
    queue = next((queue for queue in wanted.queues if f"'{queue.name}'" in told), None)
    if queue is None or not management.is_there:
        return told
    try:
        exists = await management.arguments(queue.name)
    except ManagementUnavailable:
        return told
    return f"queue '{queue.name}': {differences(queue, exists) or told}"


def differences(queue: QueueSpec, exists: Mapping[str, Any]) -> str:
    """What is wanted and what exists, argument by argument; the broker does not compare `mb-born`."""
    wanted = {"durable": True, **queue.arguments}
    keys = [key for key in dict.fromkeys([*wanted, *exists]) if key != BORN]
    # A queue that was declared without a type is a classic one.
    exists = {"x-queue-type": "classic", **exists}
    return ", ".join(
        f"{key} is wanted {_shown(wanted, key)} and exists {_shown(exists, key)}"
        for key in keys
        if wanted.get(key) != exists.get(key)
    )


def _shown(arguments: Mapping[str, Any], key: str) -> str:
    return repr(arguments[key]) if key in arguments else "none"
