"""Entries that the broker refused to declare, and the differences of existing from wanted arguments.

A refused entry is not declared at every turn, so the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from messagebus._io.amqp.control import Control
from messagebus.services.agent.broker.management import Management, ManagementUnavailable
from messagebus.services.agent.topology.register import Entry
from messagebus.topology import BORN, Declarations, QueueSpec

# An entry that the broker refused is tried again after this time; the others do not wait for it.
REFUSED_RETRY_S = 5.0
# A look for one queue costs the broker 3 ms, a list of 1,000 queues 100 ms: so many names are worth a list.
LISTED_FROM = 32
MQTT_REFUSED = "mqtt: "


@dataclass(frozen=True, slots=True)
class _Refused:
    entry: Entry
    reason: str
    retry_at_s: float


class Refusals:
    """The refused entries, by name."""

    def __init__(self) -> None:
        self._refused: dict[str, _Refused] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._refused

    def refused(self, entry: Entry, reason: str) -> None:
        retry_at_s = time.monotonic() + REFUSED_RETRY_S
        self._refused[entry.wanted] = _Refused(entry, reason, retry_at_s)

    def taken(self, name: str) -> None:
        """Drop the refusal of an entry that the broker has now."""
        self._refused.pop(name, None)

    def keep(self, names: Mapping[str, Entry]) -> None:
        """Drop the refusals of other entries: those that live no more, or have changed."""
        for name, refused in list(self._refused.items()):
            if names.get(name) != refused.entry:
                del self._refused[name]

    def __len__(self) -> int:
        return len(self._refused)

    @property
    def is_due(self) -> bool:
        """True when one of them is to be tried again."""
        return any(not self.rests(refused.entry) for refused in self._refused.values())

    def is_about_a_queue(self, name: str) -> bool:
        """Return whether a queue is refused, by the text of `messagebus._io.amqp.control.mismatch_text`."""
        return name in self and self._refused[name].reason.startswith("queue ")

    def is_about_mqtt(self, entry: Entry) -> bool:
        """Return whether only the way from MQTT's exchange to exactly this topic's is refused."""
        refused = self._refused.get(entry.wanted)
        return (
            refused is not None
            and refused.entry == entry
            and refused.reason.startswith(MQTT_REFUSED)
        )

    def rests(self, entry: Entry) -> bool:
        """Return whether exactly this entry was refused within REFUSED_RETRY_S."""
        refused = self._refused.get(entry.wanted)
        if refused is None or refused.entry != entry:
            return False
        return time.monotonic() < refused.retry_at_s

    def reasons(self, names: Iterable[str]) -> list[str]:
        return [f"{name}: {self._refused[name].reason}" for name in names if name in self]


async def mismatch_on(
    control: Control, management: Management, all_wanted: Iterable[Declarations]
) -> str:
    """Describe how existing parts differ from wanted ones, "" for nothing. Raises LinkError.

    The broker itself names one argument that differs, perhaps not the most telling one. Each look costs a
    channel: of many queues those that do not exist are left out, and no exchange is looked at twice.
    """
    told, seen, all_wanted = list[str](), set[str](), list(all_wanted)
    there = await _queues_of(management) if len(all_wanted) >= LISTED_FROM else None
    for wanted in all_wanted:
        exchanges = tuple(each for each in wanted.exchanges if each.name not in seen)
        seen.update(each.name for each in exchanges)
        queues = tuple(each for each in wanted.queues if there is None or each.name in there)
        part = replace(wanted, exchanges=exchanges, queues=queues)
        if differs := await _mismatch_on(control, management, part):
            told.append(differs)
    return "; ".join(told)


async def _queues_of(management: Management) -> Collection[str] | None:
    """Return the names of the queues of a broker, None where they are not known."""
    if not management.is_there:
        return None
    try:
        return await management.births()
    except ManagementUnavailable:
        return None


async def _mismatch_on(control: Control, management: Management, wanted: Declarations) -> str:
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
    """List wanted and existing values of differing arguments; the broker does not compare `mb-born`."""
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
