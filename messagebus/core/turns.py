"""The turns of one consumer with its store of deduplication: what it tells and asks, and what follows.

Decides; calls no store. Times are whole milliseconds of a monotonic clock.

    while (turn := turns.turn(now_ms)) is not None:  # after each call of `core.once`; also at `wake_ms`
        try:
            turns.answered(await store.turn(turn, rule), now_ms)     # within store_timeout_s
        except (StoreAway, TimeoutError):
            turns.away(now_ms)

One turn is on its way at a time; what comes meanwhile goes with the next. A turn without an answer is
repeated with the same token after 50, 100, ... 5,000 ms.

Owners: `Turns` has the turn that is on its way, its token, and since when the store is away. What the next
one holds is in the `NextTurn` of `core.once`, and every message in its `Claims`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from messagebus.core.claims import NOBODY, RUN_FIRST, TOKEN_BYTES, Answer, Held, Turn
from messagebus.core.once import IS_DONE, IS_PARKED, IS_RELEASED, Claims, Orders
from messagebus.core.waiting import (
    ASK_FIRST_MS,
    ASK_MAX_MS,
    GRANTED,
    NEVER_MS,
    PARKING,
    RUNNING,
    WANTED,
    D,
    LocalMessage,
)

# Keys in one turn that are asked for: a store's script or transaction of these takes some ms.
CLAIMS_MAX = 500
# Claims are extended when a third of their lease is over.
EXTENSIONS = 3
SEED_BYTES = 5
COUNTER_BYTES = TOKEN_BYTES - SEED_BYTES


@dataclass(slots=True)
class SentTurn(Generic[D]):
    """The content of the turn that is on its way, sent at this time."""

    at_ms: int
    ends: list[LocalMessage[D]]
    behind: dict[tuple[str, Held], None]
    extended: list[LocalMessage[D]]
    wanted: list[LocalMessage[D]]


class Turns(Generic[D]):
    """The turns of one consumer with its store. Not thread-safe."""

    def __init__(self, claims: Claims[D], seed: bytes, *, run_when_away: bool = False) -> None:
        """Create it. seed: SEED_BYTES random bytes, of this object alone.

        run_when_away: on_store_away is "run".
        """
        assert len(seed) == SEED_BYTES, seed
        self.claims, self._seed, self._run_when_away = claims, seed, run_when_away
        self.sent: SentTurn[D] | None = None
        self._number = 0
        self._extend_ms = 0
        self._away_since_ms: int | None = None
        self._failures, self._retry_ms = 0, 0

    # Questions.
    @property
    def is_idle(self) -> bool:
        """True when nothing is here and the store has been told everything: it may be closed."""
        return self.has_reported_all and not self.claims.messages

    @property
    def has_reported_all(self) -> bool:
        """True when the store has been told everything; claims may still be ours."""
        next_turn = self.claims.next_turn
        return not (self.sent or next_turn.ends or next_turn.behind)

    def away_ms(self, now_ms: int) -> int | None:
        """Return how long the store has been away, in ms; None while it is not."""
        return None if self._away_since_ms is None else max(0, now_ms - self._away_since_ms)

    def wake_ms(self) -> int | None:
        """Return the time at which `turn` must be called without another event; None for no such time."""
        claims = self.claims
        if self.sent is not None:
            return None
        if self._away_since_ms is not None:
            return self._retry_ms
        times = [claims.held.times[0][0]] if claims.held.times else []
        if claims.suspects.waiting:
            times += claims.suspects.times(claims.now_ms)
        if claims.messages:
            times.append(self._extend_ms)
        return min(times, default=None)

    # A turn.
    def turn(self, now_ms: int) -> Turn | None:
        """Return what the store is to be told and asked now; None for nothing, or not yet.

        It ends by a call of `answered` or `away`; until then there is no other.
        """
        claims = self.claims
        claims.now_ms = now_ms
        is_away = self._away_since_ms is not None
        if self.sent is not None or (is_away and now_ms < self._retry_ms):
            return None
        self._want_again(now_ms)
        extended, next_turn = self._to_extend(now_ms), claims.next_turn
        if not (next_turn.wanted or next_turn.ends or next_turn.behind or extended or is_away):
            return None
        token = self._seed + self._number.to_bytes(COUNTER_BYTES)
        wanted = self._next_wanted()
        for message in wanted:
            message.token = token
        ends, next_turn.ends = next_turn.ends, []
        behind, next_turn.behind = next_turn.behind, {}
        self.sent = SentTurn(now_ms, ends, behind, extended, wanted)
        return self._turn_of(self.sent, token)

    def _turn_of(self, sent: SentTurn[D], token: bytes) -> Turn:
        ends, behind = sent.ends, sent.behind
        done = [message.key for message in ends if message.end == IS_DONE]
        others = [
            (message.end, Held(message.key, message.token or NOBODY))
            for message in ends
            if message.end != IS_DONE
        ]
        told = [*others, *behind]
        return Turn(
            done + [held.key for end, held in behind if end == IS_DONE],
            [held for end, held in told if end == IS_PARKED],
            [held for end, held in told if end == IS_RELEASED],
            [Held(message.key, message.token) for message in sent.extended],
            [message.key for message in sent.wanted],
            token,
        )

    def _want_again(self, now_ms: int) -> None:
        """Ask for the messages whose time of waiting is over, and for the next suspect."""
        claims = self.claims
        if claims.held.times and claims.held.times[0][0] <= now_ms:
            for message in claims.held.due(now_ms):
                claims.next_turn.want(message)
        if claims.suspects.waiting:
            for message in claims.suspects.next_ones(now_ms):
                claims.next_turn.want(message)

    def _to_extend(self, now_ms: int) -> list[LocalMessage[D]]:
        if now_ms < self._extend_ms:
            return []
        self._extend_ms = now_ms + self.claims.rule.lease_ms // EXTENSIONS
        return [
            message
            for message in self.claims.messages.values()
            if message.step in (GRANTED, RUNNING, PARKING) and 0 < message.until_ms < NEVER_MS
        ]

    def _next_wanted(self) -> list[LocalMessage[D]]:
        """Take out the messages that are asked for in this turn."""
        next_turn = self.claims.next_turn
        wanted = list(next_turn.wanted)
        if len(wanted) <= CLAIMS_MAX:
            next_turn.wanted = {}
        else:
            next_turn.wanted = dict.fromkeys(wanted[CLAIMS_MAX:])
            del wanted[CLAIMS_MAX:]
        return wanted

    # Its end.
    def answered(self, answer: Answer, now_ms: int) -> None:
        """Take the store's answer to the turn."""
        claims, sent, self.sent = self.claims, self.sent, None
        assert sent is not None
        claims.now_ms, claims.runs_without = now_ms, False
        self._number = (self._number + 1) % (1 << 8 * COUNTER_BYTES)
        self._away_since_ms, self._failures = None, 0
        # The lease began when the store read the turn: not before it was sent.
        until_ms = sent.at_ms + claims.rule.lease_ms
        for message, kept in zip(sent.extended, answer.kept, strict=True):
            if kept:
                message.until_ms = until_ms
            else:
                claims.counters.leases_lost += message.step != GRANTED
                message.until_ms = 0
        for message in sent.ends:
            claims.stored(message)
        hand_out = []
        remember_ms = claims.rule.remember_ms
        for message, verdict in zip(sent.wanted, answer.verdicts, strict=True):
            if message.step == WANTED:  # not gone meanwhile
                message.until_ms = until_ms
                # Nearly all are the first: written out.
                is_new = verdict is RUN_FIRST and now_ms - message.first_ms <= remember_ms
                if is_new or claims.may_run(message, verdict):
                    message.step = GRANTED
                    hand_out.append(message.item)
        if hand_out:
            if claims.orders is None:
                claims.orders = Orders()
            claims.orders.hand_out += hand_out

    def away(self, now_ms: int) -> None:
        """Note that the store did not carry out the turn, or that nobody knows."""
        claims, sent, self.sent = self.claims, self.sent, None
        assert sent is not None
        claims.now_ms = now_ms
        self._retry_ms = now_ms + min(ASK_MAX_MS, ASK_FIRST_MS << min(self._failures, 10))
        self._failures += 1
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
        if sent.extended:
            self._extend_ms = now_ms
        next_turn = claims.next_turn
        next_turn.behind = sent.behind | next_turn.behind
        next_turn.ends = sent.ends + next_turn.ends
        wanted = [each for each in sent.wanted if each.step == WANTED]
        next_turn.wanted = dict.fromkeys(wanted) | next_turn.wanted
        if self._run_when_away:
            self._run_without_it()

    def _run_without_it(self) -> None:
        """Ack what has ended and hand out what waits for a claim; the store is told later."""
        claims, next_turn = self.claims, self.claims.next_turn
        claims.runs_without = True
        ends, next_turn.ends = next_turn.ends, []
        for message in ends:
            next_turn.tell(message.end, message)
            claims.stored(message)
        wanted, next_turn.wanted = list(next_turn.wanted), {}
        for message in wanted:
            claims.run_without(message)
