"""Who fetched the list from this agent, and which generation they have applied.

A client asks one agent at a time, so the truth is the union over all agents, newest wins. Time
comes in as whole milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

__all__ = ["CLIENTS_MAX", "EXPIRY_MS", "TEXT_MAX", "Client", "Clients"]

# A waiting fetch takes up to 60 s and is followed by the next one.
EXPIRY_MS = 90_000
# One that hung up while it waited has ended, or asks again within its back-off.
LEFT_MS = 10_000
# 10,000 consumers are planned for, over all agents; beyond this the longest silent one is forgotten.
CLIENTS_MAX = 20_000
# Of an id, and of a subscription with its topic: as long as AMQP lets a name be.
TEXT_MAX = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client's last word. applied: generation that it works by, 0 for none yet."""

    id: str
    subscription: str
    applied: int
    age_ms: int


class Clients:
    """The clients of one agent."""

    def __init__(self) -> None:
        # (id, subscription) -> (applied, when), longest silent first
        self._seen: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def seen(self, client_id: str, subscription: str, applied: int, now_ms: int) -> None:
        """A client asks, or was waiting until now."""
        key = _key(client_id, subscription)
        self._seen[key] = (applied, now_ms)
        self._seen.move_to_end(key)
        if len(self._seen) > CLIENTS_MAX:
            self._seen.popitem(last=False)

    def left(self, client_id: str, subscription: str, now_ms: int) -> None:
        """It hung up: it is forgotten LEFT_MS from now unless it is seen again."""
        key = _key(client_id, subscription)
        if (known := self._seen.get(key)) is not None:
            self._seen[key] = (known[0], min(known[1], now_ms - EXPIRY_MS + LEFT_MS))
            self._seen.move_to_end(key, last=False)

    def living(self, now_ms: int) -> list[Client]:
        """Everybody heard of within EXPIRY_MS; the rest is forgotten."""
        for key in [key for key, (_, at_ms) in self._seen.items() if now_ms - at_ms > EXPIRY_MS]:
            del self._seen[key]
        return [
            Client(id=client_id, subscription=subscription, applied=applied, age_ms=now_ms - when)
            for (client_id, subscription), (applied, when) in self._seen.items()
        ]


def _key(client_id: str, subscription: str) -> tuple[str, str]:
    return client_id[:TEXT_MAX], subscription[:TEXT_MAX]
