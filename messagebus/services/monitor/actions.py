"""Actions of operators by the page: a plan, its run, and who did it; all by the library's own functions.

Without an audit on disk, or without the operators' token, nothing is done. Runs on one loop.
"""

# States of a plan; the page shows them:
#
#   open ─ run, with its token ─▶ checking ─ as planned, and recorded ─▶ running ─▶ done
#                                    └─▶ failed ◀──────────────────────────┼─▶ cancelled, between two messages
#                                                                          └─▶ failed
#
# Owners: `plans` judges what an order would touch and whether that has changed; `Watch` has the board and
# the event log; `Actions` has the plans, the last PLANS_KEPT of them, and one task for each run. One run
# at a time of each subject.

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections import OrderedDict

from messagebus import MessageBusError, Secret, declare
from messagebus.admin import (
    ParkedFilter,
    ParkedMoved,
    ParkedProgress,
    count_parked,
    count_subscriptions,
    delete_subscriptions,
    drain_broker,
    purge_parked,
    purge_subscriptions,
    redrive_parked,
)
from messagebus.clock import MS_PER_S, wall_ms
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.eventlog import ACTION, Event
from messagebus.services.monitor.people import Principal
from messagebus.services.monitor.plans import (
    KINDS,
    Effects,
    Order,
    Plan,
    State,
    broker_effects,
    declared_effects,
    differs,
    parked_effects,
    token_of,
    waiting_effects,
)
from messagebus.services.monitor.watch import Watch
from messagebus.terminal import plural
from messagebus.topology import parse_wanted

log = logging.getLogger("messagebus.monitor")

PLANS_KEPT = 200
# Looks side by side: one takes every parked message of a name in its hand.
LOOKS_AT_ONCE = 2
# A plan that is older is made anew.
PLAN_S = 600
NAMES_MAX = 50
RESULT_CHARS_MAX = 1_000
STOP_WITHIN_S = 5.0
# Until the page shows a drain; the next one is judged by it.
EFFECT_WITHIN_S = 5.0


class NotDone(Exception):
    """Raised when an order is refused; its text says why, and nothing has changed."""


class _Cancelled(Exception):
    """Raised in a run that somebody cancelled, between two messages."""


