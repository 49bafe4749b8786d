"""Plans of what an operator wants done: what it would touch, by broker, and whether that is still so.

Pure. A plan is made from a fresh look; before it runs, another look must find nearly the same.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from messagebus.admin import ParkedCounts, SubscriptionCounts
from messagebus.services.monitor.board import Board
from messagebus.services.monitor.people import Role
from messagebus.terminal import plural

# Counts of messages may differ by so many, or by that share, between a plan and its run.
DRIFT_MESSAGES, DRIFT_SHARE = 10, 0.2
REASONS_SHOWN, TEXT_CHARS_MAX = 3, 300
RATE_PER_S, RATE_MAX_PER_S = 100, 5_000

State = Literal["open", "checking", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of action. verb: begins a sentence about its subject. command: the same in a shell.

    is_typed: the name is to be typed once more, because messages are lost for good.
    """

    name: str
    title: str
    verb: str
    role: Role
    command: str
    is_typed: bool = False
    is_paced: bool = False


KINDS = {
    each.name: each
    for each in (
        Kind("redrive", "Redrive", "put back", Role.OPERATOR,
             "messagebus parked redrive {about}", is_paced=True),
        Kind("drop", "Drop parked", "drop for good", Role.OPERATOR,
             "messagebus parked purge {about}", is_typed=True),
        Kind("drain", "Drain", "drain", Role.OPERATOR, "python -m lb drain {about}"),
        Kind("undrain", "Take back", "take back", Role.OPERATOR, "python -m lb ready {about}"),
        Kind("purge", "Purge", "purge", Role.ADMIN,
             "messagebus subscriptions purge {about}", is_typed=True),
        Kind("delete", "Delete", "delete", Role.ADMIN,
             "messagebus subscriptions delete {about}", is_typed=True),
        Kind("declare", "Declare", "declare", Role.ADMIN, "messagebus declare {about}"),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The wish of somebody. about: a subscription, queue, broker, or names to declare.

    broker, reason: narrow a choice of parked messages. rate_per_s: of messages that are put back.
    """

    kind: str
    about: str
    broker: str = ""
    reason: str = ""
    rate_per_s: int = RATE_PER_S


@dataclass(frozen=True, slots=True)
class Line:
    """The part of a plan on one broker. count: messages that it touches, None where it touches none."""

    broker: str
    count: int | None
    oldest_ms: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Effects:
    """The result of a look. facts: what must be the same when it runs. keeps: what it does not touch.

    faults: brokers that it leaves out, and why. blocked: the reason why it cannot run; "" when it can.
    """

    lines: tuple[Line, ...]
    facts: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    blocked: str = ""

    @property
    def total(self) -> int:
        """The number of messages over all brokers."""
        return sum(line.count or 0 for line in self.lines)


@dataclass(slots=True)
class Plan:
    """A plan, and what became of it. token: bound to its content, and made by one process alone."""

    id: str
    order: Order
    effects: Effects
    by: str
    created_ms: int
    token: str = field(repr=False)
    state: State = "open"
    run_by: str = ""
    began_ms: int = 0
    ended_ms: int = 0
    moved: int = 0
    result: str = ""

    @property
    def kind(self) -> Kind:
        """The kind of its order."""
        return KINDS[self.order.kind]

    @property
    def is_busy(self) -> bool:
        """True from the order to run until its end."""
        return self.state in ("checking", "running")


def token_of(key: bytes, order: Order, effects: Effects, by: str, created_ms: int) -> str:
    """Return the token of a plan with this content."""
    content = json.dumps([asdict(order), asdict(effects), by, created_ms], sort_keys=True)
    return hmac.new(key, content.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def differs(planned: Effects, now: Effects) -> str:
    """Return what has changed too far since a plan was made; "" when it may run."""
    if now.blocked:
        return now.blocked
    if planned.facts != now.facts:
        gone = [each for each in planned.facts if each not in now.facts]
        came = [each for each in now.facts if each not in planned.facts]
        told = [*(f"no longer {each}" for each in gone), *(f"now {each}" for each in came)]
        return "; ".join(told)
    before, after = _counts(planned.lines), _counts(now.lines)
    for broker in sorted(before.keys() | after.keys()):
        was, is_now = before.get(broker, 0), after.get(broker, 0)
        if abs(is_now - was) > max(DRIFT_MESSAGES, was * DRIFT_SHARE):
            return f"{is_now:,} messages on {broker}, and {was:,} when the plan was made"
    return ""


def _counts(lines: Iterable[Line]) -> Mapping[str, int]:
    return {line.broker: line.count for line in lines if line.count is not None}


# Looks.


def parked_effects(order: Order, counts: ParkedCounts) -> Effects:
    """Return what a redrive or a drop would touch."""
    lines = []
    for each in counts.counts:
        reasons = list(each.reasons.items())
        note = "; ".join(
            f"{n:,} times {why[:TEXT_CHARS_MAX]}" for why, n in reasons[:REASONS_SHOWN]
        )
        more = f" and {len(reasons) - REASONS_SHOWN} other reasons" if reasons[3:] else ""
        unseen = f"; {each.unseen:,} more were not looked at" if each.unseen else ""
        lines.append(Line(each.broker, each.count, each.oldest_ms, f"{note}{more}{unseen}"))
    keeps = [
        "Messages that wait in the subscription, or are being handled, are not touched.",
        "On each broker at most this many messages are taken, the oldest first.",
    ]
    if order.reason:
        keeps.append("Parked messages with another reason stay parked.")
    if order.broker:
        keeps.append("Parked messages on other brokers stay.")
    return Effects(
        tuple(lines),
        tuple(f"{broker} answers" for broker in counts.looked),
        tuple(keeps),
        _faults(counts.faults),
        "" if any(line.count for line in lines) else "no parked message matches",
    )


def waiting_effects(order: Order, subscriptions: SubscriptionCounts) -> Effects:
    """Return what a purge or a deletion would touch."""
    counts = [each for each in subscriptions.counts if each.name == order.about]
    lines, facts = [], []
    for each in counts:
        owed = "an unknown number" if each.unacked is None else f"{each.unacked:,}"
        consumers = plural(each.consumers, "consumer")
        lines.append(
            Line(each.broker, each.ready, None, f"{consumers}, {owed} delivered to them now")
        )
        facts.append(f"{each.broker} has it")
        if order.kind == "delete" and each.consumers:
            facts.append(f"consumed from on {each.broker}")
    keeps: tuple[str, ...] = (
        "Messages that are delivered and not yet acked stay.",
        "Parked messages stay.",
    )
    if order.kind == "delete":
        keeps = (
            "Its parked messages are deleted with it.",
            "A broker that is away deletes it when it is back, before it takes publishes.",
        )
    blocked = "" if counts else "no broker that answers has it"
    return Effects(tuple(lines), tuple(facts), keeps, _faults(subscriptions.unanswered), blocked)


def broker_effects(order: Order, board: Board) -> Effects:
    """Return what a drain, or the end of it, would touch."""
    seen = board.view.bus.find(order.about)
    answer = seen.answer if seen else None
    if seen is None or answer is None:
        return Effects((), blocked="its agent does not answer: give the order to HAProxy by hand")
    others = [
        name
        for name, each in board.view.bus.answers.items()
        if name != order.about and each.state.verdict == "ready" and not each.state.draining
    ]
    waiting = board.brokers[order.about].waiting
    links = answer.room.connections if answer.room else None
    note = f"{'an unknown number of' if links is None else f'{links:,}'} connections"
    line = Line(order.about, None, None, f"{note}, {waiting or 0:,} messages wait there")
    is_draining = bool(answer.state.draining)
    keeps: tuple[str, ...]
    if order.kind == "drain":
        keeps = (
            f"New publishers go to {plural(len(others), 'other broker')}; present ones move within"
            " their connection's lifetime.",
            "Consumers stay attached and go on consuming the messages there.",
        )
        blocked = "it is drained already" if is_draining else ""
        blocked = blocked or ("" if others else "no other broker is ready to take over")
    else:
        keeps = ("A drain ordered by the consumer list or a playbook goes on.",)
        blocked = "" if is_draining else "it is not drained"
    facts = (f"{order.about} is {'drained' if is_draining else 'not drained'}",)
    return Effects((line,), facts, keeps, (), blocked)


def declared_effects(names: Iterable[str], known: Iterable[str], brokers: Iterable[str]) -> Effects:
    """Return what a declaration would make."""
    there = set(known)
    facts = [f"{name} {'is there' if name in there else 'is not there'}" for name in names]
    new = [name for name in names if name not in there]
    lines = tuple(Line(broker, None, None, f"makes {', '.join(new)}") for broker in brokers)
    keeps = ("What exists stays as it is, with its messages and options.",)
    blocked = "" if new else "all of it exists"
    return Effects(lines if new else (), tuple(facts), keeps, (), blocked)


def _faults(faults: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{where}: {why}"[:TEXT_CHARS_MAX] for where, why in faults.items())
