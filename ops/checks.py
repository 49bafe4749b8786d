"""What must hold between the steps of a playbook. Each check looks once and says what is missing.

A check returns "" when it holds. What it looks at is a `View`; what it concludes is pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from messagebus.destination import DELAY_STEPS_MS, Delay
from ops.step import Blocked, Check
from ops.view import Queue, View

__all__ = [
    "Emptying",
    "Steady",
    "agents_serve_the_list",
    "answers",
    "applied_and_attached",
    "behind",
    "delayed",
    "holds_back",
    "in_words",
    "knows_the_topology",
    "left_by_clients",
    "left_by_publishers",
    "publishes_arrive",
    "topology_is_there",
    "unattached",
    "welcomes",
]

NAMES_SHOWN = 5
DELAYS_S = {Delay(ms).amqp_queue: ms / 1000 for ms in DELAY_STEPS_MS}
"""Queues whose messages leave by themselves, after so long."""
# A delayed message that is there for so much longer than its step does not leave any more.
DELAY_GRACE_S = 60.0


def answers(view: View, name: str) -> Check:
    """The broker's management API answers, which it does last of all in its boot."""

    def check() -> str:
        view.queues(name)
        return ""

    return check


def topology_is_there(view: View, name: str) -> Check:
    """The node has every wanted queue, settled, and its gate is open."""

    def check() -> str:
        settled = view.settled(name)
        if not settled["settled"]:
            return "its topology is not there and settled yet"
        return "" if settled["gate"] else "its gate is shut"

    return check


def holds_back(view: View, name: str) -> Check:
    """The node's agent asks publishers to stay away."""

    def check() -> str:
        verdict = view.health(name)["verdict"]
        return "" if verdict != "ready" else "its agent still says ready"

    return check


def welcomes(view: View, name: str) -> Check:
    """The node takes publishes and its agent sends publishers there."""

    def check() -> str:
        health = view.health(name)
        return "" if health["verdict"] == "ready" else str(health.get("reason", "not ready"))

    return check


def agents_serve_the_list(view: View) -> Check:
    """Every agent serves the generation of the operators' copy."""

    def check() -> str:
        wanted = view.listed.generation
        late = [f"{name} ({has})" for name, has in view.generations().items() if has < wanted]
        return f"generation {wanted} is not served by {_some(late)}" if late else ""

    return check


def applied_and_attached(view: View, name: str) -> Check:
    """Every live client works by the list as it is, and what is consumed elsewhere is consumed here."""

    def check() -> str:
        if late := _late(view):
            return late
        here = view.queues(name)
        others = [
            queue for node in view.nodes if node.name != name for queue in view.queues(node.name)
        ]
        missing = unattached(here, others)
        return f"nobody consumes here from {_some(missing)}" if missing else ""

    return check


def knows_the_topology(view: View, name: str) -> Check:
    """The node's agent has what any agent has. From now on, each change asks it too."""

    def check() -> str:
        missing = behind(view.maps(), name)
        return f"its agent has not read {_some(missing)}" if missing else ""

    return check


def left_by_publishers(
    view: View, name: str, *, interval_s: float, clock: Callable[[], float] = time.monotonic
) -> Check:
    """No application has a connection to the broker, apart from those that consume, for certain.

    A connection is in the statistics only after an interval: see `Steady`.
    """
    steady = Steady(interval_s, clock)

    def check() -> str:
        left = [who for who, consumes in view.client_connections(name).items() if not consumes]
        if left:
            steady.broken()
            return f"{len(left)} connections that may publish"
        return "" if steady.holds() else "none that may publish, looking again"

    return check


def left_by_clients(
    view: View, name: str, *, interval_s: float, clock: Callable[[], float] = time.monotonic
) -> Check:
    """Every live client works by the list without the broker, and none is connected, for certain."""
    steady = Steady(interval_s, clock)

    def check() -> str:
        late = _late(view)
        left = view.client_connections(name)
        if late or left:
            steady.broken()
            return late or f"{len(left)} connections of clients"
        return "" if steady.holds() else "no client is connected, looking again"

    return check


def publishes_arrive(view: View, name: str) -> Check:
    """The broker has been published to since this check was made, and consumed from."""
    before: list[tuple[int, int]] = []

    def check() -> str:
        published, acked = view.counts(name)
        if not before:
            before.append((published, acked))
        if published <= before[0][0]:
            return "no publish yet; publishers come as their connections renew"
        return "" if acked > before[0][1] else "publishes arrive and are not acknowledged yet"

    return check


