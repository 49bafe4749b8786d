"""Losses of a broker: its vanished parts, and the entries of the map that a deletion affects.

`Losses` notes and logs each loss once, and logs its repair; it repairs nothing. `Deletions` interprets
events, and `AuditRounds` picks the names of the next audit; they ask the broker nothing. An event may come
late: a name that was declared after the deletion exists. `LossWatch` follows events and audits with them.
"""

# A queue that vanishes is noticed by the broker's event (within milliseconds) or by the audit (within
# AUDIT_INTERVAL_S of the upkeep). While events are proven to arrive, the audit looks at what the broker's own
# lists lack, every `compare_every_s`; where there are no lists, at some names in turn (`AuditRounds`):
#
#   event ──┬─ ours, or another virtual host's (`Deletions`): nothing
#           ├─ declared again since, by the wall clock: a suspect, which the audit looks at ◄── lists
#           ├─ of an expiring subscription: `on_gone`, and `topology.expiry` decides
#           └─ else ─┐
#   audit ───────────┴─► `LossWatch.note`: `Losses` records it, `Applied` has it made again, the upkeep wakes

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from messagebus._io.amqp.control import Control
from messagebus.clock import wall_ms
from messagebus.services.agent.broker.applied import Applied
from messagebus.services.agent.broker.definitions import Definitions
from messagebus.services.agent.broker.plan import expires_s_of, wanted_of
from messagebus.services.agent.topology.register import Entry
from messagebus.topology import Declarations

log = logging.getLogger("messagebus.agent")

LOSSES_KEPT = 100
# Events of one deletion carry times a few milliseconds apart.
SAME_LOSS_MS = 100
T = TypeVar("T")

# While events are proven to arrive, the audit looks for lost events only: one round in AUDIT_STEPS steps.
# With 10 entries that is 0.1 % of a core instead of 0.6 %. A step audits AUDITED_MAX at most:
# 100 a second, of 1,000 subscriptions, took most of the 5.7 % of a core that the agent took in all.
AUDIT_STEPS, AUDITED_MAX = 10, 20
# The lists of a broker are compared with the map this often, and of many names less often: those of 1,000
# subscriptions cost the agent 50 ms, and their broker 200 ms.
COMPARE_EVERY_S, COMPARED_A_S = 10.0, 30
# So many intervals without lists, and names are audited in turn again.
COMPARED_TIMES = 3
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
                log.warning("%s recreated broker=%s name=%s", loss.what, self._broker, loss.name)
        self._on_report()


class Deletions:
    """Deletions by anybody, and by this agent, and its declarations, by the name of queue or exchange."""

    def __init__(self) -> None:
        self._own: dict[str, None] = {}
        self._declared_at_ms: dict[str, int] = {}
        self._since_link: dict[str, None] = {}

    def link_began(self) -> None:
        """Forget the deletions of an earlier link."""
        self._since_link.clear()

    def ordered(self, name: str) -> None:
        """Record a deletion that we are going to make."""
        _keep_newest(self._own, name, None)
        self.noticed(name)

    def noticed(self, name: str) -> None:
        """Record a deletion, or that of a binding to it, by whomever."""
        _keep_newest(self._since_link, name, None)

    def since_link(self, names: Iterable[str]) -> bool:
        """Return whether any of these lost something since the link began."""
        return any(name in self._since_link for name in names)

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


