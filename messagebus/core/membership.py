"""The brokers that a consumer is attached to, from a changing list, and its share of them.

Decides; dials nothing. Times are whole milliseconds of a monotonic clock, passed in; `share` is a
random number from 0 to 1 that spreads waits.

    state \\ event   listed        unlisted      opened   lost          drained     time
    (absent)         waiting
    waiting                        (absent)                                         Dial, dialing
    dialing                        HangUp, absent  open   waiting*
    open                           Drain, draining        waiting*
    draining         (noted)                              absent/waiting  HangUp, absent/waiting
                                                                        after drain_ms: as drained

    * with back-off. A broker that is listed again while it drains is dialled anew afterwards.

An empty list changes nothing: no list can be meant to disconnect everybody.

`Subset` picks one consumer's own brokers, where a full mesh would be too many links.
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from messagebus.core.route import ABSENCES_A_STEP, REFUSED_FIRST_MS, REFUSED_MAX_MS, backoff_ms

# A port that refuses is dialled often, since its broker may be booting. Each broker that is away at the same
# time makes the first wait for each of them longer by this: so a consumer makes 33 such dials a second. With
# 100 dead brokers of 1,000 it made more than 1,000 (`reach.simulated`).
ABSENT_FIRST_MS = 40


@dataclass(frozen=True, slots=True)
class Dial:
    """The order to open a link to this broker; then call `opened` or `lost`. failures: in a row so far."""

    broker: str
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Drain:
    """The order to take no more deliveries; keep the link for owed answers, then call `drained`."""

    broker: str


@dataclass(frozen=True, slots=True)
class HangUp:
    """The order to close the link, or give up the dial. No event is expected afterwards."""

    broker: str


Action = Dial | Drain | HangUp


class State(enum.Enum):
    WAITING = "waiting"
    DIALING = "dialing"
    OPEN = "open"
    DRAINING = "draining"


AWAY = (State.WAITING, State.DIALING)


@dataclass(slots=True)
class _Member:
    state: State
    due_ms: int
    dialed_ms: int = 0
    failures: int = 0
    refusals: int = 0


class Membership:
    """The brokers of one consumer. Not thread-safe."""

    def __init__(
        self,
        *,
        subset: Subset | None = None,
        backoff_first_ms: int = 100,
        backoff_max_ms: int = 5_000,
        drain_ms: int = 60_000,
    ) -> None:
        """Create an empty membership. subset: picks this consumer's brokers of the list; None: all."""
        self._subset = subset
        self._first_ms, self._max_ms, self._drain_ms = backoff_first_ms, backoff_max_ms, drain_ms
        self._members: dict[str, _Member] = {}
        self._listed: frozenset[str] = frozenset()
        self.draining: set[str] = set()
        """Brokers in state `DRAINING`: call `drained` when nothing is owed to them."""

    @property
    def states(self) -> dict[str, State]:
        return {broker: member.state for broker, member in self._members.items()}

    @property
    def untried(self) -> bool:
        """True while a listed broker was neither attached to nor dialled in vain since it was listed."""
        return any(m.state in AWAY and not m.failures + m.refusals for m in self._members.values())

    def refresh(self, listed: Iterable[str], now_ms: int) -> list[Action]:
        """Apply a new list. A broker outside the subset counts as not listed."""
        wanted = frozenset(listed)
        if not wanted:
            return []
        if self._subset is not None:
            wanted = self._subset.of(wanted)
        self._listed = wanted
        for broker in sorted(wanted - self._members.keys()):
            self._members[broker] = _Member(State.WAITING, now_ms)
        unlisted = sorted(self._members.keys() - wanted)
        actions = [action for broker in unlisted for action in self._let_go(broker, now_ms)]
        return actions + self.tick(now_ms)

    def _let_go(self, broker: str, now_ms: int) -> list[Action]:
        member = self._members[broker]
        match member.state:
            case State.WAITING:
                del self._members[broker]
                return []
            case State.DIALING:
                del self._members[broker]
                return [HangUp(broker)]
            case State.OPEN:
                member.state, member.due_ms = State.DRAINING, now_ms + self._drain_ms
                self.draining.add(broker)
                return [Drain(broker)]
            case State.DRAINING:
                return []

    def tick(self, now_ms: int) -> list[Action]:
        """Dial the brokers that are due, and give up drains that take too long."""
        actions: list[Action] = []
        for broker in sorted(self._members):
            member = self._members[broker]
            if member.due_ms > now_ms:
                continue
            if member.state is State.WAITING:
                member.state, member.dialed_ms = State.DIALING, now_ms
                actions.append(Dial(broker, member.failures))
            elif member.state is State.DRAINING:
                actions += self.drained(broker, now_ms)
        return actions

    def opened(self, broker: str) -> None:
        """Record a successful dial. Failures count on until the link has lasted: see `lost`."""
        member = self._members.get(broker)
        assert member is not None
        assert member.state is State.DIALING
        member.state, member.refusals = State.OPEN, 0

    def lost(
        self, broker: str, now_ms: int, share: float, *, refused: bool = False, absent: bool = False
    ) -> None:
        """Record that a dial failed or a link ended. refused, absent: as of `Route.lost`.

        The back-off starts anew when the link lasted as long as its longest wait. A link that ends soon
        after each attach (a message that kills it, a broker that throws out) is no reason to hurry.
        """
        member = self._members.get(broker)
        if member is None:
            return
        self.draining.discard(broker)
        if broker not in self._listed:
            del self._members[broker]
            return
        if refused:
            member.refusals += 1
            wait_ms = backoff_ms(
                member.refusals, first_ms=REFUSED_FIRST_MS, max_ms=REFUSED_MAX_MS, share=share
            )
        else:
            lasted = member.state is not State.DIALING and now_ms - member.dialed_ms >= self._max_ms
            member.failures = 1 if lasted else member.failures + 1
            steps, first_ms = member.failures, self._first_ms
            if absent:
                steps = 1 + member.failures // ABSENCES_A_STEP
                away = sum(each.state in AWAY for each in self._members.values())
                first_ms = max(first_ms, ABSENT_FIRST_MS * away)
            wait_ms = backoff_ms(steps, first_ms=first_ms, max_ms=self._max_ms, share=share)
        member.state, member.due_ms = State.WAITING, now_ms + wait_ms

    def drained(self, broker: str, now_ms: int) -> list[Action]:
        """Hang up a draining broker to which no answer is owed any more."""
        member = self._members.get(broker)
        if member is None or member.state is not State.DRAINING:
            return []
        del self._members[broker]
        self.draining.discard(broker)
        if broker in self._listed:
            self._members[broker] = _Member(State.WAITING, now_ms)
        return [HangUp(broker)]

    def next_due_ms(self) -> int | None:
        """Return when `tick` has something to do; None: not before another event."""
        timed = (State.WAITING, State.DRAINING)
        return min((m.due_ms for m in self._members.values() if m.state in timed), default=None)


