"""Brings the map about on the agent's own broker, keeps it so, and opens the gate.

One lock: whoever holds it declares, settles, compares versions and opens the gate, so the gate opens
only for the version that was just brought about, and an answer given after taking the lock knows
whether it is open. Nobody but this agent opens it.

A queue that vanishes is noticed by the broker's event (within milliseconds) or by the audit (within
AUDIT_INTERVAL_S, or more where there are many queues and events are proven to arrive), told in
`lost`, and made again. What was in it, and what was published meanwhile, is gone: that is why it is
told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from messagebus._io.control import Control, mismatch_text, port_refuses
from messagebus._io.link import Credentials
from messagebus._io.settle import SLOW_S, Settler
from messagebus.agent.config import AgentConfig
from messagebus.agent.management import Management, ManagementUnavailable
from messagebus.agent.plan import (
    Declare,
    DeleteExchange,
    DeleteQueue,
    Step,
    expires_s_of,
    needs_births,
    plan,
    wanted_of,
)
from messagebus.core.gate import Condition, may_open
from messagebus.core.register import Entry, Register
from messagebus.core.registration import Answer, Reply
from messagebus.errors import ChannelRefused, ConfigError, LinkError, LinkLost, TopologyError
from messagebus.topology import BORN, Declarations, QueueSpec, Wanted, declarations

__all__ = ["Loss", "Upkeep"]

log = logging.getLogger("messagebus.agent")

DIAL_TIMEOUT_MS = 1_000
# A booting broker is asked often: publishers wait for its gate. A refused connection costs 1 ms.
REDIAL_MIN_S = 0.1
REDIAL_MAX_S = 1.0
# Passive declare and bind of 100 queues: 30 to 42 ms and 4 ms of broker CPU.
AUDIT_INTERVAL_S = 1.0
# While events are proven to arrive, the audit looks for lost ones only: once round in so many steps.
# With 10 entries that is 0.1 % of a core instead of 0.6 %.
AUDIT_STEPS = 10
# How long a registration waits here for its answer; a slow settle takes SLOW_S.
ANSWER_TIMEOUT_S = SLOW_S + 1.5
LINK_WAIT_S = 1.0
PROBE_TIMEOUT_S = 0.5
# Until the broker has told the consumers of a queue that vanished. One that finds a queue of the same
# name again instead is attached to it in silence, counts its messages as seen, and gets none
# (RabbitMQ 3.10: 1,098 waited there). They were told 0.1 s after the deletion on a loaded machine.
CANCELLED_S = 0.3
# An entry that the broker refused is tried again after that; the others do not wait for it.
REFUSED_RETRY_S = 5.0
LOSSES_KEPT = 100
# The map may change, or a queue vanish, while it is brought about.
BRING_ROUNDS = 3
# Events of one deletion carry times a few milliseconds apart.
SAME_LOSS_MS = 100


class NotBroughtAbout(TopologyError):
    """Raised when the broker does not have the map now; it is tried again by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A queue, binding or exchange that was there and is not any more.

    how: `event`, `audit`, or `start` when it was missing as the link was opened.
    repaired_at_ms: wall clock, 0 while it is missing.
    """

    wanted: str
    what: str
    name: str
    how: str
    noticed_at_ms: int
    repaired_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Refused:
    entry: Entry
    reason: str
    retry_at_s: float


class Upkeep:
    """The broker's side of one agent. Runs on one loop.

    on_new_life: called when the broker came up without a gate: read a majority again.
    on_report: called when `held` or `losses` changed, to store them.
    on_used, on_gone: called with the name of an expiring subscription when a client asks for it, and
    when its queue or a binding may be gone, which need be no loss.
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
        on_used: Callable[[str], None] = lambda _name: None,
        on_gone: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._config = config
        self._register = register
        self._settler = settler
        self._management = management
        self._on_new_life = on_new_life
        self._on_report = on_report
        self._on_used, self._on_gone = on_used, on_gone
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._linked = asyncio.Event()
        # Set once the first link is open or failed: before that there is nothing to say.
        self.tried = asyncio.Event()
        self._control: Control | None = None
        self._gate_open: bool | None = None  # None: not known, the link was lost while it was open
        self._has_events = False
        self._awaited_event = ""
        self.events_proven = False
        self._brought: dict[str, Entry] = {}
        self._vanished: set[str] = set()
        self._brought_version = 0
        self._behind_since_ms: int | None = None
        self._births: dict[str, int | None] | None = None
        self._own_deletions: set[str] = set()
        self._declared_at_ms: dict[str, int] = {}
        self._refused: dict[str, _Refused] = {}
        self._audit_queue: deque[str] = deque()
        self.held: dict[str, int] = {}
        self.losses: deque[Loss] = deque(maxlen=LOSSES_KEPT)
        self.losses_total = 0
        self.settles_fast = 0
        self.settles_slow = 0
        self.queues_revived = 0
        self.dials = 0
        self.fault = ""

    # What others ask.

    @property
    def condition(self) -> Condition:
        """What is known about the broker now; alarm, joining and draining are not ours."""
        return Condition(
            linked=self._linked.is_set(),
            gate_open=bool(self._gate_open),
            informed=self._register.informed,
            wanted_version=self._register.version,
            brought_version=self._brought_version,
            behind_since_ms=self._behind_since_ms,
            vanished=sum(not loss.repaired_at_ms for loss in self.losses),
        )

    @property
    def is_settled(self) -> bool:
        """Exactly the current map is on the broker, and settled."""
        return self._linked.is_set() and self._brought_version == self._register.version

    @property
    def losses_mark(self) -> int:
        """Another number whenever `losses` is another list."""
        return 2 * self.losses_total - sum(not loss.repaired_at_ms for loss in self.losses)

    def settled_queues(self) -> dict[str, bool]:
        """AMQP name of every wanted queue -> whether it is there and settled."""
        return {
            queue.name: self._linked.is_set() and self._brought.get(name) == entry
            for name, entry in self._register.entries.items()
            if entry.alive
            for queue in wanted_of(entry).queues
        }

    def refused_reasons(self, names: Iterable[str]) -> list[str]:
        return [f"{name}: {self._refused[name].reason}" for name in names if name in self._refused]

    def wake(self) -> None:
        """The map may have changed: look at once."""
        if not self.is_settled and self._behind_since_ms is None:
            self._behind_since_ms = _now_ms()
        self._wake.set()

    async def answer(self, names: Iterable[str]) -> Reply:
        """What to say to whoever registers these names, after the map was stored."""
        names, stored = list(names), self._register.intact
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                async with asyncio.timeout(await self._patience_s()):
                    await self._linked.wait()
                await self._renew(names)
                await self._bring_these_about(names)
            return Reply(answer=Answer.HELD, stored=stored)
        except (LinkError, TopologyError, TimeoutError, ManagementUnavailable) as fault:
            self.wake()
            kind = Answer.LATER if await self._is_shut() else Answer.NO
            reason = "; ".join(self.refused_reasons(names)) or str(fault) or "broker is too slow"
            return Reply(answer=kind, stored=stored, reason=reason)

    async def _bring_these_about(self, names: Sequence[str]) -> None:
        """Something else that the broker refuses is not held against these names."""
        try:
            await self.bring_about()
        except NotBroughtAbout:
            entries = self._register.entries
            if not names or any(self._brought.get(n) != entries.get(n) for n in names):
                raise

    async def _renew(self, names: Iterable[str]) -> None:
        """Somebody is going to use these: one that expired is made again, without being called a loss."""
        for name in names:
            entry = self._register.entries.get(name)
            if entry is None or not expires_s_of(entry):
                continue
            self._on_used(name)
            if name in self._brought and await self.use_of(name) is None:
                await self.make_again(name)

    # Expiring subscriptions.

    def expiring(self) -> dict[str, int]:
        """Names of what expires and was brought about -> after how many seconds without use."""
        return {
            n: expires_s for n, entry in self._brought.items() if (expires_s := expires_s_of(entry))
        }

    async def use_of(self, name: str) -> int | None:
        """How many consumers an expiring subscription has here; None when its queue is not there.

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
        """Have an expiring subscription made again. lost: it was in use, so its messages are a loss."""
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

    # What is on the broker.

    async def mismatch(self, wanted: Iterable[Wanted]) -> str:
        """What of these exists otherwise on the broker, by hand of somebody; "" for nothing.

        Also "" when it cannot be said now: then the answer to the registration says it.
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
                    told = [await self._mismatch(control, declarations(each)) for each in wanted]
                return "; ".join(text for text in told if text)
        except (LinkError, TimeoutError) as fault:
            log.info("no look broker=%s reason=%s", self._config.broker, fault)
        return ""

    async def _mismatch(self, control: Control, wanted: Declarations) -> str:
        """The broker names one argument that differs, perhaps not the one that tells most."""
        told = await control.mismatch(wanted)
        queue = next((queue for queue in wanted.queues if f"'{queue.name}'" in told), None)
        if queue is None or not self._management.is_there:
            return told
        try:
            exists = await self._management.arguments(queue.name)
        except ManagementUnavailable:
            return told
        return f"queue '{queue.name}': {_differences(queue, exists) or told}"

    async def counts(self, queues: Iterable[str]) -> dict[str, tuple[int, int] | None]:
        """Messages ready and consumers by name of the queue, None where there is none. Raises LinkError."""
        control = self._open_control()
        return {queue: await control.counts(queue) for queue in queues}

    async def purge(self, queues: Iterable[str]) -> dict[str, int | None]:
        """Drop what is ready in these; how many by name. Raises LinkError."""
        control = self._open_control()
        return {queue: await control.purge(queue) for queue in queues}

    def _open_control(self) -> Control:
        control = self._control
        if control is None or not control.is_open:
            raise LinkLost(self._config.broker, "no link to the broker")
        return control

    async def _patience_s(self) -> float:
        """A broker that refuses connections is not waited for."""
        if self._linked.is_set():
            return LINK_WAIT_S
        return 0.0 if await self._port_refuses() else LINK_WAIT_S

    async def _is_shut(self) -> bool:
        """Whether the broker can take no publish before this agent lets it."""
        try:
            # The gate may be opening just now, for the map as it was before.
            async with asyncio.timeout(LINK_WAIT_S), self._lock:
                if self._gate_open is False:
                    return True
        except TimeoutError:
            return False
        return not self._linked.is_set() and await self._port_refuses()

    async def _port_refuses(self) -> bool:
        return await port_refuses(self._config.address, timeout_s=PROBE_TIMEOUT_S)

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
            lived = time.monotonic() - began_s > REDIAL_MAX_S
            pause_s = REDIAL_MIN_S if lived else min(2 * pause_s, REDIAL_MAX_S)
            await asyncio.sleep(pause_s)

    async def _session(self) -> None:
        control = await self._dial()
        try:
            await self._look(control)
            await self._revive()
            births = await self._list_queues()
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

    async def _look(self, control: Control) -> None:
        """Follow events, and see whether the gate is there."""
        self._has_events = await control.follow_events(self._event)
        if not self._has_events:
            log.warning("no events broker=%s: plugin rabbitmq_event_exchange", self._config.broker)
        self._gate_open = await control.gate_is_open()
        if not self._gate_open:
            # Now, not before: who saw the port refuse, and called a change complete, did so earlier.
            self._register.life_began()
            self._on_new_life()

    async def _revive(self) -> None:
        """Before the gate opens: a queue that died at boot would hold every confirm back."""
        revived = await self._settler.queues_revived()
        if revived:
            log.warning("queues revived broker=%s queues=%d", self._config.broker, revived)
            self.queues_revived += revived

    async def _dial(self) -> Control:
        self.dials += 1
        credentials = Credentials(
            user=self._config.user,
            password=self._config.password,
            client_id=f"agent {self._config.broker}",
            tls=self._config.tls_files.client_context() if self._config.tls else None,
        )
        return await Control.dial(self._config.address, credentials, timeout_ms=DIAL_TIMEOUT_MS)

    async def _list_queues(self) -> dict[str, int | None] | None:
        """What is on the broker; None when that cannot be known now, {} when never."""
        if not self._management.is_there:
            return {}
        try:
            return await self._management.births()
        except ManagementUnavailable as fault:
            log.info("queues not listed broker=%s reason=%s", self._config.broker, fault)
            return None

    async def _prove_events(self, control: Control) -> None:
        """The event exchange stays when its plugin is off: only an event proves that they come."""
        self.events_proven = False
        if self._has_events:
            self._awaited_event = await control.declare_probe()
            await control.delete_queue(self._awaited_event)

    async def _keep(self, control: Control) -> None:
        """Bring about what changed and audit, until the link is lost."""
        audit_at_s = time.monotonic() + AUDIT_INTERVAL_S
        while control.is_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, audit_at_s - time.monotonic())):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.bring_about()
                self.fault = ""
            except (NotBroughtAbout, ManagementUnavailable) as fault:
                self._tell_fault(str(fault))
            if time.monotonic() >= audit_at_s:
                await self._audit(control)
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
        # Shut stays shut, since only we open it; an open one may have gone with the broker.
        if self._gate_open:
            self._gate_open = None

    def _tell_fault(self, fault: str) -> None:
        if fault != self.fault:
            log.warning("broker not kept broker=%s reason=%s", self._config.broker, fault)
        self.fault = fault

    # Bringing about.

    async def bring_about(self) -> None:
        """Make the broker as the map wants it, settle it, and open the gate when it may.

        Raises LinkError, NotBroughtAbout or ManagementUnavailable; `run` tries again.
        """
        async with self._lock:
            control = self._open_control()
            for _ in range(BRING_ROUNDS):
                if self._brought_version == self._register.version:
                    break
                await self._bring_about(control)
            if self._vanished:
                raise NotBroughtAbout("queues vanish as fast as they are made")
            if may_open(self.condition):
                # Should the answer be lost, it may be open all the same.
                self._gate_open = None
                await control.open_gate()
                self._gate_open = True
                log.info(
                    "gate opened broker=%s entries=%d", control.link.broker, len(self._brought)
                )

    async def _bring_about(self, control: Control) -> None:
        version, entries = self._register.version, dict(self._register.entries)
        tried = {name: entry for name, entry in entries.items() if not self._is_refused(entry)}
        floor = self._register.floor if self._register.informed else 0
        if self._births is None and needs_births(tried, brought=self._brought, floor=floor):
            self._births = await self._management.births()
        births = self._births or {}
        if self._vanished:
            await asyncio.sleep(CANCELLED_S)
        lost, self._vanished = self._vanished, set()
        steps = plan(tried, brought=self._brought, births=births, floor=floor)
        for step in steps:
            if not await self._perform(control, step):
                assert isinstance(step, Declare)
                del tried[step.entry.wanted]
            elif isinstance(step, Declare) and step.entry.wanted in lost:
                # Publishes go on without it: what it gets from now on is lost only by a kill.
                await control.bind(step.declarations)
        declared = [
            step.declarations
            for step in steps
            if isinstance(step, Declare) and step.entry.wanted in tried
        ]
        # Definitions of classic queues are on disk when they are answered.
        if any(each.needs_settling for each in declared):
            await self._settle(control)
        # Only now: a confirm promises that the message survives, so no unsettled queue may give one.
        for each in declared:
            await control.bind(each)
        # What vanished while the steps were done is brought about in the next round.
        self._brought = {name: e for name, e in tried.items() if name not in self._vanished}
        if self._vanished:
            return
        if len(tried) < len(entries):
            raise NotBroughtAbout("; ".join(self.refused_reasons(entries)))
        self._refused.clear()
        self._brought_version = version
        self._behind_since_ms = None if version == self._register.version else _now_ms()
        self._note_repairs()
        self._note_held(entries)

    async def _perform(self, control: Control, step: Step) -> bool:
        """Returns False when the broker refused a declaration again."""
        match step:
            case DeleteQueue(name):
                self._own_deletions.add(name)
                await control.delete_queue(name)
                if self._births is not None:
                    self._births.pop(name, None)
                log.info("queue deleted broker=%s queue=%s", self._config.broker, name)
            case DeleteExchange(name):
                self._own_deletions.add(name)
                await control.delete_exchange(name)
            case Declare(entry):
                self._note_declaring(step.declarations)
                if not await self._declare(control, step):
                    return False
                for queue in step.declarations.queues:
                    if self._births is not None:
                        self._births.setdefault(queue.name, entry.number)
        return True

    async def _declare(self, control: Control, step: Declare) -> bool:
        """The first refusal costs the link, the next ones nothing: those return False."""
        name = step.entry.wanted
        again = name in self._refused
        try:
            await control.declare(step.declarations, aside=again)
        except ChannelRefused as refused:
            reason = mismatch_text(refused.reason)
            self._refused[name] = _Refused(step.entry, reason, time.monotonic() + REFUSED_RETRY_S)
            if not again:
                log.warning("declaration refused wanted=%s reason=%s", name, reason)
                raise
            return False
        self._refused.pop(name, None)
        return True

    def _is_refused(self, entry: Entry) -> bool:
        refused = self._refused.get(entry.wanted)
        if refused is None or refused.entry != entry:
            return False
        return time.monotonic() < refused.retry_at_s

    async def _settle(self, control: Control) -> None:
        if await self._settler.names_synced():
            self.settles_fast += 1
        else:
            await control.declare_settle_queue()
            await asyncio.sleep(SLOW_S)
            self.settles_slow += 1
            # A known wait on every broker at once: it must not drain them all.
            self._behind_since_ms = _now_ms()
        if not await self._settler.files_synced():
            raise NotBroughtAbout("the data folder could not be synced")

    # Noticing what vanished.

    async def _audit(self, control: Control) -> None:
        """Look for queues, and bind them; all of them, or some of them while events are proven."""
        names = self._next_for_audit()
        for name in names:
            async with self._lock:
                entry = self._brought.get(name)
                if entry is None or not entry.alive:
                    continue
                missing = await control.audit(wanted_of(entry))
                if missing:
                    self._note_loss(entry, "queue", missing, "audit")
                    return

    def _next_for_audit(self) -> list[str]:
        # Whether what expires is there is looked at by `Expiry`.
        alive = sorted(n for n, e in self._brought.items() if e.alive and not expires_s_of(e))
        if not self.events_proven:
            return alive
        if not self._audit_queue:
            self._audit_queue.extend(alive)
        count = min(-(-len(alive) // AUDIT_STEPS), len(self._audit_queue))
        return [self._audit_queue.popleft() for _ in range(count)]

    def _event(self, key: str, headers: Mapping[str, Any]) -> None:
        name = str(headers.get("name") or headers.get("destination_name") or "")
        if name and name == self._awaited_event:
            self.events_proven, self._awaited_event = True, ""
            return
        what = key.partition(".")[0]
        is_ours = name in self._own_deletions or headers.get("vhost", "/") != "/"
        if is_ours:
            return
        deleted_at_ms = headers.get("timestamp_in_ms", 0)
        if what == "queue":
            self._call_it_a_queue(name, deleted_at_ms)
        if self._is_repaired_since(name, deleted_at_ms):
            return
        for entry in list(self._brought.values()):
            if not entry.alive or not _is_part(what, name, headers, wanted_of(entry)):
                continue
            if expires_s_of(entry):
                self._on_gone(entry.wanted)
            else:
                self._note_loss(entry, what, name, "event")

    def _is_repaired_since(self, name: str, deleted_at_ms: int) -> bool:
        """The agent lives on its broker's host: one clock. Events may come after the repair."""
        return deleted_at_ms < self._declared_at_ms.get(name, 0)

    def _note_declaring(self, wanted: Declarations) -> None:
        now_ms = _now_ms()
        names = [*(e.name for e in wanted.exchanges), *(q.name for q in wanted.queues)]
        for name in names:
            self._own_deletions.discard(name)
            self._declared_at_ms[name] = now_ms

    def _note_losses_at_start(self) -> None:
        """What was held before, as far as the broker can say what it has, and is not there."""
        if self._births is None or not self._management.is_there:
            return
        for name, number in list(self.held.items()):
            entry = self._register.entries.get(name)
            if entry is None or not entry.alive or entry.number != number or expires_s_of(entry):
                continue
            for queue in wanted_of(entry).queues:
                if queue.name not in self._births:
                    self._note_loss(entry, "queue", queue.name, "start")

    def _note_loss(self, entry: Entry, what: str, name: str, how: str) -> None:
        """Remember it, tell it, and have it made again."""
        self._vanished.add(entry.wanted)
        self._brought.pop(entry.wanted, None)
        self._brought_version = 0
        if self._births is not None:
            self._births.pop(name, None)
        if not any(loss.name == name and not loss.repaired_at_ms for loss in self.losses):
            self.losses.append(
                Loss(wanted=entry.wanted, what=what, name=name, how=how, noticed_at_ms=_now_ms())
            )
            self.losses_total += 1
            log.warning(
                "%s vanished%s broker=%s name=%s noticed_by=%s",
                what,
                " with all that was in it" if what == "queue" else "",
                self._config.broker,
                name,
                how,
            )
            self._on_report()
        self.wake()

    def _call_it_a_queue(self, name: str, deleted_at_ms: int) -> None:
        """The broker tells of a deleted queue's binding first, perhaps before the repair."""
        for number, loss in enumerate(self.losses):
            same = loss.name == name and loss.noticed_at_ms > deleted_at_ms - SAME_LOSS_MS
            if same and loss.what == "binding":
                self.losses[number] = replace(loss, what="queue")
                self._on_report()

    def _note_repairs(self) -> None:
        if all(loss.repaired_at_ms for loss in self.losses):
            return
        now_ms = _now_ms()
        for number, loss in enumerate(self.losses):
            if not loss.repaired_at_ms:
                self.losses[number] = replace(loss, repaired_at_ms=now_ms)
                log.warning(
                    "%s made again broker=%s name=%s", loss.what, self._config.broker, loss.name
                )
        self._on_report()

    def _note_held(self, entries: Mapping[str, Entry]) -> None:
        held = {name: entry.number for name, entry in entries.items() if entry.alive}
        if held != self.held:
            self.held = held
            self._on_report()


def _differences(queue: QueueSpec, exists: Mapping[str, Any]) -> str:
    """What is wanted and what exists, argument by argument; the broker does not compare `mb-born`."""
    wanted = {"durable": True, **queue.arguments}
    keys = [key for key in dict.fromkeys([*wanted, *exists]) if key != BORN]
    # A queue that was declared without a type is a classic one.
    exists = {"x-queue-type": "classic", **exists}
    return ", ".join(
        f"{key} is wanted {_shown(wanted, key)} and exists {_shown(exists, key)}"
        for key in keys
        if wanted.get(key) != exists.get(key)
    )


def _shown(arguments: Mapping[str, Any], key: str) -> str:
    return repr(arguments[key]) if key in arguments else "none"


def _is_part(what: str, name: str, headers: Mapping[str, Any], wanted: Declarations) -> bool:
    """Whether what was deleted belongs to an entry. Every queue has a binding of the broker's own."""
    match what:
        case "queue":
            return any(queue.name == name for queue in wanted.queues)
        case "exchange":
            return any(exchange.name == name for exchange in wanted.exchanges)
        case _:
            source = headers.get("source_name", "")
            bound = [(b.queue, b.exchange) for b in wanted.bindings]
            bound += [(b.exchange, b.source) for b in wanted.exchange_bindings]
            return (name, source) in bound


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
