"""The route of one publisher: when it dials, when it moves to another link, when it hangs up.

Decides; dials nothing. Times are whole milliseconds of a monotonic clock, passed in; `share` is a
random number from 0 to 1.

Without a link it dials at once, and a second time before the first try is given up: just after a
broker's death the balancer may still route to it, and a frozen broker accepts TCP. With a link it
*moves* when told (the broker drains, is blocked or slow, the link's lifetime is over, the
application asks): it keeps the old link until a new one is open, so that nobody waits. A new link to
the broker that is to be left is hung up again; one that does not say its name is taken as another.
A link that is *dead* is left for any.

Links are numbered by the dial that made them.

`backoff_ms` is the wait before the next try, here and wherever else something is dialled or asked again.
"""

#   no link ─ Dial, and soon another ─▶ opened ─ Adopt ─▶ linked ─ leave, renew, abandon ─▶ moving ─┐
#      ▲  └─ failed: back-off               │               │  ▲                                       │
#      │                                    │               │  └── Adopt, or MOVE_TRIES_MAX: it stays ◀┘
#      └── HangUp: its broker is avoided ◀──┴───── lost ◀───┘
#
# The driver calls `opened`, `lost`, `leave`, `renew`, `abandon` and `tick`, and carries out what these
# return.

from __future__ import annotations

from dataclasses import dataclass, field

DIALS_AT_ONCE = 2
# A second dial begins when the first has had this part of its time: 0.125 s by default. A login takes 20 ms.
HEDGE_PART = 4
BACKOFF_FIRST_MS, BACKOFF_MAX_MS = 20, 2_000
# Some reasons to move may hold for every broker (a stalled disk under all of them): then moving
# again and again helps nobody.
MOVE_TRIES_MAX = 8
# Pause after these tries. The eight take 2.5 s, so such a broker sees one login per second of a
# publisher, not three.
STAY_MS = 5_000
# A refused connection costs no broker anything, and one that boots is awaited. Doubled after so many of them,
# the wait is a tenth of the time for which nobody has listened.
ABSENCES_A_STEP = 16
# A balancer that gives the broker to be avoided so often in a row may give it for long: a new broker has the
# fewest links of all. From then on every other dial goes to a broker by its name.
AVOIDED_MAX = 3


@dataclass(frozen=True, slots=True)
class Dial:
    """The order to open a link through the balancer; then call `opened` or `lost` with this number.

    by_name: not through the balancer, but to a listed broker that is not to be avoided.
    """

    link: int
    timeout_ms: int
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class Adopt:
    """The order to publish through this link; an earlier one only waits for its answers."""

    link: int


@dataclass(frozen=True, slots=True)
class HangUp:
    """The order to close this link or give up this dial. No event is expected afterwards."""

    link: int


Action = Dial | Adopt | HangUp


