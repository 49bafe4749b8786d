"""Which entry of the map a deletion on the broker strikes, and which of them are nothing to us.

Decides about events and about what an audit looks at next; asks the broker nothing. An event may come
late: what was declared after the deletion that it tells of is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from messagebus.agent.plan import wanted_of
from messagebus.core.register import Entry
from messagebus.topology import Declarations

__all__ = ["AuditRounds", "Deletions"]

T = TypeVar("T")

# While events are proven to arrive, the audit looks for lost ones only: once round in so many steps.
# With 10 entries that is 0.1 % of a core instead of 0.6 %.
AUDIT_STEPS = 10
# Names that were deleted or declared by us, the newest: events of earlier ones have come long ago, and
# one that comes all the same is of a name that is not wanted, or is looked at by the audit.
NAMES_KEPT = 4_096


class Deletions:
    """Own deletions and declarations, by the name of queue or exchange."""

    def __init__(self) -> None:
        self._own: dict[str, None] = {}
        self._declared_at_ms: dict[str, int] = {}

    def ordered(self, name: str) -> None:
        """We are going to delete it ourselves."""
        _keep_newest(self._own, name, None)

    def declaring(self, wanted: Declarations, now_ms: int) -> None:
        """We are going to declare these."""
        for name in (*(e.name for e in wanted.exchanges), *(q.name for q in wanted.queues)):
            self._own.pop(name, None)
            _keep_newest(self._declared_at_ms, name, now_ms)

    def is_ours(self, name: str, headers: Mapping[str, Any]) -> bool:
        """Ordered by us, or of another virtual host."""
        return name in self._own or headers.get("vhost", "/") != "/"

    def is_undone(self, name: str, deleted_at_ms: int) -> bool:
        """Declared again since, by the clock of the host that agent and broker share.

        A clock that was set meanwhile may tell it wrongly: look whether it is there.
        """
        return deleted_at_ms < self._declared_at_ms.get(name, 0)

    @staticmethod
    def struck(
        entries: Iterable[Entry], what: str, name: str, headers: Mapping[str, Any]
    ) -> Iterator[Entry]:
        """Those that the deleted queue, binding or exchange belongs to."""
        for entry in entries:
            if entry.alive and _is_part(what, name, headers, wanted_of(entry)):
                yield entry


def _keep_newest(names: dict[str, T], name: str, value: T) -> None:
    names.pop(name, None)
    names[name] = value
    if len(names) > NAMES_KEPT:
        del names[next(iter(names))]


def _is_part(what: str, name: str, headers: Mapping[str, Any], wanted: Declarations) -> bool:
    """Every queue has a binding of the broker's own, too."""
    match what:
        case "queue":
            return any(queue.name == name for queue in wanted.queues)
        case "exchange":
            return any(exchange.name == name for exchange in wanted.exchanges)
        case _:
            source = headers.get("source_name", "")
            return (name, source) in [(b.queue, b.exchange) for b in wanted.bindings]


class AuditRounds:
    """What is looked for next: all names, or while events are proven some of them in turn."""

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
