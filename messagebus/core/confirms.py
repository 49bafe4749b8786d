"""The publishes on one link that the broker has not answered yet.

Decides what an answer means; sends nothing. The broker counts publishes of a channel from 1 and
answers with tags: one, or all up to one (``multiple``), where 0 means all so far. A message that no
queue took is returned first and acked after, so a return only marks it.

Every item that `fill` takes comes back exactly once: from `answered` or from `abandon`.
"""

from __future__ import annotations

from collections import Counter, deque
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
        self._sent: deque[tuple[int, int]] = deque()  # the last tag of each `fill`, and when
        self._returned: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def fill(self, queue: deque[ItemT], now_ms: int) -> list[ItemT]:
        """Take what there is room for off the queue, in order: it is sent now.

        Tags count as the broker counts.
        """
        taken: list[ItemT] = []
        is_open, tag, held = self._open, self._last_tag, self._bytes
        room = self._messages_max - len(is_open)
        while queue and len(taken) < room:
            size = queue[0].size
            if held + size > self._bytes_max and is_open:
                break
            tag += 1
            held += size
            item = is_open[tag] = queue.popleft()
            taken.append(item)
        if taken:
            self._last_tag, self._bytes = tag, held
            self._sent.append((tag, now_ms))
        return taken

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
        answered, size, pop = [], 0, self._open.pop
        for each in tags:
            item = pop(each, None)
            if item is not None:
                size += item.size
                answered.append(item)
        self._bytes -= size
        self._forget_answered()
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
        self._sent.clear()
        self._bytes = 0
        self._lowest = self._last_tag + 1
        return left

    def _forget_answered(self) -> None:
        while self._lowest not in self._open and self._lowest <= self._last_tag:
            self._lowest += 1
        while self._sent and self._sent[0][0] < self._lowest:
            self._sent.popleft()

    def oldest_ms(self) -> int | None:
        """When the publish was sent that has waited longest; None when nothing is open."""
        return self._sent[0][1] if self._sent else None

    def items(self) -> Iterable[ItemT]:
        """Everything open, oldest first."""
        return self._open.values()
