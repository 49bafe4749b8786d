"""Publishes that were sent and are not answered: the windows of the links, and what is sent one by one.

Decides; sends nothing. Times are whole milliseconds of a monotonic clock.

One link is *current*: what is taken goes out on it. Others *retire*: they only wait for answers. `InFlight`
has a window (`core.confirms`) for each; every entry in one of them comes back from it exactly once. Nothing
is sent on a new link until the links that may lead to the same broker are answered: order holds per publisher
and broker.

A broker that ends a channel because of a publish does not name it. `OneByOne` has the entries that were open
then. They are sent again one by one; the culprit ends a channel again, alone:

    lost with others ──▶ `waiting` ──▶ `alone`, while nothing else is open ──▶ answered, or refused
                            ▲              │
                            └── its link ended for another reason

`Silence` measures how long a link has answered nothing at all, which a frozen broker or a cut line does, and
a slow one does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from messagebus.core.confirms import ConfirmWindow
from messagebus.core.ends import END_TAKEN_OUT, NO_DEADLINE_MS, Entry, Item, unsettled_of

# Twice the time between two looks at a link.
LOOK_MAX_MS = 200


class InFlight:
    """The windows of one publisher's links. Not thread-safe, but for `count`."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        """Create it without a link. messages_max, bytes_max: of each window; a batch counts once."""
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self.windows: dict[int, ConfirmWindow[Entry]] = {}
        """Those of all links that are not lost."""
        self.current: ConfirmWindow[Entry] | None = None
        """The window of the current link."""
        self.after: set[int] = set()
        """Links that are answered before anything is sent: see `waits_for_links`."""

    # Questions.
    @property
    def count(self) -> int:
        """The number of publishes sent and not answered, on all links; a batch counts once."""
        # A copy: statistics are read by other threads.
        return sum(len(window) for window in list(self.windows.values()))

    @property
    def room(self) -> int:
        """Entries that the current link takes now; 0 without one."""
        return 0 if self.current is None else self._messages_max - len(self.current)

    def entries(self) -> list[Entry]:
        """Return everything open, the oldest link first."""
        return [entry for _, window in sorted(self.windows.items()) for entry in window.items()]

    def has(self, destination: str) -> bool:
        """Return whether anything of this destination is sent and not answered."""
        return any(entry.destination == destination for entry in self.entries())

    def is_answered(self, link: int) -> bool:
        """Return whether nothing is open on this link: it can be hung up without an unknown outcome."""
        window = self.windows.get(link)
        return window is None or not len(window)

    def waits_for_links(self) -> bool:
        """Return whether an earlier link, which may lead to the same broker, is still to answer."""
        self.after = {link for link in self.after if not self.is_answered(link)}
        return bool(self.after)

    def unanswered_ms(self, now_ms: int) -> int:
        """Return how long the oldest publish of the current link has waited for its answer, in ms."""
        window = self.current
        oldest_ms = window.oldest_ms() if window else None
        return 0 if oldest_ms is None else now_ms - oldest_ms

    # Links.
    def opened(self, link: int, *, after: Iterable[int]) -> None:
        """Make a new link current; an earlier one retires.

        after: the links that may lead to the same broker. Nothing is sent on the new one until they are
        answered.
        """
        self.after = set(after)
        self.current = self.windows[link] = ConfirmWindow(
            messages_max=self._messages_max, bytes_max=self._bytes_max
        )

    def leaving(self, link: int, taken: int, now_ms: int) -> None:
        """Record that the other side takes bytes of this link, and has so many: see `ConfirmWindow`."""
        if link in self.windows:
            self.windows[link].leaving(taken, now_ms)

    def lost(self, link: int) -> list[Entry]:
        """Drop a link. Returns what was open on it, oldest first."""
        window = self.windows.pop(link, None)
        if window is None:
            return []
        if window is self.current:
            self.current = None
        return window.abandon()

    def take_out(self, wanted: Callable[[Item], bool]) -> list[Item]:
        """Take out the unsettled items that are wanted: of a destination all or none.

        Their answers no longer count; their tags do.
        """
        taken: list[Item] = []

        def stand_in(entry: Entry) -> Entry:
            left = unsettled_of(entry)
            if not left or not wanted(left[0]):
                return entry
            taken.extend(left)
            place = Item(entry.message_id, entry.destination, entry.size, NO_DEADLINE_MS)
            place.end = END_TAKEN_OUT
            return place

        for _, window in sorted(self.windows.items()):
            window.replace(stand_in)
        return taken

    def clear(self) -> None:
        """Drop all links: all has its end."""
        self.windows.clear()
        self.current = None


class Silence:
    """The time for which the current link has answered nothing while publishes waited for it.

    It is the sum of the times between looks, each counted as LOOK_MAX_MS at most: a process that was
    suspended, or had no processor, has not listened either.
    """

    def __init__(self) -> None:
        self.ms = 0
        self._window: ConfirmWindow[Entry] | None = None
        self._answered = self._looked_ms = 0

    def look(self, in_flight: InFlight, now_ms: int) -> int:
        """Look at the current link, at least each LOOK_MAX_MS. Returns its silence in ms, as far as known."""
        window = in_flight.current
        answered = 0 if window is None else window.answered_count
        step_ms, self._looked_ms = min(now_ms - self._looked_ms, LOOK_MAX_MS), now_ms
        if window is not self._window or answered != self._answered:
            self._window, self._answered, self.ms = window, answered, 0
        else:
            self.ms = min(self.ms + step_ms, in_flight.unanswered_ms(now_ms))
        return self.ms


class OneByOne:
    """Entries of which one made the broker end a channel."""

    def __init__(self) -> None:
        self.waiting: set[Entry] = set()
        """Those to be sent again, each by itself."""
        self.alone: Entry | None = None
        """The one that was sent by itself last."""

    def lost(self, entries: list[Entry], *, refused: bool) -> None:
        """Note what was open on a link that ended. refused: because of one of them."""
        self.waiting.update(each for each in entries if refused or each is self.alone)

    def next_of(self, queue: deque[Entry], *, is_free: bool) -> deque[Entry]:
        """Return what may go now: suspects first, each by itself. is_free: nothing else is open."""
        if not is_free:
            return deque()
        self.alone = None
        if queue[0] not in self.waiting:
            self.waiting.clear()  # the others have ended, or wait for their destination
            return queue
        self.alone = queue.popleft()
        self.waiting.discard(self.alone)
        return deque([self.alone])
