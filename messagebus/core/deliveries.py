"""Deliveries: which the application gets next, and the link that each answer must go to.

`Ledger`: deliveries without an answer, and whether it still can be sent. Each link to a broker has a
ledger of its own, and a delivery belongs to the one that it was entered into. An answer to an earlier
link never matches, because that ledger has ended; its broker has requeued the message long ago, and the
tag now means another. Acknowledgements are coalesced: `flush` returns the fewest acks that answer
everything answered since the last call and nothing else. Only a prefix of tags without a gap becomes one
``multiple``. A delivery may hold several messages (a batch): it has as many parts, each with an answer of
its own, and the broker gets its ack when every part has one.

`FanIn`: deliveries of many brokers as one stream, fairly, under one limit; knows no messages, only items.
Each broker's deliveries keep their order; brokers take turns, so none starves. The application holds at
most `handed_out_max` deliveries over all brokers together. The buffers are bounded by each link's prefetch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

NOT_OWED = object()

T = TypeVar("T")


class Receipt(NamedTuple):
    """The permanent name of one delivery: broker ``host:port``, link to it, AMQP delivery tag.

    epoch: counts the links to that broker. tag: of that link. part: 0 for a message that came alone,
    else its place in its batch, from 1.
    """

    broker: str
    epoch: int
    tag: int
    part: int = 0


class Ack(NamedTuple):
    """The order to send basic.ack on the link of this ledger."""

    tag: int
    multiple: bool


class Ledger:
    """The unanswered deliveries of one link. epoch: counts the links to its broker; fence: of `Delivery`.

    by: the `Ledgers` of the consumer whose link it is; None for a ledger of nobody.
    """

    __slots__ = (
        *("_behind_copies", "_claimed", "_owed", "_parts"),
        *(
            "acked",
            "broker",
            "by",
            "epoch",
            "fence",
            "is_kept",
            "is_live",
            "kept",
            "nacks",
            "rejected",
        ),
    )

    def __init__(self, broker: str, epoch: int, by: Ledgers | None = None) -> None:
        self.broker, self.epoch, self.fence, self.by = broker, epoch, 0, by
        self.is_live = True
        """True until `end`. May be read from any thread."""
        # Tags without an answer, in the order of delivery; none once the link has ended.
        self._owed: dict[int, None] = {}
        # Deliveries of one message that are being answered by a copy, still without an answer.
        self._claimed: set[int] = set()
        self.acked: list[int] = []
        """Answered by ack and not yet sent: `flush` is needed."""
        self._behind_copies = 0  # number of these that follow a copy, or complete a batch
        self._parts: dict[int, _Parts] = {}  # of the owed tags that are batches
        self.nacks: list[tuple[int, bool]] = []
        """Tag and requeue of deliveries answered by nack: the caller takes them out and sends them, before
        the acks of the next `flush`.
        """
        self.rejected: list[int] = []
        """Batches that have all their answers, one of them `claim_refused`: the caller takes them out and
        rejects them, so that the broker parks them whole.
        """
        self.is_kept = False
        """True when nothing of this link may go to the application any more, nor wait for another run."""
        self.kept: list[Any] = []
        """Deliveries that are not handed out, because the link is about to end: they go back with it."""

    def delivered(self, tags: Iterable[int]) -> None:
        """Enter deliveries that hold one message each."""
        self._owed.update(dict.fromkeys(tags))

    def batch_delivered(self, tag: int, parts: int, content: tuple[bytes, bytes]) -> None:
        """Enter a delivery that holds several; content: properties and body, for `half_answered`."""
        self._owed[tag] = None
        self._parts[tag] = _Parts(parts, content)

    def ack(self, tag: int, part: int = 0) -> bool:
        """Answer by ack. True exactly once, and only while the link lives: `flush` returns the ack then."""
        if part:
            parts = self._parts.get(tag)
            if parts is None or part not in parts.open:
                return False
            parts.open.remove(part)
            parts.undone -= 1
            if not parts.undone:
                self._complete(tag, parts)
            return True
        if self._owed.pop(tag, NOT_OWED) is NOT_OWED:
            return False
        self.acked.append(tag)
        return True

    def nack(self, tag: int, *, requeue: bool = True) -> bool:
        """Answer by nack, as `ack`, a delivery that is no batch. See `nacks`."""
        if self._owed.pop(tag, NOT_OWED) is NOT_OWED:
            return False
        self.nacks.append((tag, requeue))
        return True

    def as_one(self, tag: int, parts: int) -> tuple[bytes, bytes] | None:
        """Turn a batch that nobody has seen into one message with one answer; return its content.

        parts: number of its messages that nobody has seen. None, and no change, when somebody has the others.
        """
        found = self._parts.get(tag)
        if found is None or found.count != parts or len(found.open) != parts:
            return None
        del self._parts[tag]
        return found.content

    def claim(self, tag: int, part: int) -> bool:
        """Claim this delivery, or this part of one, for an answer. True exactly once, while the link lives.

        `claim_done` follows when the answer's precondition (a copy elsewhere) is done.
        """
        if not part:
            if self._owed.pop(tag, NOT_OWED) is NOT_OWED:
                return False
            self._claimed.add(tag)
            return True
        parts = self._parts.get(tag)
        if parts is None or part not in parts.open or not self.is_live:
            return False
        parts.open.remove(part)
        return True

    def claim_done(self, tag: int, part: int) -> bool:
        """Answer a claimed delivery; the last part of a batch acks it. False: the link has ended."""
        if not self.is_live:
            return False
        if not part:
            self._claimed.remove(tag)
            self.acked.append(tag)
            self._behind_copies += 1
            return True
        parts = self._parts.get(tag)
        if parts is None:
            return False
        parts.undone -= 1
        if not parts.undone:
            self._complete(tag, parts)
        return True

    def _complete(self, tag: int, parts: _Parts) -> None:
        """Answer a batch of which every part has its answer."""
        del self._parts[tag], self._owed[tag]
        (self.rejected if parts.refused else self.acked).append(tag)
        self._behind_copies += not parts.refused

    def claim_refused(self, tag: int, part: int = 0) -> bool:
        """End a claim whose answer is not possible. False: the link has ended.

        A message that came alone is rejected by a nack. The caller rejects a batch as a whole, when the
        last part has its answer: see `rejected`.
        """
        if not self.is_live:
            return False
        if not part:
            self._claimed.remove(tag)
            self.nacks.append((tag, False))
            return True
        self._parts[tag].refused = True
        return self.claim_done(tag, part)

    def flush(self) -> list[Ack]:
        """Return the acks to send now. Afterwards nothing answered is unsent."""
        if not self.acked:
            return []
        acked, self.acked = self.acked, []
        self._behind_copies = 0
        # Every tag below the lowest owed one has its answer; a nack in between is sent before, so
        # "multiple" up to the highest acked tag below that touches nothing else.
        lowest_owed = next(iter(self._owed), None)
        if self._claimed:
            lowest_claimed = min(self._claimed)
            if lowest_owed is None or lowest_claimed < lowest_owed:
                lowest_owed = lowest_claimed
        if lowest_owed is None:
            return [Ack(max(acked), len(acked) > 1)]
        prefix = [tag for tag in acked if tag < lowest_owed]
        acks = [Ack(max(prefix), len(prefix) > 1)] if prefix else []
        return acks + [Ack(tag, False) for tag in sorted(acked) if tag > lowest_owed]

    @property
    def unsent(self) -> int:
        """The number of acks that `flush` has not given out, without those behind copies and of batches."""
        return len(self.acked) - self._behind_copies

    @property
    def owed(self) -> int:
        return len(self._owed) + len(self._claimed)

    @property
    def is_claimed(self) -> bool:
        """True when any claim is not done."""
        return bool(self._claimed) or any(not parts.is_quiet for parts in self._parts.values())

    def open_parts(self, tag: int) -> list[int]:
        """Return the parts of a batch that nobody answers yet."""
        parts = self._parts.get(tag)
        return sorted(parts.open) if parts is not None else []

    def unanswered(self, tag: int) -> int:
        """Return how many messages of an unacknowledged delivery have no answer, or one that is under way."""
        parts = self._parts.get(tag)
        return 1 if parts is None else parts.undone

    def content(self, tag: int) -> tuple[bytes, bytes] | None:
        """Return properties and body of a batch that is owed."""
        parts = self._parts.get(tag)
        return None if parts is None else parts.content

    def half_answered(self) -> list[tuple[int, list[int], tuple[bytes, bytes]]]:
        """Return batches with some parts answered: tag, the parts that nobody answers yet, content.

        A part whose answer is under way counts as answered.
        """
        return [
            (tag, sorted(parts.open), parts.content)
            for tag, parts in self._parts.items()
            if 0 < len(parts.open) < parts.count
        ]

    def answered_for_good(self) -> list[tuple[list[int], tuple[bytes, bytes]]]:
        """Return the `half_answered` batches where no answer is under way, without their tags."""
        return [
            (unanswered, content)
            for tag, unanswered, content in self.half_answered()
            if self._parts[tag].is_quiet
        ]

    def end(self) -> int:
        """End the ledger of a lost link. Returns how many deliveries it still owed an answer for."""
        self.is_live = False
        owed = self.owed
        self._owed.clear()
        self._claimed.clear()
        self.acked.clear()
        self._behind_copies = 0
        self.nacks.clear()
        self._parts.clear()
        self.rejected.clear()
        return owed


class _Parts:
    __slots__ = ("content", "count", "open", "refused", "undone")

    def __init__(self, count: int, content: tuple[bytes, bytes]) -> None:
        self.count = self.undone = count
        self.content = content
        self.refused = False
        self.open = set(range(1, count + 1))

    @property
    def is_quiet(self) -> bool:
        """True when each part is either answered or open: no answer is under way."""
        return self.undone == len(self.open)


class Ledgers:
    """The factory of ledgers, one for each link."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}

    def connected(self, broker: str) -> Ledger:
        """Return the ledger of a new link to this broker; its epoch is one more than that of the last."""
        epoch = self._epochs[broker] = self._epochs.get(broker, 0) + 1
        return Ledger(broker, epoch, self)