class Steady:
    """What statistics show is believed when it was so in looks more than one interval apart.

    They show the past: what began a moment before a look is not in them yet.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        """interval_s: the longest that the broker's statistics may lag."""
        self._interval_s, self._clock = interval_s, clock
        self._since: float | None = None

    def holds(self) -> bool:
        """It was so in this look. Returns whether it has been for long enough."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        return now - self._since > self._interval_s

    def broken(self) -> None:
        """It was not so in this look, or proved wrong."""
        self._since = None


class Emptying:
    """A broker's queues are empty, for certain.

    Statistics show the past: so zeros in two looks more than one interval apart, then a basic.get
    on every queue that finds nothing. A queue that holds messages and has no consumer is not
    waited for: nobody will empty it. Delayed messages leave by themselves when their time comes; those
    that do not are of a destination that was deleted.
    """

    def __init__(
        self,
        view: View,
        name: str,
        *,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """interval_s: the longest that the broker's counts may lag."""
        self._view = view
        self._name = name
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._delayed_since: dict[str, float] = {}
        self._zero = Steady(interval_s, clock)
        self._stuck = Steady(interval_s, clock)

    def __call__(self) -> str:
        queues = self._view.queues(self._name)
        if any(queue.messages is None for queue in queues):
            return "counts are not there yet"
        left = sum(queue.messages or 0 for queue in queues)
        if left:
            self._zero.broken()
            self._raise_if_stuck(queues)
            return self._progress(left, queues)
        return self._confirm(queues)

    def _confirm(self, queues: list[Queue]) -> str:
        if not self._zero.holds():
            return "counted empty, looking again"
        for queue in queues:
            if self._view.holds_message(self._name, queue.name):
                self._zero.broken()
                return f"{queue.name} was counted empty and is not"
        return ""

    def _raise_if_stuck(self, queues: list[Queue]) -> None:
        self._raise_if_overdue(queues)
        waiting = [each for each in queues if each.messages and each.name not in DELAYS_S]
        if not waiting or any(queue.consumers for queue in waiting):
            self._stuck.broken()
            return
        if self._stuck.holds():  # consumer counts lag like all others
            what = _some([f"{queue.name} ({queue.messages:,} messages)" for queue in waiting])
            is_parked = any(queue.name.startswith("mb.park/") for queue in waiting)
            how = "consume or purge them" + (" (messagebus parked)" if is_parked else "")
            raise Blocked(f"no consumer for {what}: {how}, then run this again")

    def _raise_if_overdue(self, queues: list[Queue]) -> None:
        """With nobody publishing, a step is empty when its time has passed once."""
        now = self._clock()
        held = {queue.name: queue for queue in queues if queue.messages and queue.name in DELAYS_S}
        since = self._delayed_since = {name: self._delayed_since.get(name, now) for name in held}
        late = [
            f"{name} ({queue.messages:,} messages)"
            for name, queue in held.items()
            if now - since[name] > DELAYS_S[name] + DELAY_GRACE_S
        ]
        if late:
            gone = "their destinations are gone: create them, or purge these queues, then run this again"
            raise Blocked(f"{_some(late)} held them for longer than their delay; {gone}")

    def _progress(self, left: int, queues: list[Queue]) -> str:
        count, longest_s = delayed(queues)
        more = f"; {count:,} of them delayed, {in_words(longest_s)} at most" if count else ""
        return self._rate(left) + more

    def _rate(self, left: int) -> str:
        now = self._clock()
        if self._first is None:
            self._first = (now, left)
        began, then = self._first
        rate = (then - left) / (now - began) if now > began else 0.0
        if rate <= 0:
            return f"{left:,} messages left"
        return f"{left:,} messages left, {rate:,.0f}/s, about {left / rate:,.0f} s"


def delayed(queues: Iterable[Queue]) -> tuple[int, float]:
    """How many delayed messages wait, and for how many seconds the longest of them may."""
    held = [each for each in queues if each.messages and each.name in DELAYS_S]
    return sum(each.messages or 0 for each in held), max(
        (DELAYS_S[each.name] for each in held), default=0.0
    )


def in_words(seconds: float) -> str:
    """In the largest unit that the steps of the ladder are whole in."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and not seconds % size:
            return f"{seconds / size:.0f} {unit}".replace("1 days", "1 day")
    return f"{seconds:.0f} s"


def unattached(here: Iterable[Queue], elsewhere: Iterable[Queue]) -> list[str]:
    """Names of queues that have consumers elsewhere and none here."""
    wanted = {queue.name for queue in elsewhere if queue.consumers}
    return sorted(wanted - {queue.name for queue in here if queue.consumers})


def behind(maps: Mapping[str, Mapping[str, tuple[int, str, bool]]], name: str) -> list[str]:
    """Names of topology entries of which another agent has a later state than this one."""
    mine = maps[name]
    later = {
        wanted
        for entries in maps.values()
        for wanted, entry in entries.items()
        if wanted not in mine or entry > mine[wanted]
    }
    return sorted(later)


def _late(view: View) -> str:
    wanted = view.listed.generation
    late = [
        f"{seen.id} of {seen.subscription or 'no subscription'} ({seen.applied})"
        for seen in view.clients()
        if seen.applied < wanted
    ]
    return f"generation {wanted} is not applied by {_some(late)}" if late else ""


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
