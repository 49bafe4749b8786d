"""The emptiness of a broker, and the report when it does not become empty.

Statistics show the past: so zeros in two looks more than one interval apart, then a basic.get on every
queue that finds nothing. Messages that nobody will take are not waited for.
"""

# What one look finds:
#
#   messages ─┬─ read, and moving ─────────────────▶ "left", in words: the runner waits
#             ├─ read, and still for held_within_s ─▶ held: the check holds, or Blocked
#             └─ unread for certain ────────────────▶ Blocked, or the check holds where they will be moved
#   none ─────── twice, interval_s apart ─▶ basic.get on each queue ─▶ "" (empty), or counted wrongly: again
#
# The runner calls it until it returns "". Each `Steady` begins anew when its condition is broken.

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from messagebus.destination import DELAY_STEPS_MS, Delay
from messagebus.terminal import pace, plural
from ops.cluster.checks import Steady, some
from ops.cluster.management import DEFAULT_VHOST, Queue
from ops.cluster.view import View
from ops.commands.doors import STREAMS
from ops.run.plan import Blocked, as_check

DELAYS_S = {Delay(ms).amqp_queue: ms / 1000 for ms in DELAY_STEPS_MS}
"""Queue whose messages leave by themselves -> seconds after which they do."""
# A delayed message that is there for this much longer than its step does not leave any more.
DELAY_GRACE_S = 60.0
# Time without an answer while nothing else moves: the worker is dead, or as good as dead. RabbitMQ's
# own limit for one delivery is 30 minutes.
HELD_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Left:
    """Messages left in a broker, by who will take them.

    read: in queues with a consumer. unread: in queues without one, and not delayed. delayed: they leave by
    themselves.
    """

    read: tuple[Queue, ...]
    unread: tuple[Queue, ...]
    delayed: tuple[Queue, ...]

    @classmethod
    def of(cls, queues: Iterable[Queue]) -> Left:
        held = [each for each in queues if each.messages]
        lasting = [each for each in held if each.name not in DELAYS_S]
        return cls(
            read=tuple(each for each in lasting if each.consumers),
            unread=tuple(each for each in lasting if not each.consumers),
            delayed=tuple(each for each in held if each.name in DELAYS_S),
        )

    @property
    def messages(self) -> int:
        return _count((*self.read, *self.unread, *self.delayed))


