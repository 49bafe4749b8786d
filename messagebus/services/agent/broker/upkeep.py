"""The upkeep of the map on the agent's own broker: one link, one loop and one lock.

The lock's holder declares, settles, compares versions and opens the gate. So the gate opens only for the
version that was just applied, and an answer given after taking the lock knows whether it is open.

A queue that vanishes is recorded in `losses`, and made again. Its messages, and those published meanwhile,
are lost: that is why it is reported.
"""

# Each state has one owner, and only the upkeep takes the lock:
#
#   Upkeep ─ lock, loop, wake ─┬─ OwnLink      the AMQP link: dialled, open, lost
#                              ├─ Gate         shut, unknown, open
#                              ├─ Applied      entries that the broker has, their version, since when behind
#                              ├─ Partitions   segments here: opened, unsealed; the map expanded with them
#                              ├─ LossWatch    events, audits, suspects ──► Losses (the record)
#                              └─ Reconciler   plan and its steps; Refusals, Ladder, Recovery
#
# A session: dial ─ look for the gate ─ list definitions, revive dead queues ─ open ─ keep. `_keep` applies
# the map whenever it is woken, and audits at every interval; `compare` has it audit what the broker's lists
# lack. When the link is lost, all that was known of the broker goes with it, but for the gate: shut stays
# shut, since only this agent opens it.

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from messagebus._io.amqp.control import Control
from messagebus.clock import wall_ms
from messagebus.destination import UNDELIVERED_QUEUE
from messagebus.errors import ConfigError, LinkError, LinkLost, TopologyError
from messagebus.services.agent.broker.applied import Applied
from messagebus.services.agent.broker.link import OwnLink
from messagebus.services.agent.broker.losses import Losses, LossWatch, lacking_in
from messagebus.services.agent.broker.management import Management, ManagementUnavailable
from messagebus.services.agent.broker.partitions import Partitions
from messagebus.services.agent.broker.plan import expires_s_of, wanted_of
from messagebus.services.agent.broker.reconcile import NotBroughtAbout, Reconciler, StillReading
from messagebus.services.agent.broker.refusals import mismatch_on
from messagebus.services.agent.broker.settle import Settler
from messagebus.services.agent.config import AgentConfig
from messagebus.services.agent.gate import Condition, Gate, may_open
from messagebus.services.agent.topology.homes import with_segments
from messagebus.services.agent.topology.register import Register
from messagebus.services.agent.web.metrics import Figure
from messagebus.topology import Wanted, declarations

log = logging.getLogger("messagebus.agent")

# A booting broker is asked often: publishers wait for its gate. A refused connection costs 1 ms.
REDIAL_MIN_S = 0.1
REDIAL_MAX_S = 1.0
# Passive declare and bind of 100 queues: 30 to 42 ms and 4 ms of broker CPU.
AUDIT_INTERVAL_S = 1.0
LINK_WAIT_S = 1.0
# While nobody listens the pause is a fiftieth of the time since: a broker that boots is met at once.
ABSENT_TIMES = 1.02
# First pause between looks at queues that are read from disk, then doubled: publishers wait for the gate.
READING_S = 0.05
# The map may change, or a queue vanish, while it is applied.
BRING_ROUNDS = 3