class Subset:
    """One consumer's place among those of its subscription.

    Rendezvous hashing: each broker is drawn to every slot with a strength of its own and belongs to the
    `cover` slots that draw it most. All consumers of a subscription compute the same without talking, and
    one more broker or slot moves only its own share. Linear in the brokers, for a given number of slots.

    slot: 0 to slots - 1, different for each consumer. cover: number of consumers that take each broker.
    """

    def __init__(self, *, slot: int, slots: int, cover: int) -> None:
        assert 0 <= slot < slots
        assert cover > 0
        self._slot, self._slots, self._cover = slot, slots, cover

    def of(self, brokers: Iterable[str]) -> frozenset[str]:
        """Return the brokers that belong to this slot."""
        return frozenset(broker for broker in brokers if self._is_ours(broker))

    def _is_ours(self, broker: str) -> bool:
        own = _draw(broker, self._slot)
        stronger = 0
        for slot in range(self._slots):
            stronger += _draw(broker, slot) > own
            if stronger >= self._cover:
                return False
        return True


def _draw(broker: str, slot: int) -> tuple[bytes, int]:
    return blake2b(f"{broker} {slot}".encode(), digest_size=8).digest(), slot


class Judgement(enum.Enum):
    NEWER = "newer"
    SAME = "same"
    REFUSED = "refused"


@dataclass(slots=True)
class ListKeeper:
    """The state of the list. Empty cluster and host patterns accept any."""

    cluster: str = ""
    hosts_allowed: tuple[str, ...] = ()
    generation: int = -1
    """Generation of the list in hand; -1 when there is none."""
    good_ms: int | None = None
    """Time of the last good answer, also of an unchanged one."""
    faults: int = 0
    """Requests without an answer, and answers that were no list or were not accepted."""
    faults_in_a_row: int = 0

    def judge(
        self, *, generation: int, cluster: str, hosts: Iterable[str], now_ms: int
    ) -> tuple[Judgement, str]:
        """Return the judgement on a list that parsed, and the reason of a refusal (then call `failed`).

        generation 0 says nothing about age: such a list replaces another one of generation 0 only.
        """
        if reason := self._objection(generation, cluster, hosts):
            return Judgement.REFUSED, reason
        newer = generation > self.generation or generation == 0
        self.generation = generation
        self.unchanged(now_ms)
        return (Judgement.NEWER if newer else Judgement.SAME), ""

    def _objection(self, generation: int, cluster: str, hosts: Iterable[str]) -> str:
        if generation < self.generation:
            return f"generation {generation} is older than {self.generation}"
        if self.cluster and cluster != self.cluster:
            return f"cluster {cluster!r} is not {self.cluster!r}"
        strange = [host for host in hosts if not self._allowed(host)]
        if strange:
            return f"host {strange[0]!r} is not allowed"
        return ""

    def _allowed(self, host: str) -> bool:
        patterns = self.hosts_allowed
        return not patterns or any(fnmatch.fnmatchcase(host, pattern) for pattern in patterns)

    def unchanged(self, now_ms: int) -> None:
        """Record a good answer that says nothing new."""
        self.good_ms = now_ms
        self.faults_in_a_row = 0

    def failed(self) -> None:
        """Record that there was no answer, or one that is no list."""
        self.faults += 1
        self.faults_in_a_row += 1

    def age_ms(self, now_ms: int) -> int | None:
        """Return the time since the last good answer; None when there never was one."""
        return None if self.good_ms is None else now_ms - self.good_ms
