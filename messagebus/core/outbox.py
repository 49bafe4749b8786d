"""What a publisher has accepted and not yet settled: backlog, windows of its links, retries.

Decides; sends nothing, waits for nothing. Times are whole milliseconds of a monotonic clock.

An item is *held* (its lane is not open yet: the destination is not registered), in the *backlog*
(may be sent), in the *window* of a link (sent, unanswered), or settled. It is settled exactly once:

    accept ── held ──open_lane──▶ backlog ──take──▶ window ──answered──▶ settled
                                     ▲                 │
                                     └───link_lost─────┘   (attempts and deadline permitting)

One link is *current*: it takes from the backlog. Others are *retiring*: they only wait for answers.
An item whose deadline passes is settled at once; a place in a window is kept until the broker's
answer, so that tags stay counted as the broker counts them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from messagebus.core.confirms import REFUSED, ConfirmWindow

__all__ = ["UNKNOWN", "Item", "Outbox", "Settled"]

UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Item:
    """One publish. lane: its destination. token: the driver's own, never looked at here."""

    message_id: str
    lane: str
    size: int
    deadline_ms: int
    token: Any = None
    attempts: int = 0
    sent_ms: int = 0
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of one publish. outcome: confirmed, refused, unroutable or unknown."""

    item: Item
    outcome: str
    reason: str = ""


@dataclass(slots=True)
class _Lane:
    is_open: bool = False
    held: deque[Item] = field(default_factory=deque)


class Outbox:
    """The publishes of one publisher. Not thread-safe."""

    def __init__(
        self,
        *,
        messages_max: int,
        bytes_max: int,
        window: int,
        window_bytes_max: int,
        attempts_max: int,
        retry_unknown: bool,
    ) -> None:
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._window, self._window_bytes_max = window, window_bytes_max
        self._attempts_max, self._retry_unknown = attempts_max, retry_unknown
        self._backlog: deque[Item] = deque()
        self._lanes: dict[str, _Lane] = {}
        self._waiting = 0  # held and backlog together
        self._waiting_bytes = 0
        self._windows: dict[int, ConfirmWindow[Item]] = {}
        self._current: int | None = None
        self._after: set[int] = set()  # send nothing before these links are answered
        self.open = 0
        """Accepted and not settled."""
        # No deadline lies before this. Recomputed only when it has passed: at most once per length of
        # a deadline while all is well, because by then its item has been settled long ago.
        self._earliest_ms: int | None = None

    # ------------------------------------------------------------------ questions
    @property
    def waiting(self) -> int:
        """Accepted and not sent."""
        return self._waiting

    @property
    def waiting_bytes(self) -> int:
        """Their bodies' bytes."""
        return self._waiting_bytes

    @property
    def in_flight(self) -> int:
        """Sent and not answered, on all links."""
        return sum(len(window) for window in self._windows.values())

    def has_room(self, size: int) -> bool:
        """Whether a message of that many bytes may be accepted; one that is alone always may."""
        if self._waiting >= self._messages_max:
            return False
        return self._waiting_bytes + size <= self._bytes_max or not self._waiting

    def unanswered_ms(self, now_ms: int) -> int:
        """How long the oldest publish of the current link has waited for its answer."""
        window = self._windows.get(self._current) if self._current is not None else None
        oldest = window.oldest() if window else None
        return now_ms - oldest.sent_ms if oldest else 0

    def is_answered(self, link: int) -> bool:
        """Whether nothing is open on this link: it can be hung up without an unknown outcome."""
        window = self._windows.get(link)
        return window is None or not len(window)

    # ------------------------------------------------------------------ accepting
    def accept(self, item: Item) -> None:
        """Take a publish. The caller has asked has_room, or does not want a bound."""
        lane = self._lanes.setdefault(item.lane, _Lane())
        (self._backlog if lane.is_open else lane.held).append(item)
        self._count(item, 1)
        self.open += 1
        if self._earliest_ms is None or item.deadline_ms < self._earliest_ms:
            self._earliest_ms = item.deadline_ms

    def lane_is_open(self, lane: str) -> bool:
        return lane in self._lanes and self._lanes[lane].is_open

    def open_lane(self, lane: str) -> None:
        """The destination may be published to from now on."""
        state = self._lanes.setdefault(lane, _Lane())
        state.is_open = True
        self._backlog.extend(state.held)
        state.held.clear()

    def close_lane(self, lane: str) -> None:
        """Publishes of this destination wait from now on until open_lane."""
        state = self._lanes.setdefault(lane, _Lane())
        state.is_open = False
        state.held.extend(item for item in self._backlog if item.lane == lane)
        self._backlog = deque(item for item in self._backlog if item.lane != lane)

    def refuse_lane(self, lane: str, reason: str) -> list[Settled]:
        """The destination cannot be published to: settle what waits for it."""
        held = self._lanes.setdefault(lane, _Lane()).held
        items = list(held)
        held.clear()
        return [self._settle_waiting(item, reason) for item in items]

    # ------------------------------------------------------------------ links
    def link_opened(self, link: int, *, after: Iterable[int]) -> None:
        """A link is ready for publishes; it becomes the current one, an earlier one retires.

        after: the links that may lead to the same broker. Nothing is sent on the new one until they
        are answered: order holds per publisher and broker.
        """
        self._after = set(after)
        self._windows[link] = ConfirmWindow(
            messages_max=self._window, bytes_max=self._window_bytes_max
        )
        self._current = link

    def link_lost(self, link: int, now_ms: int) -> list[Settled]:
        """A link is gone: what it left open is sent again, first and in order, or ends as unknown."""
        window = self._windows.pop(link, None)
        if self._current == link:
            self._current = None
        if window is None:
            return []
        left = [item for item in window.abandon() if not item.settled]
        again = [item for item in left if self._may_retry(item, now_ms)]
        for item in reversed(again):
            lane = self._lanes[item.lane]
            (self._backlog if lane.is_open else lane.held).appendleft(item)
            self._count(item, 1)
        lost = [item for item in left if not self._may_retry(item, now_ms)]
        return [self._settle(item, UNKNOWN, "the link ended") for item in lost]

    def take(self, now_ms: int) -> Iterator[Item]:
        """The items to send now on the current link, in order; send each before taking the next."""
        self._after = {link for link in self._after if not self.is_answered(link)}
        if self._after:
            return
        window = self._windows.get(self._current) if self._current is not None else None
        while window is not None and self._backlog and window.has_room(self._backlog[0].size):
            item = self._backlog.popleft()
            self._count(item, -1)
            item.attempts += 1
            item.sent_ms = now_ms
            window.add(item)
            yield item

    def refuse(self, item: Item, reason: str) -> Settled:
        """What was just taken cannot be sent. Its tag is counted: the link must be hung up now."""
        return self._settle(item, REFUSED, reason)

    def returned(self, link: int, lane: str, message_id: str) -> None:
        """The broker sent this message back on this link; its ack follows."""
        if link in self._windows:
            self._windows[link].returned(lane, message_id)

    def answered(self, link: int, tag: int, *, multiple: bool, ok: bool) -> list[Settled]:
        """The broker's answer on this link. Returns what it settles: nothing once it is gone."""
        window = self._windows.get(link)
        if window is None:
            return []
        answers = window.answered(tag, multiple=multiple, ok=ok)
        return [
            self._settle(item, outcome, "the broker refused it" if outcome == REFUSED else "")
            for item, outcome in answers
            if not item.settled
        ]

    # ------------------------------------------------------------------ deadlines and the end
    def expire(self, now_ms: int, reason: str = "deadline passed") -> list[Settled]:
        """Settle what has passed its deadline: refused when it was never sent, else unknown."""
        if self._earliest_ms is None or now_ms < self._earliest_ms:
            return []
        late = [item for item in self.unsettled() if item.deadline_ms <= now_ms]
        settled = [self._give_up(item, reason) for item in late]
        self._forget_settled()
        self._earliest_ms = min((item.deadline_ms for item in self.unsettled()), default=None)
        return settled

    def give_up(self, reason: str) -> list[Settled]:
        """The publisher stops: settle everything."""
        settled = [self._give_up(item, reason) for item in list(self.unsettled())]
        self._forget_settled()
        return settled

    def _may_retry(self, item: Item, now_ms: int) -> bool:
        return (
            self._retry_unknown and item.attempts < self._attempts_max and now_ms < item.deadline_ms
        )

    def unsettled(self) -> Iterator[Item]:
        """All that is accepted and not settled, in no order; take it whole before changing anything."""
        places: list[Iterable[Item]] = [self._backlog]
        places += [lane.held for lane in self._lanes.values()]
        places += [window.items() for window in self._windows.values()]
        return (item for place in places for item in place if not item.settled)

    def _forget_settled(self) -> None:
        for queue in (self._backlog, *(lane.held for lane in self._lanes.values())):
            kept = [item for item in queue if not item.settled]
            for item in queue:
                if item.settled:
                    self._count(item, -1)
            queue.clear()
            queue.extend(kept)

    def _give_up(self, item: Item, reason: str) -> Settled:
        return self._settle(item, UNKNOWN if item.attempts else REFUSED, reason)

    def _settle_waiting(self, item: Item, reason: str) -> Settled:
        self._count(item, -1)
        return self._give_up(item, reason)

    def _count(self, item: Item, sign: int) -> None:
        self._waiting += sign
        self._waiting_bytes += sign * item.size

    def _settle(self, item: Item, outcome: str, reason: str) -> Settled:
        assert not item.settled
        item.settled = True
        self.open -= 1
        return Settled(item, outcome, reason)
