"""The publishes on one link that the broker has not answered yet.

Decides what an answer means; sends nothing. The broker counts publishes of a channel from 1 and
answers with tags: one, or all up to one (``multiple``), where 0 means all so far. A message that no
queue took is returned first and acked after, so a return only marks it.

Every item handed to `add` comes back exactly once: from `answered` or from `abandon`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

__all__ = ["CONFIRMED", "REFUSED", "UNROUTABLE", "ConfirmWindow", "Identified"]

CONFIRMED, REFUSED, UNROUTABLE = "confirmed", "refused", "unroutable"


class Identified(Protocol):
    """What a window holds: a publish with its destination's exchange, an id and a size in bytes."""

    lane: str
    message_id: str
    size: int


ItemT = TypeVar("ItemT", bound=Identified)


class ConfirmWindow(Generic[ItemT]):
    """Bounded by messages and by bytes; one message larger than all bytes still goes, alone."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        assert messages_max > 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._last_tag = 0
        self._lowest = 1  # no tag below it is open, so `multiple` costs no search
        self._open: dict[int, ItemT] = {}
        self._returned: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def has_room(self, size: int) -> bool:
        """Whether a message of that many bytes may be sent now."""
        if len(self._open) >= self._messages_max:
            return False
        return self._bytes + size <= self._bytes_max or not self._open

    def add(self, item: ItemT) -> int:
        """The item is sent now; returns its tag, counted as the broker counts."""
        self._last_tag += 1
        self._open[self._last_tag] = item
        self._bytes += item.size
        return self._last_tag

    def returned(self, lane: str, message_id: str) -> None:
        """The broker sent this message back; its ack follows.

        Applications choose ids, so several open publishes may bear one: each return marks one of
        them, and only of the lane that it names.
        """
        self._returned[lane, message_id] += 1

    def answered(self, tag: int, *, multiple: bool, ok: bool) -> list[tuple[ItemT, str]]:
        """The broker's ack (ok) or nack. Returns the items it settles with outcomes, oldest first."""
        settled = []
        for each in self._tags(tag, multiple):
            item = self._open.pop(each, None)
            if item is not None:
                self._bytes -= item.size
                settled.append((item, self._outcome(item, ok)))
        if self._open:
            self._lowest = max(self._lowest, next(iter(self._open)))
        else:
            self._lowest = self._last_tag + 1
        return settled

    def _tags(self, tag: int, multiple: bool) -> range:
        if not multiple:
            return range(tag, tag + 1)
        return range(self._lowest, min(tag or self._last_tag, self._last_tag) + 1)

    def _outcome(self, item: ItemT, ok: bool) -> str:
        name = (item.lane, item.message_id)
        marks = self._returned.pop(name, 0)
        if not marks:
            return CONFIRMED if ok else REFUSED
        if marks > 1:
            self._returned[name] = marks - 1
        return UNROUTABLE

    def oldest(self) -> ItemT | None:
        """The item that has waited longest for its answer."""
        return self._open[next(iter(self._open))] if self._open else None

    def items(self) -> Iterable[ItemT]:
        """All that wait for an answer, oldest first."""
        return self._open.values()

    def abandon(self) -> list[ItemT]:
        """The link is gone: nobody will ever answer these. Oldest first."""
        items = list(self._open.values())
        self._open.clear()
        self._returned.clear()
        self._bytes = 0
        return items
