"""Deliveries of many brokers as one stream, fairly, under one limit.

Decides which delivery the application gets next; knows no messages, only items. Each broker's deliveries
keep their order; brokers take turns, so none starves. The application holds at most `handed_out_max`
deliveries over all brokers together. The buffers are bounded by each link's prefetch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

__all__ = ["FanIn"]

T = TypeVar("T")


class _Buffer(Generic[T]):
    """One broker's buffer: items waiting for the application, and the number that it holds."""

    __slots__ = ("handed_out", "items")

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self.handed_out = 0


class FanIn(Generic[T]):
    """Buffers of all brokers. Not thread-safe."""

    def __init__(self, handed_out_max: int) -> None:
        assert handed_out_max > 0
        self._handed_out_max = handed_out_max
        self._buffers: dict[str, _Buffer[T]] = {}
        # Buffers that are not empty; the first one is next, then it goes to the end.
        self._turns: deque[_Buffer[T]] = deque()
        self.handed_out = 0
        """Deliveries held by the application, over all brokers."""

    def arrived(self, broker: str, items: Iterable[T]) -> None:
        """Append deliveries that came in, at least one."""
        buffer = self._buffers.get(broker)
        if buffer is None:
            buffer = self._buffers[broker] = _Buffer()
        if not buffer.items:
            self._turns.append(buffer)
        buffer.items.extend(items)

    def take(self) -> T | None:
        """Return the next delivery for the application; None when there is none or it holds enough."""
        turns = self._turns
        if not turns or self.handed_out >= self._handed_out_max:
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

    def answered(self, broker: str) -> None:
        """Record the application's answer to one delivery of this broker's live link."""
        buffer = self._buffers.get(broker)
        assert buffer is not None
        assert buffer.handed_out > 0
        buffer.handed_out -= 1
        self.handed_out -= 1

    def dropped(self, broker: str) -> int:
        """Drop the buffer of a lost link. Returns how many buffered deliveries went with it.

        Deliveries that the application still holds no longer count: no answer to them will be sent.
        """
        buffer = self._buffers.pop(broker, None)
        if buffer is None:
            return 0
        self.handed_out -= buffer.handed_out
        if buffer.items:
            self._turns.remove(buffer)
        return len(buffer.items)

    def oldest(self, broker: str) -> T | None:
        """Return the next delivery of this broker to hand out; None when there is none."""
        buffer = self._buffers.get(broker)
        return buffer.items[0] if buffer is not None and buffer.items else None

    def put_back(self, broker: str, items: Iterable[T]) -> None:
        """Put back the deliveries taken last, which nobody saw: they come next again, in this order."""
        returned = list(items)
        if not returned:
            return
        buffer = self._buffers[broker]
        if not buffer.items:
            self._turns.append(buffer)
        buffer.items.extendleft(reversed(returned))
        buffer.handed_out -= len(returned)
        self.handed_out -= len(returned)

    def holds(self, broker: str) -> bool:
        """Return whether deliveries of this broker wait here or are held by the application."""
        buffer = self._buffers.get(broker)
        return buffer is not None and bool(buffer.items or buffer.handed_out)

    def withdraw(self, broker: str) -> list[T]:
        """Take all deliveries of this broker out of its buffer: they were never handed out."""
        buffer = self._buffers.get(broker)
        if buffer is None or not buffer.items:
            return []
        self._turns.remove(buffer)
        items = list(buffer.items)
        buffer.items.clear()
        return items

    @property
    def is_full(self) -> bool:
        """True when the application holds as many deliveries as it may."""
        return self.handed_out >= self._handed_out_max

    @property
    def buffered(self) -> int:
        return sum(len(buffer.items) for buffer in self._turns)
