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
# 10,000 consumers are planned for, over all agents; beyond this the longest silent one is forgotten.
CLIENTS_MAX = 20_000
TEXT_MAX = 200


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
        key = (client_id[:TEXT_MAX], subscription[:TEXT_MAX])
        self._seen[key] = (applied, now_ms)
        self._seen.move_to_end(key)
        if len(self._seen) > CLIENTS_MAX:
            self._seen.popitem(last=False)

    def living(self, now_ms: int) -> list[Client]:
        """Everybody heard of within EXPIRY_MS; the rest is forgotten."""
        while self._seen:
            key, (_applied, when_ms) = next(iter(self._seen.items()))
            if now_ms - when_ms <= EXPIRY_MS:
                break
            del self._seen[key]
        return [
            Client(id=client_id, subscription=subscription, applied=applied, age_ms=now_ms - when)
            for (client_id, subscription), (applied, when) in self._seen.items()
        ]