class Upkeep:
    """The broker's side of one agent. Runs on one loop.

    on_new_life: called when the broker came up without a gate: read a majority again.
    on_report: called when `applied.held` or `losses` changed, to store them.
    on_gone: called with the name of an expiring subscription when its queue or a binding may be gone,
    which need be no loss.
    """

    def __init__(
        self,
        config: AgentConfig,
        register: Register,
        *,
        settler: Settler,
        management: Management,
        on_new_life: Callable[[], None],
        on_report: Callable[[], None],
        on_gone: Callable[[str], None] = lambda _name: None,
    ) -> None:
        broker = self._broker = config.broker
        self._register, self._management = register, management
        self._on_new_life = on_new_life
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._bringing: set[asyncio.Task[None]] = set()
        self.link = OwnLink(config)
        self.applied = Applied(register, on_report)
        self.partitions = Partitions(
            config.address.name, register, self.applied, self.link, self.wake
        )
        self.losses = Losses(broker, on_report)
        self._watch = LossWatch(
            broker, applied=self.applied, losses=self.losses, on_gone=on_gone, on_loss=self.wake
        )
        self._gate = Gate()
        self.reconciler = Reconciler(
            broker,
            register,
            applied=self.applied,
            partitions=self.partitions,
            gate=self._gate,
            deletions=self._watch.deletions,
            settler=settler,
            management=management,
        )
        self.refusals = self.reconciler.refusals
        self.fault = ""

    def figures(self) -> Iterator[Figure]:
        condition, settled, watch = self.condition, self.is_settled, self._watch
        yield Figure("linked", condition.linked)
        yield Figure("gate_open", condition.gate_open)
        yield Figure("settled", settled)
        yield Figure("refused", len(self.refusals))
        yield Figure("events_proven", watch.events_proven)
        yield Figure("lost", self.losses.total)
        yield Figure("dials", self.link.dials)
        yield from self.reconciler.figures()

    # Questions of other parts.

    @property
    def condition(self) -> Condition:
        """The known state of the broker; alarm, joining and draining are not set here."""
        return Condition(
            linked=self.link.is_open,
            gate_open=self._gate.is_open,
            informed=self._register.informed,
            wanted_version=self._register.version,
            brought_version=self.applied.version,
            behind_since_ms=self.applied.behind_since_ms,
            vanished=self.losses.missing,
            stuck=self.reconciler.recovery.fault,
        )

    @property
    def is_settled(self) -> bool:
        """True when exactly the current map is on the broker and settled, and nothing of it is refused."""
        return self.link.is_open and self.applied.is_whole and not self.refusals

    def missing(self) -> list[str]:
        """Return the wanted names that are not on the broker as the map wants them."""
        entries = self.partitions.entries.items()
        return sorted(n for n, entry in entries if entry.alive and not self.applied.has(entry))

    def settled_queues(self) -> dict[str, bool]:
        """Return the AMQP name of every wanted queue -> whether it exists, settled."""
        linked = self.link.is_open
        return {UNDELIVERED_QUEUE: linked and self.reconciler.ladder.leads_out} | {
            queue.name: linked and self.applied.has(entry)
            for entry in self.partitions.entries.values()
            if entry.alive
            for queue in wanted_of(entry).queues
        }

    def has(self, names: Iterable[str]) -> bool:
        """Return whether the broker has all of these as the map wants them, with their open segments.

        A topic that only MQTT clients do not reach is there: see `refusals`.
        """
        entries, applied = self.partitions.entries, self.applied.entries
        return all(
            (
                applied.get(name) == entries.get(name)
                or (name in entries and self.refusals.is_about_mqtt(entries[name]))
            )
            and (name not in entries or self.partitions.is_open(entries[name]))
            for name in with_segments(entries, names)
        )

    def wake(self) -> None:
        """Look at once: the map may have changed."""
        if not (self.link.is_open and self.applied.is_whole):
            self.applied.fell_behind()
        self._wake.set()

    async def gate_is_shut(self) -> bool:
        """Return whether the gate is certainly shut; waits while it is being opened for an earlier map."""
        async with self._lock:
            return self._gate.is_shut

    async def mismatch(self, wanted: Iterable[Wanted]) -> str:
        """Describe which of these exist on the broker with other options, made by hand; "" for nothing.

        Also "" when it is unknown now: then the answer to the registration tells it.
        """
        try:
            async with asyncio.timeout(LINK_WAIT_S):
                # First the map as it is: it may have deletions that are not done.
                await self.bring_about()
        except (LinkError, TopologyError, TimeoutError, ManagementUnavailable):
            pass
        try:
            control = self.link.control
            async with asyncio.timeout(LINK_WAIT_S):
                return await mismatch_on(control, self._management, map(declarations, wanted))
        except (LinkError, TimeoutError) as fault:
            log.info("queues not read broker=%s reason=%s", self._broker, fault)
        return ""

    # Expiring subscriptions.

    def expiring(self) -> dict[str, int]:
        """Return the names of applied expiring entries -> seconds without use after which they expire."""
        entries = self.applied.entries.items()
        return {name: expires_s for name, each in entries if (expires_s := expires_s_of(each))}

    async def use_of(self, name: str) -> int | None:
        """Return how many consumers an expiring subscription has here; None when its queue does not exist.

        Raises LinkError.
        """
        control, entry = self.link.control, self.applied.entries.get(name)
        if entry is None:
            raise LinkLost(self._broker, f"{name} is not there yet")
        wanted = wanted_of(entry)
        found = await control.counts(wanted.queues[-1].name)
        if found is not None and not self._watch.events_proven:
            await control.bind(wanted)
        return None if found is None else found[1]

    async def make_again(self, name: str, *, lost: bool = False) -> None:
        """Make an expiring subscription again. lost: it was in use, so its messages are a loss."""
        async with self._lock:
            entry = self.applied.entries.get(name)
            if entry is None:
                return
            if lost:
                self._watch.note(entry, "queue", wanted_of(entry).queues[-1].name, "expiry")
            else:
                self.applied.apply_again(name)
        self.wake()

    # Applying the map.

    async def seal(self) -> None:
        """Unbind what the map has sealed, before all else: its publishers wait. Raises LinkError."""
        async with self._lock:
            await self.reconciler.seal(self.link.control)
        self.wake()

    async def bring_about(self) -> None:
        """Apply the map to the broker, settle it, and open the gate when it may.

        It goes on when its caller gives up: what was half done would be begun anew for the next one, for ever
        where a large change takes longer than anybody waits.
        Raises LinkError, NotBroughtAbout or ManagementUnavailable; `run` tries again.
        """
        work = asyncio.create_task(self._bring_about())
        self._bringing.add(work)
        work.add_done_callback(self._brought)
        await asyncio.shield(work)

    def _brought(self, work: asyncio.Task[None]) -> None:
        self._bringing.discard(work)
        if not work.cancelled():
            work.exception()  # its caller may have given up; `_keep` finds out the same

    async def _bring_about(self) -> None:
        async with self._lock:
            control = self.link.control
            for _ in range(BRING_ROUNDS):
                if self.applied.is_whole and not self.refusals.is_due:
                    break
                if await self.reconciler.apply(control):
                    self.losses.repaired(wall_ms())
            if self.applied.vanished:
                raise NotBroughtAbout("queues vanish as fast as they are made")
            await self.reconciler.lead_out(control)
            if may_open(self.condition):
                await self.reconciler.need_leaders()
                self._gate.opening()
                await control.open_gate()
                self._gate.opened()
                entries = len(self.applied.entries)
                log.info("gate opened broker=%s entries=%d", control.link.broker, entries)

    # The life of the link.

    async def run(self) -> None:
        """Keep a link and the map on the broker, for ever."""
        pause_s = REDIAL_MIN_S
        while True:
            began_s = time.monotonic()
            try:
                await self._session()
            except (LinkError, TopologyError, ManagementUnavailable, ConfigError) as fault:
                self._report(str(fault))
            finally:
                self._let_go()
            if self._gate.is_unknown and await self.link.node_is_gone():
                self._gate.broker_gone()  # only we open the gate of its next life
            lived = time.monotonic() - began_s > REDIAL_MAX_S
            refuses = await self.link.port_refuses()
            longer_s = min(pause_s * (ABSENT_TIMES if refuses else 2), REDIAL_MAX_S)
            pause_s = REDIAL_MIN_S if lived else longer_s
            await asyncio.sleep(pause_s)

    async def compare(self) -> None:
        """Look in the broker's lists for what events have missed, for ever; not where nothing lists."""
        while self._management.is_there:
            await asyncio.sleep(self._watch.compare_every_s)
            if self.link.is_open and self._watch.events_proven:
                with contextlib.suppress(ManagementUnavailable):
                    listed = await self._management.definitions()
                    entries = self._watch.audited()
                    self._watch.compared(await asyncio.to_thread(lacking_in, listed, entries))

    async def _session(self) -> None:
        control = await self.link.dial()
        try:
            await self._watch.follow_events(control)
            await self._look_at_gate(control)
            listed, _ = await asyncio.gather(
                self.reconciler.definitions(), self.reconciler.revive(control)
            )
            async with self._lock:
                never_known = None if self._management.is_there else dict[str, int | None]()
                self.applied.begin(dict(listed.births) if listed else never_known, listed)
                self.link.opened(control)
                if listed is not None:
                    self._watch.note_missing(self.partitions.entries)
                    self._watch.compared(())  # nothing is applied yet
            log.info("link open broker=%s gate=%s", self._broker, self._gate.is_open)
            control.link.on_lost(lambda _why: self._lost_link())
            self.applied.behind_since_ms = None
            self.wake()
            await self._watch.prove_events(control)
            await self._keep(control)
        finally:
            control.abort()

    async def _look_at_gate(self, control: Control) -> None:
        self._gate.looked(await control.gate_is_open())
        if self._gate.is_shut:
            # Only now: an agent that saw the port refuse, and called a change complete, did so earlier.
            self._register.voters.life_began()
            self._on_new_life()

    def _lost_link(self) -> None:
        self.link.lost()
        self._wake.set()

    def _let_go(self) -> None:
        self.link.ended()
        self.applied.version = 0
        self._watch.link_ended()
        self.reconciler.recovery.begin_anew()
        self._gate.link_ended()

    async def _keep(self, control: Control) -> None:
        """Apply changes and audit, until the link is lost."""
        audit_at_s, reading_s = time.monotonic() + AUDIT_INTERVAL_S, READING_S
        while control.is_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, audit_at_s - time.monotonic())):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.bring_about()
                if not self.refusals:
                    self.fault = ""
            except StillReading as fault:
                self.fault = str(fault)  # `recovery` has logged it
                asyncio.get_running_loop().call_later(reading_s, self._wake.set)
                reading_s = min(2 * reading_s, AUDIT_INTERVAL_S)
            except (NotBroughtAbout, ManagementUnavailable) as fault:
                self._report(str(fault))
            if self.refusals:
                self._report("; ".join(self.refusals.reasons(self._register.entries)))
            await self._audit(control, self._watch.next_suspects())
            if time.monotonic() >= audit_at_s:
                await self._audit_gate(control)
                await self._audit(control, self._watch.next_audit())
                await self._look_at_ladder(control)
                async with self._lock:  # a queue that is being made looks dead
                    await self.reconciler.recovery.look()
                audit_at_s = time.monotonic() + AUDIT_INTERVAL_S
        raise LinkLost(self._broker, "link lost")

    def _report(self, fault: str) -> None:
        """Log why the broker lacks something of the map, once for each reason in turn."""
        if fault != self.fault:
            log.warning("broker not kept broker=%s reason=%s", self._broker, fault)
        self.fault = fault

    async def _audit(self, control: Control, names: Iterable[str]) -> None:
        """Check these up to the first loss: a look at a missing queue has cost the link."""
        for name in names:
            async with self._lock:
                if not await self._watch.audit(control, name):
                    return

    async def _audit_gate(self, control: Control) -> None:
        """Mark a vanished gate as shut (its queue was emptied, or crashed), so that it may open again."""
        async with self._lock:
            if self._gate.is_open and not await control.gate_is_open():
                log.warning("gate vanished broker=%s", self._broker)
                self._gate.looked(False)
                self._wake.set()

    async def _look_at_ladder(self, control: Control) -> None:
        ladder = self.reconciler.ladder
        async with self._lock:
            led_out = ladder.leads_out
            await ladder.look(control)
            if led_out and not ladder.leads_out:
                self.applied.version = 0  # it is settled and bound with the rest
                self.wake()
