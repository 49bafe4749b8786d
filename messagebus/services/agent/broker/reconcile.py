"""The steps that bring the map to the broker: declare, settle, bind, in this order."""

# A confirm promises that the message survives, so no queue is bound before its name is on disk; and all are
# bound before MQTT's exchange leads to them, or some subscriptions would miss what others get:
#
#   plan ─ delete ─ declare ─ settle ─ bind ─ lead MQTT ─ note what is there ─ lead the delay ladder out
#                      │                          │
#                      └─ refused: the others go on, and it is tried again later (`Refusals`)
#
# What the broker's own lists show as wanted when the link opens is neither declared nor bound again, and
# settled with the rest: after a kill that is all, and a broker with 1,000 queues took three seconds for it.
#
# A part may vanish during any step (`Applied.vanished`, by an event): then this round is not the last.

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from messagebus._io.amqp.control import Control, mismatch_text
from messagebus.clock import wall_ms
from messagebus.errors import NOT_FOUND, ChannelRefused, TopologyError
from messagebus.services.agent.broker.applied import Applied
from messagebus.services.agent.broker.definitions import Definitions, names_of
from messagebus.services.agent.broker.losses import Deletions
from messagebus.services.agent.broker.management import Management, ManagementUnavailable
from messagebus.services.agent.broker.partitions import Partitions
from messagebus.services.agent.broker.plan import (
    Declare,
    DeleteExchange,
    DeleteQueue,
    Seal,
    Step,
    expires_s_of,
    plan,
    unsure_of,
    wanted_of,
    ways_of_mqtt,
)
from messagebus.services.agent.broker.recovery import Ladder, Recovery
from messagebus.services.agent.broker.refusals import MQTT_REFUSED, Refusals
from messagebus.services.agent.broker.settle import SLOW_S, Settler
from messagebus.services.agent.gate import Gate
from messagebus.services.agent.topology.register import Entry, Register
from messagebus.services.agent.web.metrics import Figure
from messagebus.topology import Declarations, joined

log = logging.getLogger("messagebus.agent")
T = TypeVar("T")

# Wait until the broker has cancelled the consumers of a queue that vanished. A consumer that finds a queue
# of the same name instead is attached to it silently, counts its messages as seen, and gets none
# (RabbitMQ 3.10: 1,098 waited there). They were cancelled 0.1 s after the deletion on a loaded machine.
CANCELLED_S = 0.3
# Entries that are declared in one go. Their broker takes some 0.3 s for them under load, well below
# `gate.BEHIND_MS`: with each group its agent notes that it makes progress.
TOGETHER = 5


class NotBroughtAbout(TopologyError):
    """Raised when the broker does not have the map now; `Upkeep.run` tries again."""


class StillReading(NotBroughtAbout):
    """Raised while the broker reads its queues from disk, as at every boot."""