class LossWatch:
    """Looks for vanished parts on one broker.

    on_gone: called with the name of an expiring subscription when its queue or a binding may be gone, which
    need be no loss. on_loss: called when the upkeep has to look at once.
    events_proven: whether the broker's events are known to arrive. suspects: names of entries that may have
    lost a part, although the clock says no.
    """

    def __init__(
        self,
        broker: str,
        *,
        applied: Applied,
        losses: Losses,
        on_gone: Callable[[str], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._broker, self._applied, self._losses = broker, applied, losses
        self._on_gone, self._on_loss = on_gone, on_loss
        self._has_events = False
        self._awaited_event = ""
        self._rounds = AuditRounds()
        self._compared_until_s = 0.0
        self.deletions = Deletions()
        self.events_proven = False
        self.suspects: set[str] = set()

    async def follow_events(self, control: Control) -> None:
        """Begin to follow the events of a new link. Raises LinkError."""
        self.deletions.link_began()
        self._has_events = await control.follow_events(self._event)
        if not self._has_events:
            log.warning("no events broker=%s: plugin rabbitmq_event_exchange", self._broker)

    async def prove_events(self, control: Control) -> None:
        """Delete a queue of our own to prove that events arrive: their exchange stays without its plugin."""
        self.events_proven = False
        if self._has_events:
            self._awaited_event = await control.declare_probe()
            await control.delete_queue(self._awaited_event)

    def link_ended(self) -> None:
        self.events_proven = False

    @property
    def compare_every_s(self) -> float:
        """The seconds between two looks at the broker's lists."""
        return max(COMPARE_EVERY_S, len(self._applied.entries) / COMPARED_A_S)

    def compared(self, lacking: Collection[str]) -> None:
        """Suspect these entries, of which the broker's lists lack a part; none for a look that was good."""
        self._compared_until_s = time.monotonic() + COMPARED_TIMES * self.compare_every_s
        if lacking:
            self.suspects.update(lacking)
            self._on_loss()

    def next_audit(self) -> list[str]:
        """Return all names; while events are proven some of them, or none where lists are compared."""
        if self.events_proven and time.monotonic() < self._compared_until_s:
            return []
        names = (entry.wanted for entry in self.audited())
        return self._rounds.next(names, events_proven=self.events_proven)

    def audited(self) -> list[Entry]:
        """Return the living entries. `Expiry` looks after expiring ones."""
        entries = self._applied.entries.values()
        return [entry for entry in entries if entry.alive and not expires_s_of(entry)]

    def next_suspects(self) -> set[str]:
        """Return the suspects, once."""
        suspects, self.suspects = self.suspects, set()
        return suspects

    async def audit(self, control: Control, name: str) -> bool:
        """Check that the queues of an entry exist, and bind them. Returns False for a loss."""
        entry = self._applied.entries.get(name)
        if entry is None or not entry.alive:
            return True
        missing = await control.audit(wanted_of(entry))
        if missing:
            self.note(entry, "queue", missing, "audit")
        return not missing

    def note_missing(self, entries: Mapping[str, Entry]) -> None:
        """Record held queues that the list of the broker's queues lacks, where there is such a list."""
        births = self._applied.births or {}
        for name, number in list(self._applied.held.items()):
            entry = entries.get(name)
            if entry is None or not entry.alive or entry.number != number or expires_s_of(entry):
                continue
            for queue in wanted_of(entry).queues:
                if queue.name not in births:
                    self.note(entry, "queue", queue.name, "start")

    def note(self, entry: Entry, what: str, name: str, how: str) -> None:
        """Record and log a loss, and have it made again."""
        self._applied.vanished.add(entry.wanted)
        self._applied.apply_again(entry.wanted)
        self._applied.deleted(name)
        self._losses.noticed(entry.wanted, what, name, how=how, now_ms=wall_ms())
        self._on_loss()

    def _event(self, key: str, headers: Mapping[str, Any]) -> None:
        name = str(headers.get("name") or headers.get("destination_name") or "")
        if name and name == self._awaited_event:
            self.events_proven, self._awaited_event = True, ""
            return
        self.deletions.noticed(name)
        if self.deletions.is_ours(name, headers):
            return
        what, deleted_at_ms = key.partition(".")[0], headers.get("timestamp_in_ms", 0)
        if what == "queue":
            self._losses.was_a_queue(name, deleted_at_ms)
        struck = Deletions.struck(list(self._applied.entries.values()), what, name, headers)
        if self.deletions.is_undone(name, deleted_at_ms):
            if what == "queue":
                self.suspects |= {entry.wanted for entry in struck if not expires_s_of(entry)}
                self._on_loss()
            return
        for entry in struck:
            if expires_s_of(entry):
                self._on_gone(entry.wanted)
            else:
                self.note(entry, what, name, "event")


def lacking_in(listed: Definitions, entries: Iterable[Entry]) -> list[str]:
    """Return the names of the entries of which the lists lack a part, or have it otherwise."""
    return [entry.wanted for entry in entries if not listed.has(wanted_of(entry))]


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
        count = min(-(-len(every) // AUDIT_STEPS), AUDITED_MAX, len(self._left))
        return [self._left.popleft() for _ in range(count)]
