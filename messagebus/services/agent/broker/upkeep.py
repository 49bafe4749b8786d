"""The upkeep of the map on the agent's own broker, and of the broker's gate.

One lock: its holder declares, settles, compares versions and opens the gate. So the gate opens
only for the version that was just applied, and an answer given after taking the lock knows
whether it is open. Only this agent opens it.

A queue that vanishes is noticed by the broker's event (within milliseconds) or by the audit (within
AUDIT_INTERVAL_S, or more where there are many queues and events are proven to arrive), recorded in
`losses`, and made again. Its messages, and those published meanwhile, are lost: that is why it is
reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from messagebus._io.amqp.control import Control, mismatch_text, node_is_gone, port_refuses
from messagebus._io.amqp.link import NOT_FOUND, Credentials, Link, dial
from messagebus.clock import monotonic_ms, wall_ms
from messagebus.destination import UNDELIVERED_QUEUE
from messagebus.errors import ChannelRefused, ConfigError, LinkError, LinkLost, TopologyError
from messagebus.services.agent.broker.losses import AuditRounds, Deletions, Losses
from messagebus.services.agent.broker.management import Management, ManagementUnavailable
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
from messagebus.services.agent.broker.refusals import MQTT_REFUSED, Refusals, mismatch_on
from messagebus.services.agent.broker.settle import SLOW_S, Settler
from messagebus.services.agent.config import AgentConfig
from messagebus.services.agent.gate import Condition, may_open
from messagebus.services.agent.topology.homes import (
    MARK,
    expanded,
    homes_of,
    is_first,
    segment_name,
    segments,
    with_segments,
)
from messagebus.services.agent.topology.register import Entry, Register
from messagebus.services.agent.web.metrics import Figure
from messagebus.topology import STREAM_PREFIX, Declarations, Wanted, declarations, topic_of

log = logging.getLogger("messagebus.agent")

DIAL_TIMEOUT_MS = 1_000
# A booting broker is asked often: publishers wait for its gate. A refused connection costs 1 ms.
REDIAL_MIN_S = 0.1
REDIAL_MAX_S = 1.0
# Passive declare and bind of 100 queues: 30 to 42 ms and 4 ms of broker CPU.
AUDIT_INTERVAL_S = 1.0
LINK_WAIT_S = 1.0
EPMD_TIMEOUT_S = 0.5
# Wait until the broker has cancelled the consumers of a queue that vanished. A consumer that finds a queue
# of the same name instead is attached to it silently, counts its messages as seen, and gets none
# (RabbitMQ 3.10: 1,098 waited there). They were cancelled 0.1 s after the deletion on a loaded machine.
CANCELLED_S = 0.3
# While nobody listens the pause is a fiftieth of the time since: a broker that boots is met at once.
ABSENT_TIMES = 1.02
# First pause between looks at queues that are read from disk, then doubled: publishers wait for the gate.
READING_S = 0.05
# The map may change, or a queue vanish, while it is applied.
BRING_ROUNDS = 3


class NotBroughtAbout(TopologyError):
    """Raised when the broker does not have the map now; `run` tries again."""


class StillReading(NotBroughtAbout):
    """Raised while the broker reads its queues from disk, as at every boot."""


class Upkeep:
    """The broker's side of one agent. Runs on one loop.

    on_new_life: called when the broker came up without a gate: read a majority again.
    on_report: called when `held` or `losses` changed, to store them.
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
        self._config = config
        self._register = register
        self._settler = settler
        self._management = management
        self._on_new_life = on_new_life
        self._on_report = on_report
        self._on_gone = on_gone
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._linked = asyncio.Event()
        # Set once the first link is open or failed: before that nothing is known.
        self.tried = asyncio.Event()
        self._control: Control | None = None
        self._gate_open: bool | None = None  # None: unknown, the link was lost while it was open
        self._has_events = False
        self._awaited_event = ""
        self.events_proven = False
        self._brought: dict[str, Entry] = {}
        self._opened: dict[str, int] = {}  # partitioned topics -> number of the entry
        self._expanded: tuple[int, Mapping[str, Entry]] | None = None
        self.unsealed: set[str] = set()
        """Segments that still take publishes, though the map has them sealed: the next home prepares."""
        self._vanished: set[str] = set()
        self._suspects: set[str] = set()  # may have vanished, although the clock says no
        self._brought_version = 0
        self._behind_since_ms: int | None = None
        self._births: dict[str, int | None] | None = None
        self._deletions, self._rounds = Deletions(), AuditRounds()
        self.refusals = Refusals()
        self.held: dict[str, int] = {}
        self.losses = Losses(config.broker, on_report)
        self.ladder = Ladder(config.broker)
        self.recovery = Recovery(config.broker, settler)
        self.settles_fast = 0
        self.settles_slow = 0
        self.dials = 0
        self.fault = ""

    def figures(self) -> Iterator[Figure]:
        condition, settled = self.condition, self.is_settled
        yield Figure("linked", "1 while the AMQP link is open.", condition.linked)
        yield Figure("gate_open", "1 while the gate is open.", condition.gate_open)
        yield Figure("settled", "1 while the map is there and settled.", settled)
        yield Figure("refused", "Names that the broker has otherwise.", len(self.refusals))
        yield Figure("events_proven", "1 when the broker's events arrive.", self.events_proven)
        yield Figure("lost", "Queues, bindings, exchanges that vanished.", self.losses.total, True)
        yield Figure("dials", "AMQP links dialled.", self.dials, True)
        yield Figure("settles_fast", "Settled by erl_call.", self.settles_fast, True)
        yield Figure("settles_slow", "Settled by waiting.", self.settles_slow, True)
        yield from self.ladder.figures()
        yield from self.recovery.figures()

    # Questions of other parts.

    @property
    def condition(self) -> Condition:
        """The known state of the broker; alarm, joining and draining are not set here."""
        return Condition(
            linked=self._linked.is_set(),
            gate_open=bool(self._gate_open),
            informed=self._register.informed,
            wanted_version=self._register.version,
            brought_version=self._brought_version,
            behind_since_ms=self._behind_since_ms,
            vanished=self.losses.missing,
            stuck=self.recovery.fault,
        )

    @property
    def is_settled(self) -> bool:
        """True when exactly the current map is on the broker and settled, and nothing of it is refused."""
        return self._linked.is_set() and self._is_brought and not self.refusals

    @property
    def _is_brought(self) -> bool:
        return self._brought_version == self._register.version

    def missing(self) -> list[str]:
        """Return the wanted names that are not on the broker as the map wants them."""
        entries = self._entries.items()
        return sorted(n for n, entry in entries if entry.alive and self._brought.get(n) != entry)

    def settled_queues(self) -> dict[str, bool]:
        """Return the AMQP name of every wanted queue -> whether it exists, settled."""
        linked = self._linked.is_set()
        return {UNDELIVERED_QUEUE: linked and self.ladder.leads_out} | {
            queue.name: linked and self._brought.get(name) == entry
            for name, entry in self._entries.items()
            if entry.alive
            for queue in wanted_of(entry).queues
        }

    def wake(self) -> None:
        """Look at once: the map may have changed."""
        is_behind = not (self._linked.is_set() and self._is_brought)
        if is_behind and self._behind_since_ms is None:
            self._behind_since_ms = monotonic_ms()
        self._wake.set()

    async def wait_linked(self) -> None:
        """Wait until there is a link to the broker."""
        await self._linked.wait()

    async def gate_is_shut(self) -> bool:
        """Return whether the gate is certainly shut; waits while it is being opened for an earlier map."""
        async with self._lock:
            return self._gate_open is False

    async def node_is_gone(self) -> bool:
        """Return whether the broker's process is certainly dead. It has no gate then, nor after its boot."""
        name = self._config.node_name
        host = name.partition("@")[2] or self._config.address.host
        port = self._config.epmd_port
        return bool(name) and await node_is_gone(host, name, port, timeout_s=EPMD_TIMEOUT_S)

    def has(self, names: Iterable[str]) -> bool:
        """Return whether the broker has all of these as the map wants them, with their open segments.

        A topic that only MQTT clients do not reach is there: see `refusals`.
        """
        entries = self._entries
        return all(
            (
                self._brought.get(name) == entries.get(name)
                or (name in entries and self.refusals.is_about_mqtt(entries[name]))
            )
            and (name not in entries or self.is_open(entries[name]))
            for name in with_segments(entries, names)
        )

    # Partitioned topics.

    @property
    def _entries(self) -> Mapping[str, Entry]:
        """The map, with the segments whose home this broker is."""
        version = self._register.version
        if self._expanded is None or self._expanded[0] != version:
            entries = self._register.entries
            me = self._config.address.name
            self._expanded = version, expanded(entries, me, self.is_open, self.unsealed)
        return self._expanded[1]

    def is_open(self, entry: Entry) -> bool:
        """Return whether publishes may enter the segments of a topic here; True of all else."""
        if not entry.alive or MARK in entry.wanted or not homes_of(entry):
            return True
        if self._opened.get(entry.wanted) == entry.number:
            return True
        me = self._config.address.name
        first = next((each for each, _ in segments(entry, me) if is_first(each)), None)
        if first is None:  # the others' business
            return True
        if self.held.get(segment_name(entry.wanted, first)) == entry.number:
            self._opened[entry.wanted] = entry.number  # before a start of this agent
            return True
        return False

    def segment_queues(self, name: str) -> dict[str, str]:
        """Return the segments of a subscription whose home this broker is -> their queues."""
        below = segment_name(name, "")
        return {
            each.removeprefix(below): wanted_of(entry).queues[-1].name
            for each, entry in self._entries.items()
            if each.startswith(below) and entry.alive
        }

    async def seal(self) -> None:
        """Unbind what the map has sealed, before all else: its publishers wait. Raises LinkError."""
        async with self._lock:
            control = self._open_control()
            for name, entry in self._entries.items():
                if MARK in name and "/" not in name and not entry.alive and self._is_new(entry):
                    await self._perform(control, Seal(wanted_of(entry)))
                    self._brought[name] = entry
        self.wake()

    def _is_new(self, entry: Entry) -> bool:
        """Return whether a segment of a living topic is to be applied still."""
        topic = self._entries.get(_topic_of(entry.wanted))
        is_there = topic is not None and topic.alive
        return is_there and self._brought.get(entry.wanted) != entry

    def unbound(self, topic: str) -> dict[str, bool]:
        """Return the segments of a topic here -> whether nothing enters them, as far as it is known."""
        me, found = self._config.address.name, dict[str, bool]()
        for segment, _ in segments(self._register.entries[topic], me):
            name = segment_name(topic, segment)
            entry = self._entries.get(name)
            is_there = entry is not None and self._brought.get(name) == entry
            found[segment] = self._linked.is_set() and is_there and not entry.alive  # type: ignore[union-attr]
        return found

    def bound(self, topic: str) -> list[str]:
        """Return the segments of a topic that publishes enter here, and are kept by all its subscriptions."""
        names = [n for n in self._entries if MARK in n and _topic_of(n) == topic]
        whole = self._linked.is_set() and not self._vanished
        found = dict[str, bool]()
        for name in names:
            segment, entry = name.partition(MARK)[2], self._entries[name]
            is_there = whole and self._brought.get(name) == entry
            is_way_in = entry.alive or not name.startswith(segment_name(topic, ""))
            found[segment] = found.get(segment, True) and is_there and is_way_in
        return [segment for segment, is_bound in found.items() if is_bound]

    def look_for_open(self) -> None:
        """Open the segments of new topics whose homes every agent on the list agrees on."""
        for entry in self._register.entries.values():
            if not self.is_open(entry) and self._register.is_unanimous(entry):
                log.info("partitions open topic=%s", entry.wanted)
                self._opened[entry.wanted] = entry.number
                self._register.version += 1  # whatever is being applied now lacks them
                self.wake()

    # Expiring subscriptions.

    def expiring(self) -> dict[str, int]:
        """Return the names of applied expiring entries -> seconds without use after which they expire."""
        return {
            n: expires_s for n, entry in self._brought.items() if (expires_s := expires_s_of(entry))
        }

    async def use_of(self, name: str) -> int | None:
        """Return how many consumers an expiring subscription has here; None when its queue does not exist.

        Raises LinkError.
        """
        control, entry = self._open_control(), self._brought.get(name)
        if entry is None:
            raise LinkLost(self._config.broker, f"{name} is not there yet")
        wanted = wanted_of(entry)
        found = await control.counts(wanted.queues[-1].name)
        if found is not None and not self.events_proven:
            await control.bind(wanted)
        return None if found is None else found[1]

    async def make_again(self, name: str, *, lost: bool = False) -> None:
        """Make an expiring subscription again. lost: it was in use, so its messages are a loss."""
        async with self._lock:
            entry = self._brought.get(name)
            if entry is None:
                return
            if lost:
                self._note_loss(entry, "queue", wanted_of(entry).queues[-1].name, "expiry")
            else:
                del self._brought[name]
                self._brought_version = 0
        self.wake()

    # The queues of the broker.

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
        control = self._control
        try:
            if control is not None and control.is_open:
                async with asyncio.timeout(LINK_WAIT_S):
                    told = [
                        await mismatch_on(control, self._management, declarations(each))
                        for each in wanted
                    ]
                return "; ".join(text for text in told if text)
        except (LinkError, TimeoutError) as fault:
            log.info("no look broker=%s reason=%s", self._config.broker, fault)
        return ""

    async def counts(self, queues: Iterable[str]) -> dict[str, tuple[int, int] | None]:
        """Return ready messages and consumers by queue name, None for a missing one. Raises LinkError."""
        return await self._open_control().count_all(list(queues))

    async def purge(self, queues: Iterable[str]) -> dict[str, int | None]:
        """Drop the ready messages of these queues. Returns how many by name. Raises LinkError."""
        control = self._open_control()
        return {queue: await control.purge(queue) for queue in queues}

    def _open_control(self) -> Control:
        control = self._control
        if control is None or not control.is_open:
            raise LinkLost(self._config.broker, "no link to the broker")
        return control

    # The life of the link.

    async def run(self) -> None:
        """Keep a link and the map on the broker, for ever."""
        pause_s = REDIAL_MIN_S
        while True:
            began_s = time.monotonic()
            try:
                await self._session()
            except (LinkError, TopologyError, ManagementUnavailable, ConfigError) as fault:
                self._tell_fault(str(fault))
            finally:
                self._let_go()
                self.tried.set()
            if self._gate_open is None and await self.node_is_gone():
                self._gate_open = False  # only we open the gate of its next life
            lived = time.monotonic() - began_s > REDIAL_MAX_S
            refuses = await port_refuses(self._config.address, timeout_s=EPMD_TIMEOUT_S)
            longer_s = min(pause_s * (ABSENT_TIMES if refuses else 2), REDIAL_MAX_S)
            pause_s = REDIAL_MIN_S if lived else longer_s
            await asyncio.sleep(pause_s)

    async def _session(self) -> None:
        control = await self._dial()
        try:
            await self._look(control)
            births, _ = await asyncio.gather(self._list_queues(), self._revive(control))
            async with self._lock:
                self._control, self._births = control, births
                self._brought, self._brought_version = {}, 0
                self._linked.set()
                self.tried.set()
                self._note_losses_at_start()
            log.info("link open broker=%s gate=%s", self._config.broker, self._gate_open)
            control.link.on_lost(lambda _why: self._lost_link())
            self._behind_since_ms = None
            self.wake()
            await self._prove_events(control)
            await self._keep(control)
        finally:
            control.abort()

    async def _revive(self, control: Control) -> None:
        await self.recovery.revive()
        await self.ladder.begin(control)

    async def _look(self, control: Control) -> None:
        """Follow events, and check whether the gate exists."""
        self._has_events = await control.follow_events(self._event)
        if not self._has_events:
            log.warning("no events broker=%s: plugin rabbitmq_event_exchange", self._config.broker)
        self._gate_open = await control.gate_is_open()
        if not self._gate_open:
            # Only now: an agent that saw the port refuse, and called a change complete, did so earlier.
            self._register.life_began()
            self._on_new_life()

    async def _dial(self) -> Control:
        self.dials += 1
        return await Control.dial(
            self._config.address, self._credentials("agent"), timeout_ms=DIAL_TIMEOUT_MS
        )

    async def dial(self) -> Link:
        """Open a link of the agent's user for a tap. Raises LinkError."""
        return await dial(
            self._config.address, self._credentials("tap of agent"), timeout_ms=DIAL_TIMEOUT_MS
        )

    def _credentials(self, what: str) -> Credentials:
        return Credentials(
            user=self._config.user,
            password=self._config.password,
            client_id=f"{what} {self._config.broker}",
            tls=self._config.tls_files.client_context() if self._config.tls else None,
        )

    async def _list_queues(self) -> dict[str, int | None] | None:
        """Return the births of the broker's queues; None when unknown now, {} when always unknown."""
        if not self._management.is_there:
            return {}
        try:
            return await self._management.births()
        except ManagementUnavailable as fault:
            log.info("queues not listed broker=%s reason=%s", self._config.broker, fault)
            return None

    async def _prove_events(self, control: Control) -> None:
        """Delete a queue of our own to prove that events arrive: their exchange stays without its plugin."""
        self.events_proven = False
        if self._has_events:
            self._awaited_event = await control.declare_probe()
            await control.delete_queue(self._awaited_event)

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
                self._tell_fault(str(fault))
            if self.refusals:
                self._tell_fault("; ".join(self.refusals.reasons(self._register.entries)))
            if self._suspects:
                suspects, self._suspects = self._suspects, set()
                await self._audit(control, suspects)
            if time.monotonic() >= audit_at_s:
                await self._audit_gate(control)
                await self._audit(control, self._next_audit())
                await self._look_at_ladder(control)
                await self.recovery.look()
                audit_at_s = time.monotonic() + AUDIT_INTERVAL_S
        raise LinkLost(self._config.broker, "link lost")

    def _lost_link(self) -> None:
        self._linked.clear()
        self._wake.set()

    def _let_go(self) -> None:
        self._control = None
        self._linked.clear()
        self._brought_version = 0
        self.events_proven = False
        self.recovery.begin_anew()
        # Shut stays shut, since only we open it; an open one may have gone with the broker.
        if self._gate_open:
            self._gate_open = None

    def _tell_fault(self, fault: str) -> None:
        if fault != self.fault:
            log.warning("broker not kept broker=%s reason=%s", self._config.broker, fault)
        self.fault = fault

    # Applying the map.

    async def bring_about(self) -> None:
        """Apply the map to the broker, settle it, and open the gate when it may.

        Raises LinkError, NotBroughtAbout or ManagementUnavailable; `run` tries again.
        """
        async with self._lock:
            control = self._open_control()
            for _ in range(BRING_ROUNDS):
                if self._is_brought and not self.refusals.is_due:
                    break
                await self._bring_about(control)
            if self._vanished:
                raise NotBroughtAbout("queues vanish as fast as they are made")
            if self._register.informed:
                await self.ladder.lead_out(control)
            if may_open(self.condition):
                await self._need_leaders()
                # If the answer is lost, it may be open all the same.
                self._gate_open = None
                await control.open_gate()
                self._gate_open = True
                log.info(
                    "gate opened broker=%s entries=%d", control.link.broker, len(self._brought)
                )

    async def _need_leaders(self) -> None:
        """Raise StillReading after a boot, until the queues are read or the wait was long enough."""
        if not await self.recovery.has_leaders():
            raise StillReading("queues are read from disk: they have no leader yet")

    async def _bring_about(self, control: Control) -> None:
        version, entries = self._register.version, dict(self._entries)
        tried = {name: entry for name, entry in entries.items() if not self.refusals.rests(entry)}
        floor = self._register.floor if self._register.informed else 0
        unsure = unsure_of(tried, brought=self._brought, held=self.held)
        if self._births is None and unsure:
            await self._find_births(control, unsure)
        births = self._births or {}
        if self._vanished:
            await asyncio.sleep(CANCELLED_S)
        lost, self._vanished = self._vanished, set()
        steps = plan(
            tried,
            brought=self._brought,
            births=births,
            floor=floor,
        )
        if not self._gate_open and any(isinstance(step, DeleteQueue) for step in steps):
            # RabbitMQ 3.10 makes no quorum queues any more when one is deleted while its boot starts it.
            await self._need_leaders()
        for step in steps:
            if not await self._perform(control, step):
                assert isinstance(step, Declare)
                del tried[step.entry.wanted]
            elif isinstance(step, Declare) and step.entry.wanted in lost:
                # Publishes go on without it. From now on its messages are lost only by a kill.
                await control.bind(step.declarations)
        declared = [
            step.declarations
            for step in steps
            if isinstance(step, Declare) and step.entry.wanted in tried
        ]
        # Definitions of classic queues are on disk when they are answered.
        if any(each.needs_settling for each in declared) or not self.ladder.leads_out:
            await self._settle(control)
            names = {queue.name for each in declared for queue in each.queues}
            if dead := sorted(names & await self.recovery.find_dead()):
                raise NotBroughtAbout(
                    f"queues are dead as soon as they are made: {', '.join(dead)}"
                )
        # Only now: a confirm promises that the message survives, so no unsettled queue may give one.
        for each in declared:
            await control.bind(each)
        for entry, way, verb in list(ways_of_mqtt(tried, brought=self._brought)):
            if not await self._lead_mqtt(control, entry, way, verb):
                del tried[entry.wanted]
        # Entries that vanished during the steps are applied in the next round.
        self._brought = {name: e for name, e in tried.items() if name not in self._vanished}
        if self._vanished:
            return
        self.refusals.keep(entries)
        refused = entries.keys() - tried.keys()
        takes_all = all([await self._takes_messages(control, entries[name]) for name in refused])
        if self._register.informed:  # or there may be queues that are not bound
            await self.ladder.lead_out(control)
        if not takes_all:
            raise NotBroughtAbout("; ".join(self.refusals.reasons(entries)))
        self._brought_version = version
        self._behind_since_ms = None if version == self._register.version else monotonic_ms()
        self.losses.repaired(wall_ms())
        self._note_held(entries)

    async def _find_births(self, control: Control, unsure: Iterable[Entry]) -> None:
        """Find the births that `plan` needs, when the management API did not answer at first.

        A missing queue is of no earlier life. Raises ManagementUnavailable when one exists: then it is
        unknown whether it has to be deleted first.
        """
        try:
            self._births = await self._management.births()
        except ManagementUnavailable as fault:
            for entry in unsure:
                for queue in wanted_of(entry).queues:
                    if await control.counts(queue.name) is not None:
                        raise ManagementUnavailable(
                            f"{fault}; whether {queue.name} is of an earlier life is not known"
                        ) from fault

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

    async def _perform(self, control: Control, step: Step) -> bool:
        """Perform one step. Returns False when the broker refused a declaration again."""
        match step:
            case DeleteQueue(name):
                self._deletions.ordered(name)
                await control.delete_queue(name)
                if self._births is not None:
                    self._births.pop(name, None)
                log.info("queue deleted broker=%s queue=%s", self._config.broker, name)
            case DeleteExchange(name):
                self._deletions.ordered(name)
                await control.delete_exchange(name)
            case Seal(declarations):
                self._deletions.ordered(declarations.bindings[0].queue)
                await control.declare(declarations)
                await control.bind(declarations, "unbind")
                log.info("sealed segment=%s", declarations.bindings[0].queue)
            case Declare(entry):
                self._deletions.declaring(step.declarations, wall_ms())
                if not await self._declare(control, step):
                    return False
                for queue in step.declarations.queues:
                    if self._births is not None:
                        self._births.setdefault(queue.name, entry.number)
        return True

    async def _lead_mqtt(
        self, control: Control, entry: Entry, way: Declarations, verb: Literal["bind", "unbind"]
    ) -> bool:
        """Bind a topic to MQTT's exchange, or unbind it. Returns False when the broker refuses."""
        self._brought.pop(entry.wanted, None)  # so the event of its unbinding is no loss
        try:
            await control.bind(way, verb, aside=True)
        except ChannelRefused as refused:
            if verb == "unbind" and refused.code == NOT_FOUND:
                return True
            self.refusals.refused(entry, f"{MQTT_REFUSED}{refused.reason}")
            return False
        return True

    async def _declare(self, control: Control, step: Declare) -> bool:
        """Declare an entry. A first refusal raises and costs the link; a later one returns False."""
        name = step.entry.wanted
        again = name in self.refusals
        try:
            await control.declare(step.declarations, aside=again)
        except ChannelRefused as refused:
            reason = mismatch_text(refused.reason)
            self.refusals.refused(step.entry, reason)
            if not again:
                log.warning("declaration refused wanted=%s reason=%s", name, reason)
                raise
            return False
        self.refusals.taken(name)
        return True

    async def _settle(self, control: Control) -> None:
        if await self._settler.names_synced():
            self.settles_fast += 1
        else:
            await control.declare_settle_queue()
            await asyncio.sleep(SLOW_S)
            self.settles_slow += 1
            # A known wait on every broker at once: it must not drain them all.
            self._behind_since_ms = monotonic_ms()
        if not await self._settler.files_synced():
            raise NotBroughtAbout("the data folder could not be synced")

    # Noticing losses.

    async def _audit_gate(self, control: Control) -> None:
        """Mark a vanished gate as shut (its queue was emptied, or crashed), so that it may open again."""
        async with self._lock:
            if self._gate_open and not await control.gate_is_open():
                log.warning("gate vanished broker=%s", self._config.broker)
                self._gate_open = False
                self._wake.set()

    def _next_audit(self) -> list[str]:
        """Return all names, or some of them while events are proven."""
        # `Expiry` looks after expiring entries.
        alive = (n for n, e in self._brought.items() if e.alive and not expires_s_of(e))
        return self._rounds.next(alive, events_proven=self.events_proven)

    async def _audit(self, control: Control, names: Iterable[str]) -> None:
        """Check that the queues of these exist, and bind them."""
        for name in names:
            async with self._lock:
                entry = self._brought.get(name)
                if entry is None or not entry.alive:
                    continue
                missing = await control.audit(wanted_of(entry))
                if missing:
                    self._note_loss(entry, "queue", missing, "audit")
                    return

    async def _look_at_ladder(self, control: Control) -> None:
        async with self._lock:
            led_out = self.ladder.leads_out
            await self.ladder.look(control)
            if led_out and not self.ladder.leads_out:
                self._brought_version = 0  # it is settled and bound with the rest
                self.wake()

    def _event(self, key: str, headers: Mapping[str, Any]) -> None:
        name = str(headers.get("name") or headers.get("destination_name") or "")
        if name and name == self._awaited_event:
            self.events_proven, self._awaited_event = True, ""
            return
        if self._deletions.is_ours(name, headers):
            return
        what, deleted_at_ms = key.partition(".")[0], headers.get("timestamp_in_ms", 0)
        if what == "queue":
            self.losses.was_a_queue(name, deleted_at_ms)
        struck = list(Deletions.struck(list(self._brought.values()), what, name, headers))
        if self._deletions.is_undone(name, deleted_at_ms):
            if what == "queue":
                self._suspects |= {entry.wanted for entry in struck if not expires_s_of(entry)}
                self.wake()
            return
        for entry in struck:
            if expires_s_of(entry):
                self._on_gone(entry.wanted)
            else:
                self._note_loss(entry, what, name, "event")

    def _note_losses_at_start(self) -> None:
        """Record held queues that are missing, as far as the broker can list its queues."""
        if self._births is None or not self._management.is_there:
            return
        for name, number in list(self.held.items()):
            entry = self._entries.get(name)
            if entry is None or not entry.alive or entry.number != number or expires_s_of(entry):
                continue
            for queue in wanted_of(entry).queues:
                if queue.name not in self._births:
                    self._note_loss(entry, "queue", queue.name, "start")

    def _note_loss(self, entry: Entry, what: str, name: str, how: str) -> None:
        """Record and log a loss, and have it made again."""
        self._vanished.add(entry.wanted)
        self._brought.pop(entry.wanted, None)
        self._brought_version = 0
        if self._births is not None:
            self._births.pop(name, None)
        self.losses.noticed(entry.wanted, what, name, how=how, now_ms=wall_ms())
        self.wake()

    def _note_held(self, entries: Mapping[str, Entry]) -> None:
        held = {name: entry.number for name, entry in entries.items() if entry.alive}
        if held != self.held:
            self.held = held
            self._on_report()


def _topic_of(segment: str) -> str:
    return topic_of(segment.partition(MARK)[0].removeprefix(STREAM_PREFIX))