class Reconciler:
    """The way of the map to one broker. Its methods run under the lock of `Upkeep`."""

    def __init__(
        self,
        broker: str,
        register: Register,
        *,
        applied: Applied,
        partitions: Partitions,
        gate: Gate,
        deletions: Deletions,
        settler: Settler,
        management: Management,
    ) -> None:
        self._broker, self._register = broker, register
        self._applied, self._partitions, self._gate = applied, partitions, gate
        self._deletions, self._settler, self._management = deletions, settler, management
        self.refusals = Refusals()
        self.ladder = Ladder(broker)
        self.recovery = Recovery(broker, settler)
        self._settles_fast = 0
        self._settles_slow = 0

    def figures(self) -> Iterator[Figure]:
        yield Figure("settles_fast", self._settles_fast)
        yield Figure("settles_slow", self._settles_slow)
        yield from self.ladder.figures()
        yield from self.recovery.figures()

    async def revive(self, control: Control) -> None:
        """Start dead queues, and declare what the map's bindings need. Raises LinkError."""
        await self.recovery.revive()
        await self.ladder.begin(control)

    async def definitions(self) -> Definitions | None:
        """Return what the broker has, where that is known now."""
        if not self._management.is_there:
            return None
        try:
            return await self._management.definitions()
        except ManagementUnavailable as fault:
            log.info("definitions not listed broker=%s reason=%s", self._broker, fault)
            return None

    async def lead_out(self, control: Control) -> None:
        """Lead the delay ladder out. Not with an uninformed map: there may be queues that are not bound."""
        if self._register.informed:
            await self.ladder.lead_out(control)

    async def need_leaders(self) -> None:
        """Raise StillReading after a boot, until the queues are read or the wait was long enough."""
        if not await self.recovery.has_leaders():
            raise StillReading("queues are read from disk: they have no leader yet")

    async def apply(self, control: Control) -> bool:
        """Apply the map once. Returns False when a part vanished meanwhile.

        The map may have changed meanwhile, too. Raises LinkError, NotBroughtAbout or ManagementUnavailable.
        """
        version, entries = self._register.version, dict(self._partitions.entries)
        taken = {name: entry for name, entry in entries.items() if not self.refusals.rests(entry)}
        declared, found = await self._carry_out(control, taken)
        await self._settle(control, [*declared, *found])
        for some in _together(declared):
            await control.bind(joined(some))
            self._applied.progressed()
        await self._lead_mqtt(control, taken)
        applied = self._applied
        applied.entries = {name: e for name, e in taken.items() if name not in applied.vanished}
        if applied.vanished:
            return False
        await self._accept_refusals(control, entries, taken)
        applied.completed(version, entries)
        return True

    async def seal(self, control: Control) -> None:
        """Unbind the segments that the map has sealed. Raises LinkError."""
        for entry in list(self._partitions.newly_sealed()):
            await self._perform(control, Seal(wanted_of(entry)))
            self._applied.entries[entry.wanted] = entry

    async def _carry_out(
        self, control: Control, taken: dict[str, Entry]
    ) -> tuple[list[Declarations], list[Declarations]]:
        """Delete and declare what the map needs. Returns what is declared, to be bound, and what was there.

        taken: entries to be applied; those that the broker refused are not in it afterwards.
        """
        listed = self._applied.take_listed()
        births = await self._births_for(control, taken)
        applied = self._applied
        if applied.vanished:
            await asyncio.sleep(CANCELLED_S)
        lost, applied.vanished = applied.vanished, set()
        floor = self._register.floor if self._register.informed else 0
        steps = plan(taken, brought=applied.entries, births=births, floor=floor)
        steps = steps if listed is None else tuple(_without_missing(steps, listed))
        if not self._gate.is_open and any(isinstance(step, DeleteQueue) for step in steps):
            # RabbitMQ 3.10 makes no quorum queues any more when one is deleted while its boot starts it.
            await self.need_leaders()
        for step in steps:
            if not isinstance(step, Declare):
                await self._perform(control, step)
        found, missing = self._apart(steps, listed)
        declared = list[Declarations]()
        for some in _together(missing):
            made = await self._declare(control, some, lost)
            declared += (step.declarations for step in made)
            for step in some:
                if step not in made:
                    del taken[step.entry.wanted]
        return declared, found

    def _apart(
        self, steps: Iterable[Step], listed: Definitions | None
    ) -> tuple[list[Declarations], list[Declare]]:
        """Return what the broker has already, and the declarations that are left."""
        found, missing = list[Declarations](), list[Declare]()
        for step in steps:
            if not isinstance(step, Declare):
                continue
            if listed is not None and self._is_in(listed, step):
                self.refusals.taken(step.entry.wanted)
                found.append(step.declarations)
            else:
                missing.append(step)
        return found, missing

    def _is_in(self, listed: Definitions, step: Declare) -> bool:
        """Return whether the broker had all of an entry when it was listed, and has lost nothing since.

        A queue that expires is declared again: that is a use, and no start of an agent shortens its life.
        """
        wanted = step.declarations
        has = not expires_s_of(step.entry) and listed.has(wanted)
        return has and not self._deletions.since_link(names_of(wanted))

    async def _births_for(
        self, control: Control, entries: Mapping[str, Entry]
    ) -> dict[str, int | None]:
        """Return the births that a plan needs, also when the management API did not answer at first.

        A missing queue is of no earlier life. Raises ManagementUnavailable when one exists: then it is
        unknown whether it has to be deleted first.
        """
        applied = self._applied
        unsure = unsure_of(entries, brought=applied.entries, held=applied.held)
        if applied.births is None and unsure:
            try:
                applied.births = await self._management.births()
            except ManagementUnavailable as fault:
                for queue in (q.name for entry in unsure for q in wanted_of(entry).queues):
                    if await control.counts(queue) is not None:
                        raise ManagementUnavailable(
                            f"{fault}; whether {queue} is of an earlier life is not known"
                        ) from fault
        return applied.births or {}

    async def _perform(self, control: Control, step: Step) -> None:
        """Perform a step that deletes or unbinds."""
        match step:
            case DeleteQueue(name):
                self._deletions.ordered(name)
                await control.delete_queue(name)
                self._applied.deleted(name)
                log.info("queue deleted broker=%s queue=%s", self._broker, name)
            case DeleteExchange(name):
                self._deletions.ordered(name)
                await control.delete_exchange(name)
            case Seal(declarations):
                self._deletions.ordered(declarations.bindings[0].queue)
                await control.declare(declarations)
                await control.bind(declarations, "unbind")
                log.info("sealed segment=%s", declarations.bindings[0].queue)

    async def _declare(
        self, control: Control, steps: Sequence[Declare], lost: Collection[str]
    ) -> list[Declare]:
        """Declare entries in one go, or one by one where the broker refuses any of them.

        Returns those that it takes. lost: names of vanished entries.
        """
        for step in steps:
            self._deletions.declaring(step.declarations, wall_ms())
        try:
            await control.declare(joined(step.declarations for step in steps))
        except ChannelRefused as refused:
            if len(steps) > 1:
                alone = [await self._declare(control, [step], lost) for step in steps]
                return list(itertools.chain(*alone))
            self._refused(steps[0].entry, refused)
            return []
        self._applied.progressed()
        for step in steps:
            self.refusals.taken(step.entry.wanted)
            for queue in step.declarations.queues:
                self._applied.declared(queue.name, step.entry.number)
        # Publishes go on without them. From now on their messages are lost only by a kill.
        again = [step.declarations for step in steps if step.entry.wanted in lost]
        if again:
            await control.bind(joined(again))
        return list(steps)

    def _refused(self, entry: Entry, refused: ChannelRefused) -> None:
        again, reason = entry.wanted in self.refusals, mismatch_text(refused.reason)
        self.refusals.refused(entry, reason)
        if not again:
            log.warning(
                "declaration refused wanted=%s reason=%s docs=%s",
                entry.wanted,
                reason,
                refused.docs,
            )

    async def _settle(self, control: Control, declared: Iterable[Declarations]) -> None:
        """Put the names of what was declared on disk, and the undelivered queue's.

        Definitions of classic queues are there when they are answered.
        """
        names = {queue.name for each in declared for queue in each.queues}
        if self.ladder.leads_out and not any(each.needs_settling for each in declared):
            return
        if await self._settler.names_synced():
            self._settles_fast += 1
        else:
            await control.declare_settle_queue()
            await asyncio.sleep(SLOW_S)
            self._settles_slow += 1
            self._applied.waits()
        if not await self._settler.files_synced():
            raise NotBroughtAbout("the data folder could not be synced")
        if dead := sorted(names & await self.recovery.find_dead()):
            raise NotBroughtAbout(f"queues are dead as soon as they are made: {', '.join(dead)}")

    async def _lead_mqtt(self, control: Control, taken: dict[str, Entry]) -> None:
        """Bind topics to MQTT's exchange, or unbind them. Refused entries are not in `taken` afterwards."""
        for entry, way, verb in list(ways_of_mqtt(taken, brought=self._applied.entries)):
            # So the event of its unbinding is no loss.
            self._applied.entries.pop(entry.wanted, None)
            if not await self._lead_one(control, entry, way, verb):
                del taken[entry.wanted]

    async def _lead_one(
        self, control: Control, entry: Entry, way: Declarations, verb: Literal["bind", "unbind"]
    ) -> bool:
        """Bind a topic to MQTT's exchange, or unbind it. Returns False when the broker refuses."""
        try:
            await control.bind(way, verb)
        except ChannelRefused as refused:
            if verb == "unbind" and refused.code == NOT_FOUND:
                return True
            self.refusals.refused(entry, f"{MQTT_REFUSED}{refused.reason}")
            return False
        return True

    async def _accept_refusals(
        self, control: Control, entries: Mapping[str, Entry], taken: Mapping[str, Entry]
    ) -> None:
        """Raise NotBroughtAbout for refused entries whose messages would go elsewhere, or nowhere."""
        self.refusals.keep(entries)
        refused = entries.keys() - taken.keys()
        takes_all = all([await self._takes_messages(control, entries[name]) for name in refused])
        await self.lead_out(control)
        if not takes_all:
            raise NotBroughtAbout("; ".join(self.refusals.reasons(entries)))

    async def _takes_messages(self, control: Control, entry: Entry) -> bool:
        """Return whether an existing queue with other options is bound as wanted all the same.

        Then no message misses it, and one name wanted with different options keeps no gate shut and
        drains nobody; it stays refused, and reported.
        """
        wanted = wanted_of(entry)
        if self.refusals.is_about_mqtt(entry):
            return True  # of all other publishers
        if not self.refusals.is_about_a_queue(entry.wanted):
            return False  # an exchange of another type would route otherwise
        there = [q.name for q in wanted.queues if await control.counts(q.name) is not None]
        if wanted.queues[-1].name not in there:
            return False
        await control.bind(
            replace(wanted, bindings=tuple(b for b in wanted.bindings if b.queue in there))
        )
        return True


def _without_missing(steps: Iterable[Step], listed: Definitions) -> Iterator[Step]:
    """Yield the steps without deletions of what is not there."""
    for step in steps:
        match step:
            case DeleteQueue(name) if name not in listed.births:
                pass
            case DeleteExchange(name) if name not in listed.exchanges:
                pass
            case _:
                yield step


def _together(each: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield them in groups that are declared, or bound, in one go."""
    for first in range(0, len(each), TOGETHER):
        yield each[first : first + TOGETHER]
