"""Deduplication of one consumer: which deliveries are claimed, handed out, acked, held, or given back.

Decides; calls no store. `core.claims` says what a store answers. Times are whole milliseconds of a monotonic
clock. The order of steps of a message is always this one, and an ack is its last:

    arrived ─▶ claim stored ─▶ hand_out ─▶ may_start ─▶ its run ─▶ ended ─▶ done stored ─▶ ack
                    │                                     │ failed
                    ├─ another runs it: held, asked       └─▶ given_back ─▶ release stored ─▶ released
                    │  again, or `defer`
                    └─ too many runs never ended, or too old: park ─▶ parked ─▶ stored ─▶ ack

Owners: `Claims` has the messages that are here, and moves them; what waits for a run is in `held` and
`suspects` (`core.waiting`), what the store is still to be asked and told in `next_turn`, and what is known to
be done in `recent`. `core.turns.Turns` carries the turns with the store out over it.

A driver does this, all on one thread, and carries out the `Orders` of `take` after each of its calls:

    claims.arrived([(key, delivery, age_ms), ...], now_ms)    # deliveries of one read
    ...                                                       # turns with the store: see `core.turns`
    if claims.may_start(delivery, now_ms): ...       # before the application gets what was in `hand_out`
    claims.ended(delivery)                           # its handler ended well, or it is dropped by its policy
    claims.given_back(delivery)                      # its run failed, or it is returned unseen
    claims.parked(delivery)                          # a copy is in the parking queue
    claims.dropped(deliveries)                       # their link ended, or they went back to it unseen

While the store is away, "wait" hands out nothing more and acks nothing; "run" hands everything out without a
claim, acks at once, and tells the store later.

Copies of a message that arrive at the same consumer wait for the first one and take its end.

Messages whose last runs never ended are *suspects*: one runs at a time, so that a crash has one cause.
A suspect waits for that without a claim. It gets its turn when nothing of its lane or link stands before
it; the turn passes on when its run ends or overruns its limit, when it is parked or goes back, or when it
has been granted for as long as a lease: a run that never ends holds nothing else up.

One with too many of them is parked when nothing of its lane or link stands before it, so that the parking
queue keeps the order, too. Until then it waits without a claim, and for no turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic

from messagebus.core.claims import ENDED, LATER, NOBODY, RUN, Held, Rule, Verdict
from messagebus.core.waiting import (
    ASK_MAX_MS,
    GONE,
    GRANTED,
    HELD,
    NEVER_MS,
    PARKING,
    RUNNING,
    SUSPECT,
    TELLING,
    WANTED,
    D,
    HeldDeliveries,
    LocalMessage,
    Suspects,
)

# Keys known to be done, so that copies which arrive soon need no call. A minute at most, because an operator
# may let a message run again by deleting its record.
RECENT_MAX, RECENT_MS = 100_000, 60_000
# Ends told to the store later, because it was away; above it the oldest go, counted.
BEHIND_MAX = 10_000

# Ends of a message that the store is told.
IS_DONE, IS_PARKED, IS_RELEASED = "done", "parked", "released"


@dataclass(slots=True)
class Orders(Generic[D]):
    """Orders for a driver, to be carried out now.

    hand_out: claimed for us; ask `may_start` before the run. ack: ended for good, here or elsewhere.
    park: store a copy in the parking queue with this reason, then call `parked`.
    defer: another runs it; let it come again after these ms by a copy that counts no attempt.
    released: `given_back` is stored; store its copy for another run, or return it.
    held: somebody else runs it, or another delivery of it that is here; it waits.
    of_parked: those of `ack` whose message the store knows as parked, to be logged.
    """

    hand_out: list[D] = field(default_factory=list)
    ack: list[D] = field(default_factory=list)
    park: list[tuple[D, str]] = field(default_factory=list)
    defer: list[tuple[D, int]] = field(default_factory=list)
    released: list[D] = field(default_factory=list)
    held: list[D] = field(default_factory=list, compare=False)
    of_parked: list[D] = field(default_factory=list, compare=False)


@dataclass(slots=True)
class ClaimCounters:
    """Counts since the start.

    duplicates: deliveries acked because their message had ended already. deferred: deliveries whose copy
    another consumer was running. too_old: messages older than the store's memory, and unknown to it.
    undeduplicated: runs without a claim. unended: messages parked because their runs never ended.
    leases_lost: claims that ran out while we were at work.
    """

    duplicates: int = 0
    deferred: int = 0
    too_old: int = 0
    undeduplicated: int = 0
    unended: int = 0
    leases_lost: int = 0


class RecentKeys:
    """The keys of messages that are known to be done: those of now, and of the time before.

    Each is believed for two such times at most, and no longer than the store remembers it.
    """

    def __init__(self, remember_ms: int) -> None:
        self.now: set[bytes] = set()
        self.before: set[bytes] = set()
        self.until_ms = 0
        """The end of this time: `forget` is due."""
        self._length_ms = min(RECENT_MS, remember_ms) // 2

    def add(self, key: bytes, now_ms: int) -> None:
        self.now.add(key)
        if len(self.now) >= RECENT_MAX // 2:
            self.forget(now_ms)

    def forget(self, now_ms: int) -> None:
        """Begin a new time; forget the keys of the time before."""
        self.before, self.now = self.now, set()
        self.until_ms = min(self.until_ms, now_ms) + self._length_ms
        if self.until_ms <= now_ms:
            self.before = set()
            self.until_ms = now_ms + self._length_ms


class NextTurn(Generic[D]):
    """Questions and reports for the store, collected for its next turn."""

    def __init__(self) -> None:
        self.wanted: dict[LocalMessage[D], None] = {}
        """Messages to be asked for, in their order."""
        self.ends: list[LocalMessage[D]] = []
        """Messages whose ends are told, then answered."""
        self.behind: dict[tuple[str, Held], None] = {}
        """Ends that the store is told, and of which nobody waits to hear."""
        self.untold = 0
        """Ends that the store was never told."""

    def want(self, message: LocalMessage[D]) -> None:
        """Ask for a message."""
        message.step = WANTED
        self.wanted[message] = None

    def withdraw(self, message: LocalMessage[D]) -> None:
        """Give back a claim that we have or may have, and wait for no reply."""
        if message.token:
            self.tell(IS_RELEASED, message)
        message.token = b""

    def tell(self, end: str, message: LocalMessage[D]) -> None:
        """Have the store told later."""
        self.behind[end, Held(message.key, message.token or NOBODY)] = None
        if len(self.behind) > BEHIND_MAX:
            del self.behind[next(iter(self.behind))]
            self.untold += 1


class Claims(Generic[D]):
    """The claims of one consumer. D: a delivery, hashed by identity. Not thread-safe."""

    def __init__(
        self,
        rule: Rule,
        *,
        park_too_old: bool = False,
        deferred_max: int = 100,
        is_next: Callable[[D], bool] = lambda _item: True,
    ) -> None:
        """Create it without a delivery.

        park_too_old: too_old is "park". is_next: returns whether a delivery would go to the application at
        once if it were handed out; asked for suspects.
        """
        self.rule, self._park_too_old = rule, park_too_old
        self.counters = ClaimCounters()
        self.orders: Orders[D] | None = None
        """Those since the last `take`."""
        self.messages: dict[bytes, LocalMessage[D]] = {}
        """Key -> message that is here."""
        self._of: dict[D, LocalMessage[D]] = {}
        self.held = HeldDeliveries[D](deferred_max)
        self.suspects = Suspects(rule.unended_max, is_next)
        self.next_turn = NextTurn[D]()
        self.recent = RecentKeys(rule.remember_ms)
        self.runs_without = False
        """True while the store is away and runs need no claim."""
        self.now_ms = 0
        """The latest time that was given."""

    def take(self) -> Orders[D] | None:
        """Return the orders since the last call; None for none."""
        orders, self.orders = self.orders, None
        return orders

    def _order(self) -> Orders[D]:
        if self.orders is None:
            self.orders = Orders()
        return self.orders

    # Deliveries come and go.
    def arrived(self, deliveries: Iterable[tuple[bytes, D, int]], now_ms: int) -> None:
        """Enter deliveries, each between the key of its message in its subscription (`key_of`) and the age.

        The age is the time in ms since the message's first publish, of interest where the store does not know
        the message.
        """
        # They may have waited since they were read.
        now_ms = self.now_ms = max(now_ms, self.now_ms)
        if now_ms >= self.recent.until_ms:
            self.recent.forget(now_ms)
        messages, of, wanted = self.messages, self._of, self.next_turn.wanted
        recent, recent_before = self.recent.now, self.recent.before
        for key, item, age_ms in deliveries:
            if key in recent or key in recent_before:
                self.counters.duplicates += 1
                self._order().ack.append(item)
            elif key in messages:
                self._copy_arrived(messages[key], item)
            else:
                message = messages[key] = of[item] = LocalMessage(key, item, now_ms - age_ms)
                if self.runs_without:
                    self.run_without(message)
                else:
                    wanted[message] = None

    def comes_again(self, key: bytes, item: D, age_ms: int, now_ms: int) -> None:
        """Enter a delivery that has kept its place since its run failed: its copies wait for it again.

        Those behind it in its lane could not end before it.
        """
        message = self.messages.get(key)
        if message is None or message.step not in (WANTED, SUSPECT, HELD, GRANTED):
            self.arrived([(key, item, age_ms)], now_ms)
            return
        self.now_ms = now_ms
        self.counters.deferred += 1
        self.held.count += 1
        message.copies = [message.item, *message.copies]
        self._order().held.append(message.item)
        message.item = item
        self._of[item] = message
        if message.step == GRANTED:
            self._order().hand_out.append(item)
        else:
            self.ask([item])

    def let_go(self, items: Iterable[D]) -> None:
        """Give up the claims of deliveries that were granted and not begun, until `ask` names them."""
        for item in items:
            message = self._of.get(item)
            if message is not None and message.item == item and message.step == GRANTED:
                self.next_turn.withdraw(message)
                self.suspects.pass_on(message)
                message.step = HELD
                self.held.count += 1

    def ask(self, items: Iterable[D]) -> None:
        """Ask for the claims of deliveries that wait without one."""
        for item in items:
            message = self._of.get(item)
            if message is not None and message.item == item and message.step == HELD:
                self.held.count -= 1
                self.next_turn.want(message)

    def _copy_arrived(self, message: LocalMessage[D], item: D) -> None:
        self.counters.deferred += 1
        if self.held.is_full:
            self._order().defer.append((item, ASK_MAX_MS))
            return
        self.held.count += 1
        if not message.copies:
            message.copies = []
        message.copies.append(item)
        self._of[item] = message
        self._order().held.append(item)

    def may_start(self, item: D, now_ms: int) -> bool:
        """Return whether the run of a delivery may begin now, or its way into the parking queue.

        False: its claim ran out while it waited. It is asked for again, and handed out again.
        """
        message = self._of.get(item)
        if message is None or message.item != item:
            return False
        if message.step == GRANTED:
            if message.until_ms <= now_ms:
                self.next_turn.withdraw(message)
                self.next_turn.want(message)
                return False
            message.step = RUNNING
        return message.step == RUNNING

    def overran(self, items: Iterable[D]) -> None:
        """Note that the runs of these go on behind their time limit: no suspect waits for them."""
        for item in items:
            if (message := self._of.get(item)) is not None:
                self.suspects.pass_on(message)

    def holds(self, item: D) -> bool:
        """Return whether the end of a delivery is still to come: `ack` or `released` will name it."""
        return item in self._of

    def not_started(self, item: D) -> None:
        """Note that the run of a delivery did not begin after all: `may_start` is asked again."""
        message = self._of.get(item)
        if message is not None and message.item is item and message.step == RUNNING:
            message.step = GRANTED

    def ended(self, item: D) -> bool:
        """Note that a run ended well, or that its message is dropped by its policy.

        Returns True when `ack` follows, and False for a delivery that is not, or no longer, held here.
        """
        return self._end(item, IS_DONE)

    def parked(self, item: D) -> None:
        """Note that a copy is stored in the parking queue: `ack` follows."""
        self._end(item, IS_PARKED)

    def given_back(self, item: D) -> None:
        """Note that a run failed or never was, and that the message is to come again: `released` follows.

        A run that goes on behind its time limit has not ended: call this when it has.
        """
        self._end(item, IS_RELEASED)

    def dropped(self, items: Iterable[D]) -> None:
        """Forget deliveries that went back to their broker, or whose link has ended.

        Where a run or a copy is under way its end is still to be told, and its answer comes as ever.
        """
        firsts = []
        for item in items:
            message = self._of.get(item)
            if message is None:
                continue
            if message.item == item:
                firsts.append(message)
                continue
            del self._of[item]
            message.copies = [each for each in message.copies if each != item]
            self.held.count -= 1
        for message in firsts:
            if message.step not in (WANTED, SUSPECT, HELD, GRANTED):
                continue
            del self._of[message.item]
            if not message.copies:
                self.next_turn.withdraw(message)
                self._forget(message)
                continue
            message.item, *message.copies = message.copies
            self.held.count -= 1
            if message is self.suspects.alone:  # the copy may stand behind others
                self._leave(message)
                self.next_turn.withdraw(message)
                self.suspects.wait(message, self.now_ms)
            elif message.step == GRANTED:
                self._order().hand_out.append(message.item)
            else:  # it may have been let go
                self.ask([message.item])

    def _end(self, item: D, end: str) -> bool:
        message = self._of.get(item)
        if message is None:
            return False
        if message.step == TELLING or message.item != item:
            return True
        if message.step < GRANTED:
            self._leave(message)
        message.step, message.end = TELLING, end
        if self.runs_without:
            self.next_turn.tell(end, message)
            self.stored(message)
        else:
            self.next_turn.ends.append(message)
        return True

    def stored(self, message: LocalMessage[D]) -> None:
        """Answer a message whose end is stored."""
        del self._of[message.item], self.messages[message.key]
        if message is self.suspects.alone:
            self.suspects.pass_on(message)
        orders = self.orders or self._order()
        (orders.released if message.end == IS_RELEASED else orders.ack).append(message.item)
        if message.end == IS_DONE:
            self.recent.add(message.key, self.now_ms)
        if message.copies:
            self._copies_ended(message)

    def _copies_ended(self, message: LocalMessage[D]) -> None:
        """Answer the copies of a message whose end is stored, or let one of them run."""
        copies = message.copies
        for item in copies:
            del self._of[item]
        self.held.count -= len(copies)
        if message.end == IS_RELEASED:
            age_ms = self.now_ms - message.first_ms
            self.arrived([(message.key, item, age_ms) for item in copies], self.now_ms)
        else:
            self.counters.duplicates += len(copies)
            self._order().ack += copies

    def _leave(self, message: LocalMessage[D]) -> None:
        """Take a message out of those that wait as it does."""
        if message.step == WANTED:
            self.next_turn.wanted.pop(message, None)
        elif message.step == SUSPECT:
            del self.suspects.waiting[message]
        elif message.step == HELD:
            self.held.count -= 1

    def _forget(self, message: LocalMessage[D]) -> None:
        """Take a message out of everything but `_of`."""
        self._leave(message)
        message.step = GONE
        del self.messages[message.key]
        self.suspects.pass_on(message)

    # The store's answers.
    def may_run(self, message: LocalMessage[D], verdict: Verdict) -> bool:
        """Return whether a message that was asked for may be handed out now."""
        if verdict.kind != RUN:
            self._denied(message, verdict)
            return False
        suspects = self.suspects
        if verdict.unended >= suspects.alone_from:
            if message is not suspects.alone:
                self.next_turn.withdraw(message)
                suspects.wait(message, self.now_ms)
                return False
            suspects.alone_until_ms = message.until_ms
        if verdict.is_first and self.now_ms - message.first_ms > self.rule.remember_ms:
            self.counters.too_old += 1
            if self._park_too_old:  # at once: the store knows it from now on, and would let it run
                age_s = self.rule.remember_ms // 1000
                self._park(message, f"older than {age_s} s, and unknown to the store")
                return False
        return True

    def _denied(self, message: LocalMessage[D], verdict: Verdict) -> None:
        if verdict.kind == ENDED:
            message.end = IS_PARKED  # perhaps: so it is asked for again when another copy comes
            if verdict.is_parked:
                self._order().of_parked.append(message.item)
            self.counters.duplicates += 1
            self.stored(message)
        elif verdict.kind == LATER:
            message.token = b""
            self._hold(message, verdict.ms)
        elif not self.suspects.is_next(message.item):
            self.next_turn.withdraw(message)
            self.suspects.wait_to_park(message)
        else:
            self.counters.unended += 1
            runs = "1 run" if verdict.unended == 1 else f"{verdict.unended} runs"
            self._park(message, f"{runs} never ended")

    def _park(self, message: LocalMessage[D], reason: str) -> None:
        message.step = PARKING
        self.suspects.pass_on(message)
        self._order().park.append((message.item, reason))

    def _hold(self, message: LocalMessage[D], lease_ms: int) -> None:
        """Keep a message that another consumer runs, as long as there is room."""
        self.counters.deferred += not message.times_held
        self.suspects.pass_on(message)
        if self.held.is_full:
            items = [message.item, *message.copies]
            for item in items:
                del self._of[item]
            self.held.count -= len(message.copies)
            self._forget(message)
            self._order().defer += [(item, lease_ms) for item in items]
            return
        self.held.hold(message, lease_ms, self.now_ms)
        self._order().held.append(message.item)

    def run_without(self, message: LocalMessage[D]) -> None:
        """Hand out a message without a claim, or without knowing of one."""
        self.counters.undeduplicated += 1
        self.suspects.pass_on(message)
        message.step, message.until_ms = GRANTED, NEVER_MS
        self._order().hand_out.append(message.item)
