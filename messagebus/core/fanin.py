"""Many brokers' deliveries as one stream, fairly, under one limit.

Decides what the application gets next; knows no messages, only items. Each broker's deliveries keep
their order; brokers take turns, so none starves; at most `handed_out_max` deliveries are in the
application's hands over all brokers together. The buffers are bounded by each link's prefetch.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

__all__ = ["FanIn"]

T = TypeVar("T")


class FanIn(Generic[T]):
    """Buffers of all brokers. Not thread-safe."""

    def __init__(self, handed_out_max: int) -> None:
        assert handed_out_max > 0
        self._handed_out_max = handed_out_max
        # Brokers with something to hand out; the first one is next, then it goes to the end.
        self._ready: OrderedDict[str, deque[T]] = OrderedDict()
        self._handed_out: dict[str, int] = {}
        self._handed_out_in_all = 0

    def arrived(self, broker: str, item: T) -> None:
        """A delivery came in."""
        buffer = self._ready.get(broker)
        if buffer is None:
            buffer = self._ready[broker] = deque()
        buffer.append(item)

    def take(self) -> T | None:
        """The next delivery for the application; None when there is none or it holds enough."""
        if not self._ready or self._handed_out_in_all >= self._handed_out_max:
            return None
        broker, buffer = next(iter(self._ready.items()))
        item = buffer.popleft()
        if not buffer:
            del self._ready[broker]
        elif len(self._ready) > 1:
            self._ready.move_to_end(broker)
        self._handed_out[broker] = self._handed_out.get(broker, 0) + 1
        self._handed_out_in_all += 1
        return item

    def answered(self, broker: str) -> None:
        """The application answered one delivery of this broker's live link."""
        assert self._handed_out.get(broker, 0) > 0
        self._handed_out[broker] -= 1
        self._handed_out_in_all -= 1

    def dropped(self, broker: str) -> int:
        """The broker's link is gone. Returns how many buffered deliveries went with it.

        What the application still holds of it no longer counts: no answer to it will be sent.
        """
        self._handed_out_in_all -= self._handed_out.pop(broker, 0)
        return len(self._ready.pop(broker, ()))

    def discard_buffers(self) -> None:
        """Hand out nothing more of what has arrived: it goes back to the brokers."""
        self._ready.clear()

    @property
    def buffered(self) -> int:
        return sum(len(buffer) for buffer in self._ready.values())

    @property
    def handed_out(self) -> int:
        return self._handed_out_in_all
