"""Losses of a broker: its vanished parts, and the entries of the map that a deletion affects.

`Losses` notes and logs each loss once, and logs its repair; it repairs nothing. `Deletions` interprets
events, and `AuditRounds` picks the names of the next audit; they ask the broker nothing. An event may come
late: a name that was declared after the deletion exists.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from messagebus.services.agent.broker.plan import wanted_of
from messagebus.services.agent.topology.register import Entry
from messagebus.topology import Declarations

log = logging.getLogger("messagebus.agent")

LOSSES_KEPT = 100
# Events of one deletion carry times a few milliseconds apart.
SAME_LOSS_MS = 100
T = TypeVar("T")

# While events are proven to arrive, the audit looks for lost events only: one round in AUDIT_STEPS steps.
# With 10 entries that is 0.1 % of a core instead of 0.6 %.
AUDIT_STEPS = 10
# Names kept that we deleted or declared, the newest: events of earlier ones have come long ago. A later
# event is about an unwanted name, or the audit looks at it.
NAMES_KEPT = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A queue, binding or exchange that has vanished.

    how: `event`, `audit`, `expiry`, or `start` when it was missing as the link was opened.
    repaired_at_ms: wall clock, 0 while it is missing.
    """

    wanted: str
    what: str
    name: str
    how: str
    noticed_at_ms: int
    repaired_at_ms: int = 0


class Losses:
    """The losses of one broker, the newest LOSSES_KEPT. on_report: called when they have changed."""

    def __init__(self, broker: str, on_report: Callable[[], None]) -> None:
        self._broker, self._on_report = broker, on_report
        self.kept: deque[Loss] = deque(maxlen=LOSSES_KEPT)
        self.total = 0

    def restore(self, losses: Iterable[Loss]) -> None:
        """Add the losses of an earlier process."""
        self.kept.extend(losses)

    @property
    def missing(self) -> int:
        """The number of losses that are not repaired."""
        return sum(not loss.repaired_at_ms for loss in self.kept)

    @property
    def mark(self) -> int:
        """A number that changes whenever `kept` changes."""
        return 2 * self.total - self.missing

    def noticed(self, wanted: str, what: str, name: str, *, how: str, now_ms: int) -> None:
        """Record and log a loss, unless it is known to be missing."""
        if any(loss.name == name and not loss.repaired_at_ms for loss in self.kept):
            return
        self.kept.append(Loss(wanted=wanted, what=what, name=name, how=how, noticed_at_ms=now_ms))
        self.total += 1
        log.warning(
            "%s vanished%s broker=%s name=%s noticed_by=%s",
            what,
            " with all that was in it" if what == "queue" else "",
            self._broker,
            name,
            how,
        )
        self._on_report()

    def was_a_queue(self, name: str, deleted_at_ms: int) -> None:
        """Turn a binding's loss into its queue's: its event comes first, perhaps before the repair."""
        for number, loss in enumerate(self.kept):
            same = loss.name == name and loss.noticed_at_ms > deleted_at_ms - SAME_LOSS_MS
            if same and loss.what == "binding":
                self.kept[number] = replace(loss, what="queue")
                self._on_report()

    def repaired(self, now_ms: int) -> None:
        """Record that everything exists again."""
        if not self.missing:
            return
        for number, loss in enumerate(self.kept):
            if not loss.repaired_at_ms:
                self.kept[number] = replace(loss, repaired_at_ms=now_ms)
                log.warning("%s made again broker=%s name=%s", loss.what, self._broker, loss.name)
        self._on_report()


class Deletions:
    """Deletions and declarations of this agent, by the name of queue or exchange."""

    def __init__(self) -> None:
        self._own: dict[str, None] = {}
        self._declared_at_ms: dict[str, int] = {}

    def ordered(self, name: str) -> None:
        """Record a deletion that we are going to make."""
        _keep_newest(self._own, name, None)

    def declaring(self, wanted: Declarations, now_ms: int) -> None:
        """Record declarations that we are going to make."""
        for name in (*(e.name for e in wanted.exchanges), *(q.name for q in wanted.queues)):
            self._own.pop(name, None)
            _keep_newest(self._declared_at_ms, name, now_ms)

    def is_ours(self, name: str, headers: Mapping[str, Any]) -> bool:
        """Return whether we ordered the deletion, or it is of another virtual host."""
        return name in self._own or headers.get("vhost", "/") != "/"

    def is_undone(self, name: str, deleted_at_ms: int) -> bool:
        """Return whether it was declared again since, by the clock of the host that agent and broker share.

        A clock that was set meanwhile may give a wrong result: look whether the part exists.
        """
        return deleted_at_ms < self._declared_at_ms.get(name, 0)

    @staticmethod
    def struck(
        entries: Iterable[Entry], what: str, name: str, headers: Mapping[str, Any]
    ) -> Iterator[Entry]:
        """Yield the entries that the deleted queue, binding or exchange belongs to."""
        for entry in entries:
            if entry.alive and _is_part(what, name, headers, wanted_of(entry)):
                yield entry


def _keep_newest(names: dict[str, T], name: str, value: T) -> None:
    names.pop(name, None)
    names[name] = value
    if len(names) > NAMES_KEPT:
        del names[next(iter(names))]


def _is_part(what: str, name: str, headers: Mapping[str, Any], wanted: Declarations) -> bool:
    """Return whether an entry has this part. The binding that the broker makes for every queue is none."""
    match what:
        case "queue":
            return any(queue.name == name for queue in wanted.queues)
        case "exchange":
            return any(exchange.name == name for exchange in wanted.exchanges)
        case _:
            source = headers.get("source_name", "")
            return (name, source) in [(b.queue, b.exchange) for b in wanted.bindings]


class AuditRounds:
    """The names of the next audit: all, or while events are proven some of them in turn."""

    def __init__(self) -> None:
        self._left: deque[str] = deque()

    def next(self, names: Iterable[str], *, events_proven: bool) -> list[str]:
        every = sorted(names)
        if not events_proven:
            return every
        if not self._left:
            self._left.extend(every)
        count = min(-(-len(every) // AUDIT_STEPS), len(self._left))
        return [self._left.popleft() for _ in range(count)]