class Emptying:
    """A check that the broker's queues are empty, for certain.

    A queue that holds messages and has no consumer is reported as soon as that is certain; so are delayed
    messages that do not leave when their time has passed (their destination was deleted), and
    deliveries that nobody answers any more.
    moves: messages that nobody takes will be moved to other brokers: the check holds when only such are left.
    is_held: it held because deliveries are kept without an answer; their consumers are to be disconnected.
    """

    def __init__(
        self,
        view: View,
        name: str,
        *,
        interval_s: float,
        moves: bool = False,
        may_be_held: bool = False,
        held_within_s: float = HELD_WITHIN_S,
        unread_within_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """interval_s: upper bound of the lag of the broker's counts.

        unread_within_s: time for which messages may be counted in queues that nobody reads; interval_s unless
        it is
        known that they were just taken.
        """
        self._view, self._name, self._clock = view, name, clock
        self._moves, self._may_be_held = moves, may_be_held
        self._first: tuple[float, int] | None = None
        self._left = 0
        self._queues = self._untried = self._replayable = 0
        self._delayed_since: dict[str, float] = {}
        self._zero = Steady(interval_s, clock)
        self._stuck = Steady(interval_s if unread_within_s is None else unread_within_s, clock)
        # Counts may lag: a connection that was closed a moment ago still holds what it held.
        self._still = Steady(held_within_s + interval_s, clock)
        self._last_read: tuple[Queue, ...] = ()
        self.is_held = False

    def __call__(self) -> str:
        found = self._view.brokers.all_queues(self._name)
        queues = [each for each in found if not each.name.startswith(STREAMS)]
        self._replayable = sum(each.messages or 0 for each in found if each not in queues)
        if any(queue.messages is None for queue in queues):
            return "counts are not there yet"
        left = Left.of(queues)
        self._queues = len(queues)
        self._left = left.messages
        if not left.messages:
            return self._confirm(queues)
        self._zero.broken()
        _raise_if_kept(queues)
        nobody_takes = self._is_unread(left)
        if self._moves and nobody_takes and not left.read:
            return ""
        if self._is_still(left):
            return ""
        return self._progress(left)

    def taken(self) -> str:
        """Return the number of messages that left during the check, in words, for a proof."""
        began = self._first[1] if self._first else 0
        return f"{plural(max(0, began - self._left), 'message')} taken by their consumers"

    def proof(self) -> str:
        but = f", {self._untried} of them counted alone" if self._untried else ""
        kept = f"; {plural(self._replayable, 'message')} of streams" if self._replayable else ""
        queues = plural(self._queues, "queue")
        return f"0 messages are left in {queues}, counted twice and tried{but}{kept}"

    def _confirm(self, queues: list[Queue]) -> str:
        if not self._zero.holds():
            return "counted empty, checking again"
        tried = {queue: self._view.brokers.holds_message(self._name, queue) for queue in queues}
        if wrong := [queue for queue, holds in tried.items() if holds]:
            self._zero.broken()
            return f"{wrong[0]} was counted empty and is not"
        self._untried = sum(holds is None for holds in tried.values())
        return ""

    def _is_unread(self, left: Left) -> bool:
        """Return whether messages that no consumer takes are left, for certain.

        Raises Blocked for them unless they may be moved.
        """
        if not self._moves:
            self._raise_if_overdue(left.delayed)
        if not left.unread and not (self._moves and not left.read):
            self._stuck.broken()
            return False
        if not self._stuck.holds():  # consumer counts lag like all others
            return False
        if foreign := [each for each in left.unread if each.vhost != DEFAULT_VHOST]:
            raise Blocked(
                f"no consumer for {_named(foreign)}: the bus has no part in that virtual host;"
                " consume or delete them, then run this again"
            )
        if left.unread and not self._moves:
            raise Blocked(_unread(left.unread))
        return True

    def _is_still(self, left: Left) -> bool:
        """Return whether, for certain, nothing moves in queues with consumers.

        Raises Blocked where that is not allowed.
        """
        if left.read != self._last_read:
            self._last_read = left.read
            self._still.broken()
        if not left.read or not self._still.holds():
            return False
        self.is_held = True
        if self._may_be_held:
            return True
        holding = [each for each in self._view.brokers.connections(self._name) if each.unacked]
        who = some([str(each) for each in holding]) or "its consumers"
        raise Blocked(
            f"nothing leaves {_named(left.read)} any more: end {who}, then run this again,"
            " or with --move-remaining"
        )

    def _raise_if_overdue(self, held: Sequence[Queue]) -> None:
        """Raise Blocked for delayed messages that are overdue.

        With nobody publishing, a delay step is empty when its time has passed once.
        """
        now = self._clock()
        since = {queue.name: self._delayed_since.get(queue.name, now) for queue in held}
        self._delayed_since = since
        late = [
            queue
            for queue in held
            if now - since[queue.name] > DELAYS_S[queue.name] + DELAY_GRACE_S
        ]
        if late:
            gone = "their destinations are gone: create them, or purge these queues, then run this again"
            raise Blocked(f"{_named(late)} held them for longer than their delay; {gone}")

    def _progress(self, left: Left) -> str:
        parts = [self._rate(left.messages)]
        if left.delayed:
            count, longest_s = delayed(left.delayed)
            parts.append(f"{count:,} of them delayed, {in_words(longest_s)} at most")
        if unacked := sum(queue.unacked for queue in left.read):
            parts.append(f"{unacked:,} being handled")
        if left.unread and self._moves:
            parts.append(f"{_count(left.unread):,} to be moved")
        return "; ".join(parts)

    def _rate(self, left: int) -> str:
        now = self._clock()
        if self._first is None:
            self._first = (now, left)
        began, then = self._first
        rate = (then - left) / (now - began) if now > began else 0.0
        if rate <= 0:
            return f"{plural(left, 'message')} left"
        return f"{plural(left, 'message')}{pace(rate, left / rate)}"


@as_check
def all_read(view: View, name: str) -> str:
    """Check, by counts that lag, that a broker's messages have consumers, or leave by themselves."""
    queues = [q for q in view.brokers.all_queues(name) if not q.name.startswith(STREAMS)]
    unread = Left.of(queues).unread
    return _unread(unread) if unread else ""


def _unread(queues: Sequence[Queue]) -> str:
    is_parked = any(queue.name.startswith("mb.park/") for queue in queues)
    how = "consume or purge them" + (" (messagebus parked)" if is_parked else "")
    return f"no consumer for {_named(queues)}: {how}, or run this again with --move-remaining"


def _named(queues: Iterable[Queue]) -> str:
    return some([f"{queue} ({plural(queue.messages or 0, 'message')})" for queue in queues])


def _raise_if_kept(queues: Iterable[Queue]) -> None:
    """Raise Blocked for streams: consumers take nothing out of them."""
    if kept := [each for each in queues if each.kind == "stream" and each.messages]:
        raise Blocked(
            f"{_named(kept)} keep what is read: copy the streams and delete them here,"
            " then run this again"
        )


def _count(queues: Iterable[Queue]) -> int:
    return sum(queue.messages or 0 for queue in queues)


def delayed(queues: Iterable[Queue]) -> tuple[int, float]:
    """Return the number of delayed messages, and the longest delay of their queues in seconds."""
    held = [each for each in queues if each.messages and each.name in DELAYS_S]
    return sum(each.messages or 0 for each in held), max(
        (DELAYS_S[each.name] for each in held), default=0.0
    )


def in_words(seconds: float) -> str:
    """Return a duration in the largest unit in which it is a whole number."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and not seconds % size:
            return f"{seconds / size:.0f} {unit}".replace("1 days", "1 day")
    return f"{seconds:.0f} s"