class Actions:
    """Plans and runs of one monitor."""

    def __init__(self, config: MonitorConfig, watch: Watch) -> None:
        self._config, self._watch = config, watch
        self._key = secrets.token_bytes(32)
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._runs: dict[asyncio.Task[None], Plan] = {}
        self._stops: set[str] = set()
        self._looks = asyncio.Semaphore(LOOKS_AT_ONCE)

    @property
    def off(self) -> str:
        """The reason why nothing can be done by this page; "" when it can."""
        if not self._config.token_file:
            return "Actions are off: the settings name no [actions] token_file."
        if self._config.token is None:
            return "Actions are off: the operators' token cannot be read."
        if not self._watch.events.is_durable:
            return "Actions are off: the record of actions cannot be written to disk."
        return ""

    def find(self, id: str) -> Plan | None:
        """Return a plan; None for one that never was or is forgotten."""
        return self._plans.get(id)

    async def plan(self, order: Order, who: Principal) -> Plan:
        """Look afresh, and return what an order would touch. Raises NotDone."""
        self._allowed(order, who)
        found, made_ms = await self._look(order), wall_ms()
        token = token_of(self._key, order, found, who.name, made_ms)
        plan = Plan(token[:16], order, found, who.name, made_ms, token)
        self._plans[plan.id] = plan
        for id in [key for key, each in self._plans.items() if not each.is_busy][:-PLANS_KEPT]:
            del self._plans[id]
        return plan

    async def run(self, id: str, who: Principal, *, token: str, typed: str, peer: str) -> None:
        """Begin to run a plan, once. Raises NotDone."""
        plan = self._plans.get(id)
        if plan is None:
            raise NotDone("This plan has expired: make another.")
        self._allowed(plan.order, who)
        if plan.state != "open":
            raise NotDone(f"{plan.run_by} has run this plan already.")
        right = token_of(self._key, plan.order, plan.effects, plan.by, plan.created_ms)
        if not hmac.compare_digest(token.encode("utf-8", "replace"), right.encode()):
            raise NotDone("The form does not belong to this plan: load the page again.")
        if plan.kind.is_typed and typed.strip() != plan.order.about:
            raise NotDone(f"Type {plan.order.about} to confirm.")
        for other in self._runs.values():
            if _subject(other.order) == _subject(plan.order):
                raise NotDone(
                    f"{other.run_by} is running it: {other.kind.title.lower()} of"
                    f" {other.order.about} has not ended."
                )
        plan.state, plan.run_by, plan.began_ms = "checking", who.name, wall_ms()
        task = asyncio.create_task(self._to_its_end(plan, f"{who.name} from {peer}"))
        self._runs[task] = plan
        task.add_done_callback(self._runs.pop)

    def cancel(self, id: str, who: Principal) -> None:
        """End a paced run between two messages. Raises NotDone."""
        plan = self._plans.get(id)
        if plan is None or not plan.is_busy:
            raise NotDone("It has already ended.")
        self._allowed(plan.order, who)
        self._stops.add(id)

    async def close(self) -> None:
        """End what runs, and wait for it for 5 s."""
        self._stops |= {plan.id for plan in self._runs.values()}
        if self._runs:
            await asyncio.wait(self._runs, timeout=STOP_WITHIN_S)

    def _allowed(self, order: Order, who: Principal) -> None:
        if self.off:
            raise NotDone(self.off)
        if who.role < KINDS[order.kind].role:
            raise NotDone(f"Only {KINDS[order.kind].role.name.lower()}s may do that.")

    # Looks.

    async def _look(self, order: Order) -> Effects:
        try:
            if order.kind in ("drain", "undrain"):
                return broker_effects(order, self._watch.board)
            async with self._looks:
                return await asyncio.to_thread(self._look_now, order)
        except MessageBusError as fault:
            raise NotDone(str(fault)[:RESULT_CHARS_MAX]) from fault

    def _look_now(self, order: Order) -> Effects:
        bus = self._config.bus
        if order.kind in ("redrive", "drop"):
            return parked_effects(order, count_parked(bus, [order.about], where=_where(order)))
        names = names_of(order) if order.kind == "declare" else []
        told = count_subscriptions(bus)
        if names:
            known = {each.name for each in told.counts}
            known |= {name.partition("/")[0] for name in known if "/" in name}
            return declared_effects(names, known, told.answered)
        return waiting_effects(order, told)

    # Runs.

    async def _to_its_end(self, plan: Plan, by: str) -> None:
        state, result = await self._run(plan, by)
        plan.result, plan.ended_ms = result[:RESULT_CHARS_MAX], wall_ms()
        plan.state = state
        await self._log_event(plan, by, f"{_title(plan)}, plan {plan.id}: {state}: {plan.result}")

    async def _run(self, plan: Plan, by: str) -> tuple[State, str]:
        try:
            if wall_ms() - plan.created_ms > PLAN_S * MS_PER_S:
                raise NotDone(f"the plan is older than {PLAN_S // 60} minutes: make another")
            if changed := differs(plan.effects, await self._look(plan.order)):
                raise NotDone(f"not run, because it is no longer as planned: {changed}")
            if not await self._log_event(plan, by, f"{_title(plan)} began, plan {plan.id}"):
                raise NotDone("not run, because the record of who runs it could not be written")
            plan.state = "running"
            result = await asyncio.to_thread(self._do, plan)
            await self._await_effect(plan.order)
            return "done", result
        except _Cancelled:
            return "cancelled", f"{plural(plan.moved, 'message')} until then"
        except (NotDone, MessageBusError) as fault:
            done = f"; {plural(plan.moved, 'message')} until then" if plan.moved else ""
            return "failed", f"{fault}{done}"
        except Exception as fault:  # a run that fails unseen would look as if it ran for ever
            log.exception("action failed plan=%s", plan.id)
            return "failed", f"{type(fault).__name__}; {plural(plan.moved, 'message')} until then"

    def _do(self, plan: Plan) -> str:
        order, bus, token = plan.order, self._config.bus, self._config.token or Secret("")
        match order.kind:
            case "redrive" | "drop":
                return self._move(plan)
            case "drain" | "undrain":
                is_drain = order.kind == "drain"
                drain_broker(bus, order.about, draining=is_drain, token=token)
                return "its agent has kept it and tells the balancers"
            case "purge":
                purged = purge_subscriptions(bus, [order.about], token=token)
                plan.moved = sum(sum(each.values()) for each in purged.dropped.values())
                told = [f"{plural(plan.moved, 'message')} dropped"]
                return "; ".join([*told, *(f"{b}: {w}" for b, w in purged.unanswered.items())])
            case "delete":
                done = delete_subscriptions(bus, [order.about], token=token)
                later = f", later on {', '.join(done.later)}" if done.later else ""
                missing = f", not on {', '.join(done.missing)}" if done.missing else ""
                return f"deleted{later}{missing}"
            case _:
                declare(bus, names_of(order))
                return "declared on every broker"

    def _move(self, plan: Plan) -> str:
        """Redrive or drop, broker by broker, no more on each than the plan says."""
        order, bus, names = plan.order, self._config.bus, [plan.order.about]

        def on_progress(progress: ParkedProgress) -> None:
            plan.moved += progress.moved
            if plan.id in self._stops:
                raise _Cancelled

        faults: dict[str, str] = {}
        for line in plan.effects.lines:
            if not line.count:
                continue
            where = _where(order, line.broker)
            moved: ParkedMoved
            if order.kind == "redrive":
                moved = redrive_parked(
                    bus, names, where=where, count_max=line.count,
                    rate_per_s=order.rate_per_s, on_progress=on_progress,
                )  # fmt: skip
            else:
                moved = purge_parked(
                    bus, names, where=where, count_max=line.count, on_progress=on_progress
                )
            faults.update(moved.faults)
        if faults:
            raise NotDone("; ".join(f"{place}: {why}" for place, why in faults.items()))
        did = "put back" if order.kind == "redrive" else "dropped"
        return f"{plural(plan.moved, 'message')} {did}"

    async def _await_effect(self, order: Order) -> None:
        """Wait until an observation has what was done to a broker, for 5 s."""
        until_s = time.monotonic() + EFFECT_WITHIN_S
        while order.kind in ("drain", "undrain") and time.monotonic() < until_s:
            seen = self._watch.board.view.bus.find(order.about)
            if seen and seen.answer and bool(seen.answer.state.draining) == (order.kind == "drain"):
                return
            await self._watch.next(self._watch.number, within_s=1.0)

    async def _log_event(self, plan: Plan, by: str, text: str) -> bool:
        event = Event(wall_ms(), ACTION, plan.order.about, text, by)
        return await asyncio.to_thread(self._watch.events.add, [event])


def names_of(order: Order) -> list[str]:
    """Return the names that an order declares. Raises NotDone, and NameInvalid for one that none is."""
    names = order.about.replace(",", " ").split()
    for name in names:
        parse_wanted(name)
    if not 0 < len(names) <= NAMES_MAX:
        raise NotDone(f"1 to {NAMES_MAX} names wanted")
    return names


def _subject(order: Order) -> str:
    """Return what only one run at a time may be about; two drains might leave no broker."""
    return "brokers" if order.kind in ("drain", "undrain") else order.about


def _where(order: Order, broker: str = "") -> ParkedFilter:
    chosen = broker or order.broker
    return ParkedFilter(reason=order.reason or None, brokers=(chosen,) if chosen else ())


def _title(plan: Plan) -> str:
    order, total = plan.order, plan.effects.total
    many = f" ({plural(total, 'message')} on {plural(len(plan.effects.lines), 'broker')})"
    return f"{plan.kind.title.lower()} of {order.about}{many if total else ''}"
