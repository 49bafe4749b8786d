"""Deduplication of one consumer: which deliveries are claimed, handed out, acked, held, or given back.

Decides; calls no store. `core.claims` says what a store answers. Times are whole milliseconds of a monotonic
clock. The order of steps of a message is always this one, and an ack is its last:

    arrived ─▶ claim stored ─▶ hand_out ─▶ may_start ─▶ its run ─▶ ended ─▶ done stored ─▶ ack
                    │                                     │ failed
                    ├─ another runs it: held, asked       └─▶ given_back ─▶ release stored ─▶ released
                    │  again, or `defer`
                    └─ too many runs never ended, or too old: park ─▶ parked ─▶ stored ─▶ ack

A driver does this, all on one thread, and carries out the `Orders` of `take` after each of its calls:

    claims.arrived([(key, delivery, age_ms), ...], now_ms)    # deliveries of one read
    while (turn := claims.turn(now_ms)) is not None: # also at `wake_ms`
        try:
            claims.answered(await store.turn(turn, rule), now_ms)     # within store_timeout_s
        except (StoreAway, TimeoutError):
            claims.away(now_ms)
    if claims.may_start(delivery, now_ms): ...       # before the application gets what was in `hand_out`
    claims.ended(delivery)                           # its handler ended well, or it is dropped by its policy
    claims.given_back(delivery)                      # its run failed, or it is returned unseen
    claims.parked(delivery)                          # a copy is in the parking queue
    claims.dropped(deliveries)                       # their link ended, or they went back to it unseen

One turn is on its way at a time; what comes meanwhile goes with the next. A turn without an answer is
repeated with the same token after 50, 100, ... 5,000 ms. While the store is away, "wait" hands out nothing
more and acks nothing; "run" hands everything out without a claim, acks at once, and tells the store later.

Copies of a message that arrive at the same consumer wait for the first one and take its end.

Messages whose last runs never ended are *suspects*: one runs at a time, so that a crash has one cause.
A suspect waits for that without a claim. It gets its turn when nothing of its lane or link stands before
it; the turn passes on when its run ends or overruns its limit, when it is parked or goes back, or when it
has been granted for as long as a lease: a run that never ends holds nothing else up.

One with too many of them is parked when nothing of its lane or link stands before it, so that the parking
queue keeps the order, too. Until then it waits without a claim, and for no turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from messagebus.core.claims import (
    ENDED,
    LATER,
    NOBODY,
    RUN,
    RUN_FIRST,
    TOKEN_BYTES,
    Answer,
    Held,
    Rule,
    Turn,
    Verdict,
)

# Waits before a message that another runs, or a store that is away, is asked for again.
ASK_FIRST_MS, ASK_MAX_MS = 50, 5_000
# Keys in one turn that are asked for: a store's script or transaction of these takes some ms.
CLAIMS_MAX = 500
# Claims are extended when a third of their lease is over.
EXTENSIONS = 3
# Keys known to be done, so that copies which arrive soon need no call. A minute at most, because an operator
# may let a message run again by deleting its record.
RECENT_MAX, RECENT_MS = 100_000, 60_000
# Ends told to the store later, because it was away; above it the oldest go, counted.
BEHIND_MAX = 10_000
# A message becomes a suspect before the last runs that it may begin: after a crash nobody knows which of the
# messages at work was the cause.
ALONE_RUNS = 3
# No suspect runs until no other was found for this time: what arrived with it has been given back by then, so
# that a crash does not count for it.
CALM_MS = 50
SEED_BYTES = 5
COUNTER_BYTES = TOKEN_BYTES - SEED_BYTES

NEVER_MS = 1 << 62

D = TypeVar("D", bound=Hashable)

# Steps of a message.
WANTED = 1  # to be asked for, or asked for in the turn that is on its way
SUSPECT = 2  # several of its runs never ended: waits for its turn, or for its place to be parked
HELD = 3  # another consumer runs it
GRANTED = 4  # claimed, and handed out to wait for its run
RUNNING = 5
PARKING = 6  # its copy for the parking queue is being stored
TELLING = 7  # the store is being told its end
GONE = 8


@dataclass(slots=True)
class Orders(Generic[D]):
    """Orders for a driver, to be carried out now.

    hand_out: claimed for us; ask `may_start` before the run. ack: ended for good, here or elsewhere.
    park: store a copy in the parking queue with this reason, then call `parked`.
    defer: another runs it; let it come again after these ms by a copy that counts no attempt.
    released: `given_back` is stored; store its copy for another run, or return it.
    held: somebody else runs it, or another delivery of it that is here; it waits.
    """

    hand_out: list[D] = field(default_factory=list)
    ack: list[D] = field(default_factory=list)
    park: list[tuple[D, str]] = field(default_factory=list)
    defer: list[tuple[D, int]] = field(default_factory=list)
    released: list[D] = field(default_factory=list)
    held: list[D] = field(default_factory=list, compare=False)


@dataclass(slots=True)
class ClaimCounters:
    """Counts since the start.

    duplicates: deliveries acked because their message had ended already. deferred: deliveries whose copy
    another consumer was running. too_old: messages older than the store's memory, and unknown to it.
    undeduplicated: runs without a claim. untold: ends that the store was never told. unended: messages parked
    because their runs never ended. leases_lost: claims that ran out while we were at work.
    """

    duplicates: int = 0
    deferred: int = 0
    too_old: int = 0
    undeduplicated: int = 0
    untold: int = 0
    unended: int = 0
    leases_lost: int = 0


class _Message(Generic[D]):
    """One message that is here. item: the delivery that runs; copies: others, which wait for its end.

    token: of the claim that we have, or may have; b"" when we surely have none. until_ms: end of its lease.
    first_ms: time of its first publish. parks: waits as a suspect does, but to be parked.
    """

    __slots__ = (
        *("asked", "copies", "end", "first_ms", "item", "key", "parks", "step", "token"),
        "until_ms",
    )

    def __init__(self, key: bytes, item: D, first_ms: int) -> None:
        self.key, self.item, self.first_ms = key, item, first_ms
        self.copies: list[D] | tuple[()] = ()
        self.step = WANTED
        self.token = b""
        self.until_ms = 0
        self.asked = 0
        self.end = ""
        self.parks = False


@dataclass(slots=True)
class _Sent(Generic[D]):
    """The content of the turn that is on its way, sent at this time."""

    at_ms: int
    ends: list[_Message[D]]
    behind: dict[tuple[str, Held], None]
    extended: list[_Message[D]]
    wanted: list[_Message[D]]


# Ends of a message that the store is told.
IS_DONE, IS_PARKED, IS_RELEASED = "done", "parked", "released"


class Claims(Generic[D]):
    """The claims of one consumer. D: a delivery, hashed by identity. Not thread-safe."""

    def __init__(
        self,
        rule: Rule,
        seed: bytes,
        *,
        run_when_away: bool = False,
        park_too_old: bool = False,
        deferred_max: int = 100,
        is_next: Callable[[D], bool] = lambda _item: True,
    ) -> None:
        """Create it. seed: SEED_BYTES random bytes, of this object alone.

        run_when_away: on_store_away is "run". park_too_old: too_old is "park". is_next: returns whether a
        delivery would go to the application at once if it were handed out; asked for suspects.
        """
        assert len(seed) == SEED_BYTES, seed
        self._rule, self._seed = rule, seed
        self._run_when_away, self._park_too_old = run_when_away, park_too_old
        self._deferred_max, self._is_next = deferred_max, is_next
        self._alone_from = max(2, rule.unended_max - ALONE_RUNS + 1)
        self.counters = ClaimCounters()
        self._orders: Orders[D] | None = None
        self._messages: dict[bytes, _Message[D]] = {}
        self._of: dict[D, _Message[D]] = {}
        self._wanted: dict[_Message[D], None] = {}  # to be asked for, in their order
        self._held: list[tuple[int, int, _Message[D]]] = []  # heap by the time to ask again
        self._waiting = 0  # deliveries that wait for the end of another's run
        self._suspects: dict[_Message[D], None] = {}
        self._alone: _Message[D] | None = None  # the suspect whose turn it is
        self._alone_until_ms = NEVER_MS
        self._calm_ms = 0  # no suspect gets its turn before
        self._ends: list[_Message[D]] = []  # to be told to the store, then answered
        # Ends that the store is to be told, and of which nobody waits to hear.
        self._behind: dict[tuple[str, Held], None] = {}
        # Keys that are done: those of now, and of the time before, which are forgotten first.
        self._recent: set[bytes] = set()
        self._recent_before: set[bytes] = set()
        self._recent_ms = min(RECENT_MS, rule.remember_ms) // 2  # length of each time
        self._recent_until_ms = 0
        self._sent: _Sent[D] | None = None
        self._turns = 0
        self._holds = 0
        self._now_ms, self._extend_ms = 0, 0
        self._away_since_ms: int | None = None
        self._failures, self._retry_ms = 0, 0

    # Questions.
    @property
    def is_idle(self) -> bool:
        """True when nothing is here and the store has been told everything: it may be closed."""
        return not (self._sent or self._ends or self._behind or self._messages)

    @property
    def is_told(self) -> bool:
        """True when the store has been told everything; claims may still be ours."""
        return not (self._sent or self._ends or self._behind)

    @property
    def has_suspects(self) -> bool:
        """True when a suspect waits: call `turn` whenever `is_next` may have changed."""
        return bool(self._suspects)

    def away_ms(self, now_ms: int) -> int | None:
        """Return how long the store has been away, in ms; None while it is not."""
        return None if self._away_since_ms is None else max(0, now_ms - self._away_since_ms)

    def wake_ms(self) -> int | None:
        """Return the time at which `turn` must be called without another event; None for no such time."""
        if self._sent is not None:
            return None
        if self._away_since_ms is not None:
            return self._retry_ms
        times = [self._held[0][0]] if self._held else []
        if self._suspects:
            times += [each for each in (self._alone_until_ms, self._calm_ms) if each > self._now_ms]
        if self._messages:
            times.append(self._extend_ms)
        return min(times, default=None)

    def take(self) -> Orders[D] | None:
        """Return the orders since the last call; None for none."""
        orders, self._orders = self._orders, None
        return orders

    def _order(self) -> Orders[D]:
        if self._orders is None:
            self._orders = Orders()
        return self._orders

    def keep_all(self) -> None:
        """Hold every copy from now on: in an ordered queue none may come again behind others."""
        self._deferred_max = NEVER_MS

    # Deliveries come and go.
    def arrived(self, deliveries: Iterable[tuple[bytes, D, int]], now_ms: int) -> None:
        """Enter deliveries, each between the key of its message in its subscription (`key_of`) and the age.

        The age is the time in ms since the message's first publish, of interest where the store does not know
        the message.
        """
        now_ms = self._now_ms = max(
            now_ms, self._now_ms
        )  # they may have waited since they were read
        if now_ms >= self._recent_until_ms:
            self._forget_recent(now_ms)
        messages, of, wanted = self._messages, self._of, self._wanted
        recent, recent_before = self._recent, self._recent_before
        hand_out = self._run_when_away and self._away_since_ms is not None
        for key, item, age_ms in deliveries:
            if key in recent or key in recent_before:
                self.counters.duplicates += 1
                self._order().ack.append(item)
            elif key in messages:
                self._copy_arrived(messages[key], item)
            else:
                message = messages[key] = of[item] = _Message(key, item, now_ms - age_ms)
                if hand_out:
                    self._run_without(message)
                else:
                    wanted[message] = None

    def comes_again(self, key: bytes, item: D, age_ms: int, now_ms: int) -> None:
        """Enter a delivery that has kept its place since its run failed: its copies wait for it again.

        Those behind it in its lane could not end before it.
        """
        message = self._messages.get(key)
        if message is None or message.step not in (WANTED, SUSPECT, HELD, GRANTED):
            self.arrived([(key, item, age_ms)], now_ms)
            return
        self._now_ms = now_ms
        self.counters.deferred += 1
        self._waiting += 1
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
                self._withdraw(message)
                self._pass_on(message)
                message.step = HELD
                self._waiting += 1

    def ask(self, items: Iterable[D]) -> None:
        """Ask for the claims of deliveries that wait without one."""
        for item in items:
            message = self._of.get(item)
            if message is not None and message.item == item and message.step == HELD:
                self._waiting -= 1
                self._want(message)

    def _forget_recent(self, now_ms: int) -> None:
        """Begin a new time of recent keys; each is believed for two such times at most."""
        self._recent_before, self._recent = self._recent, set()
        self._recent_until_ms = min(self._recent_until_ms, now_ms) + self._recent_ms
        if self._recent_until_ms <= now_ms:
            self._recent_before = set()
            self._recent_until_ms = now_ms + self._recent_ms

    def _copy_arrived(self, message: _Message[D], item: D) -> None:
        self.counters.deferred += 1
        if self._waiting >= self._deferred_max:
            self._order().defer.append((item, ASK_MAX_MS))
            return
        self._waiting += 1
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
                self._withdraw(message)
                self._want(message)
                return False
            message.step = RUNNING
        return message.step == RUNNING

    def overran(self, items: Iterable[D]) -> None:
        """Note that the runs of these go on behind their time limit: no suspect waits for them."""
        for item in items:
            if (message := self._of.get(item)) is not None:
                self._pass_on(message)

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
            self._waiting -= 1
        for message in firsts:
            if message.step not in (WANTED, SUSPECT, HELD, GRANTED):
                continue
            del self._of[message.item]
            if not message.copies:
                self._withdraw(message)
                self._forget(message)
                continue
            message.item, *message.copies = message.copies
            self._waiting -= 1
            if message is self._alone:  # the copy may stand behind others
                self._leave(message)
                self._suspect(message)
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
        if self._run_when_away and self._away_since_ms is not None:
            self._tell(end, message)
            self._ended(message)
        else:
            self._ends.append(message)
        return True

    def _ended(self, message: _Message[D]) -> None:
        """Answer a message whose end is stored."""
        del self._of[message.item], self._messages[message.key]
        if message is self._alone:
            self._pass_on(message)
        orders = self._orders or self._order()
        (orders.released if message.end == IS_RELEASED else orders.ack).append(message.item)
        if message.end == IS_DONE:
            self._recent.add(message.key)
            if len(self._recent) >= RECENT_MAX // 2:
                self._forget_recent(self._now_ms)
        if message.copies:
            self._copies_ended(message)

    def _copies_ended(self, message: _Message[D]) -> None:
        """Answer the copies of a message whose end is stored, or let one of them run."""
        copies = message.copies
        for item in copies:
            del self._of[item]
        self._waiting -= len(copies)
        if message.end == IS_RELEASED:
            age_ms = self._now_ms - message.first_ms
            self.arrived([(message.key, item, age_ms) for item in copies], self._now_ms)
        else:
            self.counters.duplicates += len(copies)
            self._order().ack += copies

    def _leave(self, message: _Message[D]) -> None:
        """Take a message out of those that wait as it does."""
        if message.step == WANTED:
            self._wanted.pop(message, None)
        elif message.step == SUSPECT:
            del self._suspects[message]
        elif message.step == HELD:
            self._waiting -= 1

    def _forget(self, message: _Message[D]) -> None:
        """Take a message out of everything but `_of`."""
        self._leave(message)
        message.step = GONE
        del self._messages[message.key]
        self._pass_on(message)

    def _withdraw(self, message: _Message[D]) -> None:
        """Give back a claim that we have or may have, and wait for no reply."""
        if message.token:
            self._tell(IS_RELEASED, message)
        message.token = b""

    def _tell(self, end: str, message: _Message[D]) -> None:
        """Have the store told later."""
        self._behind[end, Held(message.key, message.token or NOBODY)] = None
        if len(self._behind) > BEHIND_MAX:
            del self._behind[next(iter(self._behind))]
            self.counters.untold += 1

    # The store.
    def turn(self, now_ms: int) -> Turn | None:
        """Return what the store is to be told and asked now; None for nothing, or not yet.

        It ends by a call of `answered` or `away`; until then there is no other.
        """
        self._now_ms = now_ms
        is_away = self._away_since_ms is not None
        if self._sent is not None or (is_away and now_ms < self._retry_ms):
            return None
        self._want_again(now_ms)
        extended = self._to_extend(now_ms)
        if not (self._wanted or self._ends or self._behind or extended or is_away):
            return None
        token = self._seed + self._turns.to_bytes(COUNTER_BYTES)
        wanted = self._next_wanted()
        for message in wanted:
            message.token = token
        ends, self._ends = self._ends, []
        behind, self._behind = self._behind, {}
        done = [message.key for message in ends if message.end == IS_DONE]
        others = [
            (message.end, Held(message.key, message.token or NOBODY))
            for message in ends
            if message.end != IS_DONE
        ]
        told = [*others, *behind]
        turn = Turn(
            done + [held.key for end, held in behind if end == IS_DONE],
            [held for end, held in told if end == IS_PARKED],
            [held for end, held in told if end == IS_RELEASED],
            [Held(message.key, message.token) for message in extended],
            [message.key for message in wanted],
            token,
        )
        self._sent = _Sent(now_ms, ends, behind, extended, wanted)
        return turn

    def _next_wanted(self) -> list[_Message[D]]:
        """Take out the messages that are asked for in this turn."""
        wanted = list(self._wanted)
        if len(wanted) <= CLAIMS_MAX:
            self._wanted = {}
        else:
            self._wanted = dict.fromkeys(wanted[CLAIMS_MAX:])
            del wanted[CLAIMS_MAX:]
        return wanted

    def _want_again(self, now_ms: int) -> None:
        """Ask for the messages whose time of waiting is over, and for the next suspect."""
        while self._held and self._held[0][0] <= now_ms:
            _ms, _number, message = heapq.heappop(self._held)
            if message.step == HELD:  # not gone meanwhile
                self._waiting -= 1
                self._want(message)
        if self._suspects:
            self._want_suspects(now_ms)

    def _want_suspects(self, now_ms: int) -> None:
        """Ask for those that can be parked, and for the first that can run, unless another has its turn."""
        if now_ms >= self._alone_until_ms:
            self._alone, self._alone_until_ms = None, NEVER_MS
        may_run = self._alone is None and now_ms >= self._calm_ms
        for message in list(self._suspects):
            if (message.parks or may_run) and self._is_next(message.item):
                del self._suspects[message]
                if not message.parks:
                    self._alone, may_run = message, False
                self._want(message)

    def _suspect(self, message: _Message[D]) -> None:
        """Have a message wait for its turn, without a claim."""
        self._wait_to_be_next(message, parks=False)
        self._calm_ms = self._now_ms + CALM_MS

    def _wait_to_be_next(self, message: _Message[D], *, parks: bool) -> None:
        self._withdraw(message)
        self._pass_on(message)
        message.step, message.parks = SUSPECT, parks
        self._suspects[message] = None

    def _pass_on(self, message: _Message[D]) -> None:
        """End the turn of a suspect, if it is this one's."""
        if message is self._alone:
            self._alone, self._alone_until_ms = None, NEVER_MS

    def _want(self, message: _Message[D]) -> None:
        message.step = WANTED
        self._wanted[message] = None

    def _to_extend(self, now_ms: int) -> list[_Message[D]]:
        if now_ms < self._extend_ms:
            return []
        self._extend_ms = now_ms + self._rule.lease_ms // EXTENSIONS
        return [
            message
            for message in self._messages.values()
            if message.step in (GRANTED, RUNNING, PARKING) and 0 < message.until_ms < NEVER_MS
        ]

    def answered(self, answer: Answer, now_ms: int) -> None:
        """Take the store's answer to the turn."""
        sent, self._sent = self._sent, None
        assert sent is not None
        self._now_ms = now_ms
        self._turns = (self._turns + 1) % (1 << 8 * COUNTER_BYTES)
        self._away_since_ms, self._failures = None, 0
        # The lease began when the store read the turn: not before it was sent.
        until_ms = sent.at_ms + self._rule.lease_ms
        for message, kept in zip(sent.extended, answer.kept, strict=True):
            if kept:
                message.until_ms = until_ms
            else:
                self.counters.leases_lost += message.step != GRANTED
                message.until_ms = 0
        for message in sent.ends:
            self._ended(message)
        hand_out = []
        remember_ms = self._rule.remember_ms
        for message, verdict in zip(sent.wanted, answer.verdicts, strict=True):
            if message.step == WANTED:  # not gone meanwhile
                message.until_ms = until_ms
                # Nearly all are the first: written out.
                if (verdict is RUN_FIRST and now_ms - message.first_ms <= remember_ms) or (
                    verdict.kind == RUN and self._may_run(message, verdict)
                ):
                    message.step = GRANTED
                    hand_out.append(message.item)
                elif verdict.kind != RUN:
                    self._denied(message, verdict)
        if hand_out:
            self._order().hand_out += hand_out

    def _may_run(self, message: _Message[D], verdict: Verdict) -> bool:
        """Return whether a message may be handed out; else it is to wait, or be parked."""
        if verdict.unended >= self._alone_from:
            if message is not self._alone:
                self._suspect(message)
                return False
            self._alone_until_ms = message.until_ms
        if verdict.is_first and self._now_ms - message.first_ms > self._rule.remember_ms:
            self.counters.too_old += 1
            if self._park_too_old:  # at once: the store knows it from now on, and would let it run
                age_s = self._rule.remember_ms // 1000
                self._park(message, f"older than {age_s} s, and unknown to the store")
                return False
        return True

    def _denied(self, message: _Message[D], verdict: Verdict) -> None:
        if verdict.kind == ENDED:
            message.end = IS_PARKED  # perhaps: so it is asked for again when another copy comes
            self.counters.duplicates += 1
            self._ended(message)
        elif verdict.kind == LATER:
            message.token = b""
            self._hold(message, verdict.ms)
        elif not self._is_next(message.item):
            self._wait_to_be_next(message, parks=True)
        else:
            self.counters.unended += 1
            self._park(message, f"{verdict.unended} runs never ended")

    def _park(self, message: _Message[D], reason: str) -> None:
        message.step = PARKING
        self._pass_on(message)
        self._order().park.append((message.item, reason))

    def _hold(self, message: _Message[D], lease_ms: int) -> None:
        """Keep a message that another consumer runs, as long as there is room."""
        self.counters.deferred += not message.asked
        self._pass_on(message)
        if self._waiting >= self._deferred_max:
            items = [message.item, *message.copies]
            for item in items:
                del self._of[item]
            self._waiting -= len(message.copies)
            self._forget(message)
            self._order().defer += [(item, lease_ms) for item in items]
            return
        self._waiting += 1
        message.step = HELD
        self._order().held.append(message.item)
        wait_ms = min(lease_ms, ASK_MAX_MS, ASK_FIRST_MS << min(message.asked, 10))
        message.asked += 1
        self._holds += 1  # no two are alike, so that messages are not compared
        heapq.heappush(self._held, (self._now_ms + wait_ms, self._holds, message))

    def away(self, now_ms: int) -> None:
        """Note that the store did not carry out the turn, or that nobody knows."""
        sent, self._sent = self._sent, None
        assert sent is not None
        self._now_ms = now_ms
        self._retry_ms = now_ms + min(ASK_MAX_MS, ASK_FIRST_MS << min(self._failures, 10))
        self._failures += 1
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
        if sent.extended:
            self._extend_ms = now_ms
        self._behind = sent.behind | self._behind
        self._ends = sent.ends + self._ends
        wanted = [each for each in sent.wanted if each.step == WANTED]
        self._wanted = dict.fromkeys(wanted) | self._wanted
        if self._run_when_away:
            ends, self._ends = self._ends, []
            for message in ends:
                self._tell(message.end, message)
                self._ended(message)
            wanted, self._wanted = list(self._wanted), {}
            for message in wanted:
                self._run_without(message)

    def _run_without(self, message: _Message[D]) -> None:
        """Hand out a message without a claim, or without knowing of one."""
        self.counters.undeduplicated += 1
        self._pass_on(message)
        message.step, message.until_ms = GRANTED, NEVER_MS
        self._order().hand_out.append(message.item)