@dataclass(slots=True)
class Route:
    """The links of one publisher. Not thread-safe."""

    lifetime_ms: int
    timeout_first_ms: int
    timeout_max_ms: int
    current: int | None = None
    broker: str = ""
    """Name of the current link's broker, "" when it has none or there is no link."""
    stays: bool = False
    """True where no other broker will do: it only dials again."""
    moves: int = 0
    dials: int = 0
    _dialing: dict[int, int] = field(default_factory=dict)  # link -> when a second dial is due
    _failures: int = 0
    _refusals: int = 0
    _due_ms: int = 0
    _renew_at_ms: int = 0
    _leaving: str | None = None
    _move_tries: int = 0
    _avoided: int = 0
    _stay_until_ms: int = 0

    def tick(self, now_ms: int) -> list[Action]:
        """Return the actions that are due. Call it first, and again at `next_due_ms`."""
        if self.current is not None and self._leaving is None and now_ms >= self._renew_at_ms:
            self._leaving = ""  # any broker will do, also the same one
        if self.current is not None and self._leaving is None:
            return []
        if now_ms < self._due_ms or len(self._dialing) >= DIALS_AT_ONCE:
            return []
        if any(now_ms < hedge_ms for hedge_ms in self._dialing.values()):
            return []
        return [self._dial(now_ms)]

    def _dial(self, now_ms: int) -> Dial:
        self.dials += 1
        timeout_ms = min(self.timeout_max_ms, self.timeout_first_ms << min(self._failures, 10))
        self._dialing[self.dials] = now_ms + timeout_ms // HEDGE_PART
        return Dial(
            self.dials, timeout_ms, by_name=self._avoided >= AVOIDED_MAX and self.dials % 2 == 0
        )

    def opened(
        self, link: int, broker: str, now_ms: int, share: float, *, avoid: str | None = None
    ) -> list[Action]:
        """Record that a dial succeeded. broker: its name, "" when it does not say.

        avoid: the broker that must not be adopted, nor one without a name; None: any will do.
        """
        if link not in self._dialing:
            return [HangUp(link)]
        del self._dialing[link]
        if avoid is not None and broker in ("", avoid):
            self._avoided += 1
            self._due_ms = now_ms + self._wait_ms(self._avoided, share)
            return [HangUp(link)]
        if self.current is not None and broker and broker == self._leaving:
            self._moved_nowhere(now_ms, share)
            return [HangUp(link)]
        actions: list[Action] = [Adopt(link), *(HangUp(other) for other in self._dialing)]
        self._dialing.clear()
        self.moves += self.current is not None
        self.current, self.broker = link, broker
        self._leaving, self._failures, self._move_tries, self._due_ms = None, 0, 0, 0
        self._refusals = self._avoided = 0
        self._stay_until_ms = now_ms
        # Within 20 % at random, so that publishers started together do not renew together.
        self._renew_at_ms = now_ms + int(self.lifetime_ms * (0.8 + 0.4 * share))
        return actions

    def _moved_nowhere(self, now_ms: int, share: float) -> None:
        self._move_tries += 1
        self._due_ms = now_ms + self._wait_ms(self._move_tries, share)
        if self._move_tries >= MOVE_TRIES_MAX:
            self._leaving, self._move_tries = None, 0
            self._stay_until_ms = now_ms + STAY_MS

    def lost(
        self, link: int, now_ms: int, share: float, *, refused: bool = False, absent: bool = False
    ) -> None:
        """Record that the current link ended or a dial failed. refused: its login; absent: nobody listens."""
        if self._dialing.pop(link, None) is not None:
            if refused:
                self._refusals += 1
                self._due_ms = now_ms + backoff_ms(
                    self._refusals, first_ms=REFUSED_FIRST_MS, max_ms=REFUSED_MAX_MS, share=share
                )
            else:
                self._failures += 1
                steps = 1 + self._failures // ABSENCES_A_STEP if absent else self._failures
                self._due_ms = now_ms + self._wait_ms(steps, share)
        elif link == self.current:
            self.current, self.broker, self._leaving = None, "", None
            self._due_ms = now_ms

    def leave(self, now_ms: int) -> None:
        """Leave the current broker for another one."""
        if self.stays or self.current is None or now_ms < self._stay_until_ms:
            return
        if self._leaving is None or (not self._leaving and self.broker):
            self._leaving = self.broker
            self._due_ms = now_ms

    def abandon(self, now_ms: int) -> None:
        """Replace a dead link soon: any other will do, also to the same broker."""
        if self.current is not None and self._leaving != "":
            self._leaving, self._due_ms = "", now_ms

    def renew(self, now_ms: int) -> None:
        """Dial anew through the balancer; any broker will do."""
        if self.current is not None and self._leaving is None:
            self._renew_at_ms = now_ms

    def next_due_ms(self) -> int | None:
        """Return when `tick` may have something to do; None: not before another event."""
        if self.current is not None and self._leaving is None:
            return self._renew_at_ms
        if len(self._dialing) >= DIALS_AT_ONCE:
            return None
        return max(self._due_ms, *self._dialing.values()) if self._dialing else self._due_ms

    def _wait_ms(self, failures: int, share: float) -> int:
        return backoff_ms(failures, first_ms=BACKOFF_FIRST_MS, max_ms=BACKOFF_MAX_MS, share=share)


# A refused login is tried again, because passwords rotate, but slowly: an account may be locked after
# some tries. The first wait is short, as a file may be written a moment after the broker's change.
REFUSED_FIRST_MS, REFUSED_MAX_MS = 1_000, 30_000


def backoff_ms(failures: int, *, first_ms: int, max_ms: int, share: float) -> int:
    """Return the wait in ms, exponential with jitter: half of it is fixed, the rest is scaled by `share`.

    failures: 1 after the first failure; the full wait doubles with each, up to max_ms.
    share: a random number from 0 to 1, chosen by the caller.
    """
    full_ms = min(max_ms, first_ms << min(max(failures - 1, 0), 20))
    return full_ms // 2 + int(full_ms / 2 * share)
