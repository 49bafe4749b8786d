"""Which brokers are one consumer's own, where a full mesh would be too many links.

Rendezvous hashing: each broker is drawn to every slot with a strength of its own and belongs to the
`cover` slots that draw it most. All consumers of a subscription compute the same without talking, and
one more broker or slot moves only its own share. Linear in the brokers, for a number of slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

__all__ = ["Subset"]


class Subset:
    """One consumer's place among those of its subscription.

    slot: 0 to slots - 1, another one for each consumer. cover: so many consumers take each broker.
    """

    def __init__(self, *, slot: int, slots: int, cover: int) -> None:
        assert 0 <= slot < slots
        assert cover > 0
        self._slot, self._slots, self._cover = slot, slots, cover

    def of(self, brokers: Iterable[str]) -> frozenset[str]:
        """Those that are ours."""
        return frozenset(broker for broker in brokers if self._is_ours(broker))

    def _is_ours(self, broker: str) -> bool:
        own = _draw(broker, self._slot)
        stronger = 0
        for slot in range(self._slots):
            stronger += _draw(broker, slot) > own
            if stronger >= self._cover:
                return False
        return True


def _draw(broker: str, slot: int) -> tuple[bytes, int]:
    return blake2b(f"{broker} {slot}".encode(), digest_size=8).digest(), slot