class _Buffer(Generic[T]):
    """One link's buffer: items waiting for the application, and the number that it holds."""

    __slots__ = ("handed_out", "items")

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self.handed_out = 0


class FanIn(Generic[T]):
    """Buffers of all links, one to a broker. link: any name of one. Not thread-safe."""

    def __init__(self, handed_out_max: int) -> None:
        assert handed_out_max > 0
        self._handed_out_max = self._limit = handed_out_max
        self._buffers: dict[Hashable, _Buffer[T]] = {}
        self.turns: deque[_Buffer[T]] = deque()
        """Buffers that are not empty; the first one is next, then it goes to the end."""
        self.handed_out = 0
        """Deliveries held by the application, over all brokers."""

    def arrived(self, link: Hashable, items: Iterable[T]) -> None:
        """Append deliveries that came in, at least one."""
        buffer = self._buffers.get(link)
        if buffer is None:
            buffer = self._buffers[link] = _Buffer()
        if not buffer.items:
            self.turns.append(buffer)
        buffer.items.extend(items)

    def take(self) -> T | None:
        """Return the next delivery for the application; None for none, or it holds enough."""
        turns = self.turns
        if not turns or self.handed_out >= self._limit:
            return None
        buffer = turns[0]
        item = buffer.items.popleft()
        if not buffer.items:
            turns.popleft()
        elif len(turns) > 1:
            turns.rotate(-1)
        buffer.handed_out += 1
        self.handed_out += 1
        return item

    def pause(self) -> None:
        """Hand out nothing until `resume`."""
        self._limit = 0

    def resume(self) -> None:
        self._limit = self._handed_out_max

    def answered(self, link: Hashable) -> None:
        """Record the application's answer to one delivery of this live link."""
        buffer = self._buffers[link]
        assert buffer.handed_out > 0
        buffer.handed_out -= 1
        self.handed_out -= 1

    def dropped(self, link: Hashable) -> int:
        """Drop the buffer of a lost link. Returns how many buffered deliveries went with it.

        Deliveries that the application still holds no longer count: no answer to them will be sent.
        """
        buffer = self._buffers.pop(link, None)
        if buffer is None:
            return 0
        self.handed_out -= buffer.handed_out
        if buffer.items:
            self.turns.remove(buffer)
        return len(buffer.items)

    def oldest(self, link: Hashable) -> T | None:
        """Return the next delivery of this link to hand out; None when there is none."""
        buffer = self._buffers.get(link)
        return buffer.items[0] if buffer is not None and buffer.items else None

    def put_back(self, link: Hashable, items: Iterable[T]) -> None:
        """Put back the deliveries taken last, which nobody saw: they come next again, in this order."""
        returned = list(items)
        if not returned:
            return
        buffer = self._buffers[link]
        if not buffer.items:
            self.turns.append(buffer)
        buffer.items.extendleft(reversed(returned))
        buffer.handed_out -= len(returned)
        self.handed_out -= len(returned)

    def holds(self, link: Hashable) -> bool:
        """Return whether deliveries of this link wait here or are held by the application."""
        buffer = self._buffers.get(link)
        return buffer is not None and bool(buffer.items or buffer.handed_out)

    def withdraw(self, link: Hashable) -> list[T]:
        """Take all deliveries of this link out of its buffer: they were never handed out."""
        buffer = self._buffers.get(link)
        if buffer is None or not buffer.items:
            return []
        self.turns.remove(buffer)
        items = list(buffer.items)
        buffer.items.clear()
        return items

    @property
    def is_full(self) -> bool:
        """True when the application holds as many deliveries as it may."""
        return self.handed_out >= self._handed_out_max

    @property
    def buffered(self) -> int:
        return sum(len(buffer.items) for buffer in self.turns)
