"""Order inside one consumer: which of its deliveries may be handed out now, one after the other in each lane.

Decides; runs nothing. A *lane* is what keeps its order: a key, or a partition. Of each lane at most one
delivery is out: with the application, or on its way into the parking queue. Those behind it wait here, in the
order of their arrival; other lanes go on. A delivery without a key is a lane of its own.

    arrived ─▶ waits ─▶ out ─┬─▶ answered ─▶ the next of its lane
       (with claims: until   ├─▶ rest: first of its lane again, which goes on when its time is over
        it is granted)       └─▶ overran: answered by its time limit; the lane goes on when its run has ended

The next run of a failed one is made in place, so nothing overtakes it. A lane may be parked: what it has, and
what it gets, is parked in order until a message of it is redriven. Or it is stopped: the delivery that failed
stays its first, and nothing of it goes out while the link of that delivery lives.

Deliveries of a lost link come again, in order, over the next one. So `lost` forgets what waits or rests of
it. Those that handlers still run keep their lane: the same message must not run twice at the same time.

A driver carries out `take` after each call. Times are whole milliseconds of a monotonic clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

# Keys that are remembered as parked. The next one that fails is stopped instead: its order is kept as well.
PARKED_MAX = 10_000
# The rest of a stopped lane: no time ends it.
FOR_EVER = 1 << 62

D = TypeVar("D", bound=Hashable)

# Shared by lanes in which nothing waits, which are most: a deque for each would be a fifth of their cost.
_NOTHING: deque[Any] = deque()


class _Lane(Generic[D]):
    """One key or partition. out: its delivery that is out. late: the one whose run goes on behind its limit.

    parks: `out` is on its way into the parking queue. resting: the first of `waiting`, until this time.
    unclaimed: the first of `waiting` is denied, and those behind it have no claims. A lane with nothing in it
    is forgotten.
    """

    __slots__ = ("late", "name", "out", "parks", "resting", "unclaimed", "until_ms", "waiting")

    def __init__(self, name: Hashable) -> None:
        self.name = name
        self.waiting: deque[D] = _NOTHING
        self.out: D | None = None
        self.parks = self.unclaimed = False
        self.late: D | None = None
        self.resting: D | None = None
        self.until_ms = 0

    def room(self) -> deque[D]:
        """Return the deque of what waits, to be added to."""
        if self.waiting is _NOTHING:
            self.waiting = deque()
        return self.waiting


class Keyed(Generic[D]):
    """The lanes of one consumer. D: a delivery, hashed by identity. Not thread-safe."""

    def __init__(
        self,
        *,
        lane_of: Callable[[D], Hashable],
        link_of: Callable[[D], Hashable],
        lifts: Callable[[D], bool] = lambda _item: False,
        claims: bool = False,
    ) -> None:
        """Create it. lane_of: returns the name of a delivery's lane; itself for a lane of its own.

        link_of: returns the link that brought it. lifts: returns whether it makes its parked lane run again.
        claims: a delivery goes out, or is parked, when it is `granted`, too.
        """
        self._lane_of, self._link_of, self._lifts = lane_of, link_of, lifts
        self._granted: set[D] | None = set() if claims else None
        self._denied: set[D] = set()
        self._let_go: list[D] = []
        self._ask: list[D] = []
        self.has_claims = False
        """True when `take_claims` would return something."""
        self._lanes: dict[Hashable, _Lane[D]] = {}
        self._out: dict[D, _Lane[D]] = {}
        self._late: dict[D, _Lane[D]] = {}
        self._parked: set[Hashable] = set()
        self._rests: list[tuple[int, int, _Lane[D], D]] = []  # heap by the time of their end
        self._count = 0
        self._hand_out: list[D] = []
        self._park: list[D] = []
        self.waiting = 0
        """Deliveries that wait behind others of their lanes, or rest."""

    def take(self) -> tuple[list[D], list[D]]:
        """Return the deliveries to hand out now, and those to park, in order; each exactly once."""
        hand_out, park = self._hand_out, self._park
        self._hand_out = []
        if park:
            self._park = []
        return hand_out, park

    def take_claims(self) -> tuple[list[D], list[D]]:
        """Return the deliveries whose claims to give up for now, and those to claim again."""
        let_go, self._let_go = self._let_go, []
        ask, self._ask = self._ask, []
        self.has_claims = False
        return let_go, ask

    @property
    def has_orders(self) -> bool:
        """True when `take` or `take_claims` would return something."""
        return bool(self._hand_out or self._park or self.has_claims)

    # Deliveries come.
    def arrived(self, items: Iterable[D]) -> None:
        """Enter deliveries in the order in which one link brought them."""
        lanes, out, hand_out, parked = self._lanes, self._out, self._hand_out, self._parked
        lane_of, claims = self._lane_of, self._granted is not None
        for item in items:
            name = lane_of(item)
            if parked and name in parked and self._lifts(item):
                parked.remove(name)
            lane = lanes.get(name)
            if lane is None:
                lane = lanes[name] = _Lane(name)
                if not claims and name not in parked:  # the usual case, without a turn of the deque
                    lane.out = item
                    out[item] = lane
                    hand_out.append(item)
                    continue
            lane.room().append(item)
            self.waiting += 1
            if len(lane.waiting) == 1:
                self._advance(lane)

    def granted(self, items: Iterable[D]) -> None:
        """Note that the claims of these are stored: the application may have them, or they may be parked."""
        assert self._granted is not None
        for item in items:
            lane = self._lanes.get(self._lane_of(item))
            if lane is None:
                continue
            if lane.out is item:  # its claim had run out before its run
                (self._park if lane.parks else self._hand_out).append(item)
            elif item in lane.waiting:
                if self._denied:
                    self._denied.discard(item)
                if lane.unclaimed and item is not lane.waiting[0]:
                    self._let_go.append(item)
                    self.has_claims = True
                    continue
                self._granted.add(item)
                if lane.unclaimed:
                    self._claim_again(lane)
                self._advance(lane)

    def denied(self, items: Iterable[D]) -> None:
        """Note that the application may not have these yet: somebody else runs their messages.

        Nothing behind a denied first of a lane keeps its claim: the consumer that runs the first may wait for
        one of them, and both would wait for ever.
        """
        assert self._granted is not None
        for item in items:
            lane = self._lanes.get(self._lane_of(item))
            if lane is not None and item in lane.waiting:
                self._denied.add(item)
                self._granted.discard(item)
                self._advance(lane)

    def _claim_again(self, lane: _Lane[D]) -> None:
        """Ask for the claims of a lane whose first is not denied any more."""
        assert self._granted is not None
        lane.unclaimed, self.has_claims = False, True
        self._ask += [item for item in lane.waiting if item not in self._granted]

    def _advance(self, lane: _Lane[D]) -> None:
        """Let the first of a lane out, if nothing keeps it."""
        if lane.out is not None or lane.late is not None or lane.resting is not None:
            return
        if not lane.waiting:
            del self._lanes[lane.name]
            return
        item = lane.waiting[0]
        if self._granted is not None:
            if item not in self._granted:
                if self._denied or lane.unclaimed:
                    self._look_at_claims(lane, item)
                return
            self._granted.remove(item)
        lane.parks = lane.name in self._parked
        (self._park if lane.parks else self._hand_out).append(item)
        lane.waiting.popleft()
        self.waiting -= 1
        lane.out = item
        self._out[item] = lane

    def _look_at_claims(self, lane: _Lane[D], first: D) -> None:
        """Keep no claims behind a first that is denied; ask for them again when another is the first."""
        assert self._granted is not None
        if first not in self._denied:
            if lane.unclaimed:
                self._claim_again(lane)
            return
        lane.unclaimed = self.has_claims = True
        behind = [item for item in lane.waiting if item in self._granted]
        self._granted.difference_update(behind)
        self._let_go += behind

    # Deliveries go.
    def answered(self, item: D) -> None:
        """Note the end of a delivery, whatever it is: the next of its lane follows."""
        lane = self._out.pop(item, None)
        if lane is not None:
            lane.out = None
            if lane.waiting or lane.late is not None:
                self._advance(lane)
            else:
                del self._lanes[lane.name]
            return
        waits_in = self._lanes.get(self._lane_of(item))
        if waits_in is not None and item in waits_in.waiting:
            self._take_out(waits_in, [item])

    def rest(self, item: D, until_ms: int) -> bool:
        """Note that a delivery is to go out again at this time, before any other of its lane.

        FOR_EVER stops its lane. False: it is not out.
        """
        lane = self._out.pop(item, None)
        if lane is None:
            return False
        lane.out = None
        lane.room().appendleft(item)
        self.waiting += 1
        lane.resting, lane.until_ms = item, until_ms
        if until_ms < FOR_EVER:
            self._count += 1  # no two are alike, so that lanes are not compared
            heapq.heappush(self._rests, (until_ms, self._count, lane, item))
        return True

    def due(self, now_ms: int) -> list[D]:
        """End the rests whose time is over; return their deliveries, which with claims are to be claimed."""
        found = []
        while self._rests and self._rests[0][0] <= now_ms:
            _until_ms, _number, lane, item = heapq.heappop(self._rests)
            if lane.resting is item:  # not lost meanwhile
                lane.resting = None
                found.append(item)
                self._advance(lane)
        return found

    def wake_ms(self) -> int | None:
        """Return the time at which `due` is to be called; None for no such time."""
        return self._rests[0][0] if self._rests else None

    def park(self, item: D) -> bool:
        """Park all that follows this delivery in its lane. False: too many are; `rest` it FOR_EVER."""
        name = self._lane_of(item)
        if name is item:
            return True
        if name not in self._parked and len(self._parked) >= PARKED_MAX:
            return False
        self._parked.add(name)
        return True

    # Runs behind their time limit.
    def overran(self, item: D) -> None:
        """Note that a run goes on although its delivery gets an answer now; `ended_late` follows."""
        lane = self._out.get(item)
        if lane is not None:
            lane.late = item
            self._late[item] = lane

    def ended_late(self, item: D) -> None:
        """Note the end of a run that overran: its lane goes on."""
        lane = self._late.pop(item, None)
        if lane is not None:
            lane.late = None
            self._advance(lane)

    # Links go.
    def lost(self, link: Hashable, unseen: Iterable[D], *, keep_runs: bool) -> list[D]:
        """Forget what a link brought that has ended: its broker delivers it again. Returns as `withdraw`.

        unseen: handed out, but the application never saw them. keep_runs: each of the others has an end.
        """
        found = self.withdraw(link, unseen)
        if not keep_runs:
            for item in [each for each in self._out if self._link_of(each) == link]:
                self.answered(item)
        return found

    def withdraw(self, link: Hashable, unseen: Iterable[D] = ()) -> list[D]:
        """Take out all of a link that waits or rests; return it. unseen: as of `lost`."""
        found = []
        for lane in list(self._lanes.values()):
            gone = [item for item in lane.waiting if self._link_of(item) == link]
            if gone:
                found += gone
                self._take_out(lane, gone)
        for item in unseen:
            self.answered(item)
        return found

    def _take_out(self, lane: _Lane[D], gone: list[D]) -> None:
        without = set(gone)
        lane.waiting = deque(item for item in lane.waiting if item not in without)
        self.waiting -= len(gone)
        if self._granted is not None:
            self._granted -= without
            self._denied -= without
        if lane.resting in without:
            lane.resting = None
        self._advance(lane)

    # Questions.
    def waits(self, item: D) -> bool:
        """Return whether a delivery waits or rests here."""
        lane = self._lanes.get(self._lane_of(item))
        return lane is not None and item in lane.waiting

    def is_next(self, item: D) -> bool:
        """Return whether a delivery is out, or would be if it were granted."""
        lane = self._lanes.get(self._lane_of(item))
        if lane is None or lane.out is not None:
            return lane is not None and lane.out is item
        is_first = bool(lane.waiting) and lane.waiting[0] is item
        return is_first and lane.late is None and lane.resting is None

    def oldest(self, link: Hashable) -> list[D]:
        """Return the first of this link that waits in each lane."""
        firsts = (
            next((item for item in lane.waiting if self._link_of(item) == link), None)
            for lane in self._lanes.values()
        )
        return [item for item in firsts if item is not None]

    def holds(self, link: Hashable) -> bool:
        """Return whether something of this link waits here that will go out; not in stopped lanes."""
        return any(
            self._link_of(item) == link
            for lane in self._lanes.values()
            if lane.until_ms < FOR_EVER or lane.resting is None
            for item in lane.waiting
        )

    def held(self) -> tuple[list[D], list[int]]:
        """Return what resting and stopped lanes keep back, and when the rests end.

        From any thread.
        """
        lanes = [lane for lane in list(self._lanes.values()) if lane.resting is not None]
        ends_ms = [lane.until_ms for lane in lanes if lane.until_ms < FOR_EVER]
        return [item for lane in lanes for item in list(lane.waiting)], ends_ms

    @property
    def resting(self) -> int:
        """The number of lanes that wait for the next run of a failed delivery."""
        return sum(lane.resting is not None for lane in self._lanes.values()) - self.stopped

    @property
    def stopped(self) -> int:
        """The number of stopped lanes."""
        return sum(
            lane.resting is not None and lane.until_ms >= FOR_EVER for lane in self._lanes.values()
        )

    @property
    def parked(self) -> int:
        """The number of parked lanes."""
        return len(self._parked)
