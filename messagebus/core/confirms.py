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

__all__ = ["ConfirmWindow", "Identified"]


class Identified(Protocol):
    """What a window holds: a publish with its destination's lane, an id and a size in bytes."""

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

    def answered(self, tag: int, *, multiple: bool) -> tuple[list[ItemT], list[ItemT]]:
        """The broker's ack or nack. Returns what it answers, oldest first, in two parts.

        The first part is what the answer means; the second was returned before and is unroutable.
        """
        if multiple:
            last = min(tag or self._last_tag, self._last_tag)
            tags, self._lowest = range(self._lowest, last + 1), max(self._lowest, last + 1)
        else:
            tags = range(tag, tag + 1)
        answered = []
        for each in tags:
            item = self._open.pop(each, None)
            if item is not None:
                self._bytes -= item.size
                answered.append(item)
        while self._lowest not in self._open and self._lowest <= self._last_tag:
            self._lowest += 1
        return self._part(answered) if self._returned else (answered, [])

    def _part(self, answered: list[ItemT]) -> tuple[list[ItemT], list[ItemT]]:
        kept, unroutable = [], []
        for item in answered:
            name = (item.lane, item.message_id)
            if not self._returned[name]:
                kept.append(item)
            else:
                unroutable.append(item)
                self._returned[name] -= 1
        self._returned += Counter()  # forgets what counts zero
        return kept, unroutable

    def abandon(self) -> list[ItemT]:
        """The link is gone: everything open, oldest first. Nothing is open afterwards."""
        left = list(self._open.values())
        self._open.clear()
        self._returned.clear()
        self._bytes = 0
        self._lowest = self._last_tag + 1
        return left

    def oldest(self) -> ItemT | None:
        """The publish that has waited longest."""
        while self._lowest not in self._open and self._lowest <= self._last_tag:
            self._lowest += 1
        return self._open.get(self._lowest)

    def items(self) -> Iterable[ItemT]:
        """Everything open, oldest first."""
        return self._open.values()
