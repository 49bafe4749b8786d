"""Publishes on one link: batches of messages that travel together, and messages without an answer.

`ConfirmWindow` interprets the broker's answers. The broker counts publishes of a channel from 1 and
answers with tags: one, or all up to one (``multiple``), where 0 means all so far. A message that no
queue took is returned first and acked after, so a return only marks it.

Every item that `fill` takes comes back exactly once: from `answered` or from `abandon`.

`Batch` is several messages of one destination as one AMQP message, bounded by messages and bytes. A
lingering batch waits outside the backlog for more messages until it is full or its time has come. Any other
batch joins the backlog at once and takes more messages until it is sent, so waiting messages travel
together. `core.pending` fills batches. Nothing is encoded or sent here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar


class Packing(NamedTuple):
    """Bounds of the batches of one destination. linger_ms: 0 packs only messages that wait anyway."""

    count_max: int
    bytes_max: int
    linger_ms: int


class Packed(Protocol):
    message_id: str
    destination: str
    size: int


PackedT = TypeVar("PackedT", bound=Packed)


class Batch(Generic[PackedT]):
    """One publish of several items. message_id: its own on the wire, equal to its first item's."""

    __slots__ = ("destination", "due_ms", "items", "message_id", "size")

    def __init__(self, first: PackedT) -> None:
        self.items = [first]
        self.destination, self.message_id, self.size = (
            first.destination,
            first.message_id,
            first.size,
        )
        self.due_ms: int | None = None

    def keep(self, items: list[PackedT]) -> None:
        """Keep only these items, at least one."""
        self.items, self.message_id = items, items[0].message_id
        self.size = sum(item.size for item in items)


class Bodies(list[bytes]):
    """Plain bodies that fill a batch; a type of its own, because a list may be a payload."""


def bundled(payloads: Iterable[Any], packing: Packing) -> Iterator[Any]:
    """Group payloads, in order: plain bodies that fill a batch together, all others unchanged.

    An error that the iterable raises follows behind the payloads before it.
    """
    bodies = Bodies()
    size, count_max, bytes_max = 0, packing.count_max, packing.bytes_max
    failed: Exception | None = None
    try:
        for payload in payloads:
            is_plain = isinstance(payload, bytes) and len(payload) < bytes_max
            if bodies and (
                not is_plain or len(bodies) == count_max or size + len(payload) > bytes_max
            ):
                yield bodies
                bodies, size = Bodies(), 0
            if is_plain:
                bodies.append(payload)
                size += len(payload)
            else:
                yield payload
    except Exception as fault:
        failed = fault
    if bodies:
        yield bodies
    if failed is not None:
        raise failed


class Identified(Protocol):
    """An item of a window: a publish with its destination, an id and a size in bytes."""

    destination: str
    message_id: str
    size: int


ItemT = TypeVar("ItemT", bound=Identified)


@dataclass(slots=True)
class _Fill:
    """Publishes sent at once. end: their place in the stream of bytes of the link, 0 where it has none."""

    last_tag: int
    sent_ms: int
    end: int = 0


class ConfirmWindow(Generic[ItemT]):
    """The unanswered publishes of one link, bounded by messages and by bytes.

    One message larger than the bound in bytes still goes, alone.
    """

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        assert messages_max > 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._last_tag = 0
        self._lowest = 1  # no tag below it is open, so `multiple` costs no search
        self._open: dict[int, ItemT] = {}
        self._sent: deque[_Fill] = deque()
        self._returned: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def answered_count(self) -> int:
        """The number of publishes that have been answered."""
        return self._last_tag - len(self._open)

    def fill(self, queue: deque[ItemT], now_ms: int) -> list[ItemT]:
        """Take as many items off the queue as there is room for, in order: they are sent now.

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
            self._sent.append(_Fill(tag, now_ms))
        return taken

    def returned(self, destination: str, message_id: str) -> None:
        """Record that the broker sent this message back; its ack follows.

        Applications choose ids, so several open publishes may have one id: each return marks one of
        them, and only of the destination that it names.
        """
        self._returned[destination, message_id] += 1

    def answered(self, tag: int, *, multiple: bool) -> tuple[list[ItemT], list[ItemT]]:
        """Record the broker's ack or nack. Returns the answered items, oldest first, in two lists.

        The answer applies to the first list; the items of the second were returned before and are unroutable.
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
            name = (item.destination, item.message_id)
            if not self._returned[name]:
                kept.append(item)
            else:
                unroutable.append(item)
                self._returned[name] -= 1
        self._returned += Counter()  # drops counts of zero
        return kept, unroutable

    def abandon(self) -> list[ItemT]:
        """Empty the window of a lost link. Returns everything that was open, oldest first."""
        left = list(self._open.values())
        self._open.clear()
        self._returned.clear()
        self._sent.clear()
        self._bytes = 0
        self._lowest = self._last_tag + 1
        return left

    def replace(self, stand_in: Callable[[ItemT], ItemT]) -> None:
        """Put what this returns in the place of each open item, oldest first; of the same size in bytes."""
        for tag, item in self._open.items():
            self._open[tag] = stand_in(item)

    def _forget_answered(self) -> None:
        while self._lowest not in self._open and self._lowest <= self._last_tag:
            self._lowest += 1
        while self._sent and self._sent[0].last_tag < self._lowest:
            self._sent.popleft()

    def oldest_ms(self) -> int | None:
        """Return the time at which the oldest open publish was sent; None when nothing is open.

        Of one that `leaving` found on its way, the last such time.
        """
        return self._sent[0].sent_ms if self._sent else None

    def written(self, end: int) -> None:
        """Record where in the link's stream of bytes the publishes end that `fill` has just taken."""
        self._sent[-1].end = end

    def leaving(self, taken: int, now_ms: int) -> None:
        """Record that the other side takes bytes, and has taken so many of the stream.

        What it has not got whole cannot be answered yet, however long the line needs for it.
        """
        for fill in reversed(self._sent):
            if fill.end <= taken:
                break
            fill.sent_ms = now_ms

    def items(self) -> Iterable[ItemT]:
        """Return everything open, oldest first."""
        return self._open.values()
