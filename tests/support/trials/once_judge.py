"""The judgement of `once`: orders that were committed, against the effects that they had.

Pure. An order must have one effect in each table. A table that is written with an inbox has no excuse. In
one that is written behind deduplication alone an order may have a second effect, if what happened then is
one of the three named causes (docs/explanation/once.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal

S_NS = 1_000_000_000
# A claim is extended at each third of its lease.
LEASE_SHARE = 2 / 3

DIED, LAPSED, FORGOT = "process died before `done`", "claim ran out", "store forgot"
FAILED = "the run failed after its commit"
CAUSES = (DIED, LAPSED, FORGOT, FAILED)
KILLED, STOOD, STORE_AWAY = "killed", "stood", "store away"

Rule = Literal["inbox", "dedup"]


@dataclass(frozen=True, slots=True)
class Effect:
    """One row of an effect. run: of a handler. process: one start of a program.

    ended_ns: taken just before the commit. received_ns: of the delivery; its claim is later. done_ns: when
    the store had answered to `done`; None: never, or the table's handler has no store. Times are of the
    monotonic clock.
    """

    order: int
    run: str
    process: str
    ended_ns: int
    received_ns: int
    done_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Happening:
    """Event of a process. kind: KILLED, STOOD, or STORE_AWAY: it did not reach the store.

    process: "" for a failover of the store, which concerns all. Answers before began_ns are kept.
    """

    kind: str
    process: str
    began_ns: int
    ended_ns: int


@dataclass(slots=True, kw_only=True)
class Counted:
    """The counts of one table. done: effects that their store knows. causes: of explained second effects."""

    name: str
    rule: Rule
    expected: int = 0
    effects: int = 0
    done: int = 0
    missing: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    doubled: int = 0
    causes: dict[str, int] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """Return the breaches of the promise."""
        found: dict[str, list[Any]] = {
            "missing": self.missing,
            "of orders that were never committed": self.extra,
            "doubled without a cause": self.unexplained,
        }
        nothing = self.rule == "dedup" and not self.done
        return [f"{self.name}: no `done` was stored"] * nothing + [
            f"{self.name}: {len(each):,} {what}, such as {each[0]}"
            for what, each in found.items()
            if each
        ]


def judge_effects(
    name: str,
    rule: Rule,
    orders: Collection[int],
    effects: Iterable[Effect],
    *,
    happenings: Sequence[Happening] = (),
    failed_runs: Collection[str] = (),
    lease_s: float = 0,
) -> Counted:
    """Count one table. failed_runs: runs whose commit raised, and may have been carried out."""
    wanted, counted = set(orders), Counted(name=name, rule=rule)
    by_order: dict[int, list[Effect]] = {}
    for effect in effects:
        by_order.setdefault(effect.order, []).append(effect)
        counted.effects += 1
        counted.done += effect.done_ns is not None
    counted.expected = len(wanted)
    counted.missing = sorted(wanted - by_order.keys())
    counted.extra = sorted(by_order.keys() - wanted)
    for order, found in by_order.items():
        found.sort(key=lambda each: each.ended_ns)
        for earlier, later in pairwise(found):
            counted.doubled += 1
            why = ""
            if rule == "dedup":
                why = cause(earlier, later, happenings, failed_runs, lease_s)
            if why:
                counted.causes[why] = counted.causes.get(why, 0) + 1
            else:
                counted.unexplained.append(f"order {order} by {earlier.run} and {later.run}")
    return counted


def cause(
    earlier: Effect,
    later: Effect,
    happenings: Iterable[Happening],
    failed_runs: Collection[str],
    lease_s: float,
) -> str:
    """Return why an order had a second effect, one of CAUSES; "" when nothing that happened explains it.

    No limit of time decides. A claim can be lost from its delivery's arrival until the store answered to its
    `done`, and only before the second effect.
    """
    if earlier.run in failed_runs:
        return FAILED
    known = list(happenings)
    if earlier.done_ns is None and any(_died(earlier, each) for each in known):
        return DIED
    until_ns = later.ended_ns if earlier.done_ns is None else min(earlier.done_ns, later.ended_ns)
    known = [each for each in known if _touch(each, earlier.received_ns, until_ns)]
    processes = ("", earlier.process, later.process)
    if any(
        each.kind != KILLED
        and each.process in processes
        and each.ended_ns - each.began_ns >= lease_s * S_NS * LEASE_SHARE
        for each in known
    ):
        return LAPSED
    return FORGOT if any(each.kind == STORE_AWAY and not each.process for each in known) else ""


def _died(effect: Effect, each: Happening) -> bool:
    is_its_end = each.kind == KILLED and each.process == effect.process
    return is_its_end and each.ended_ns >= effect.ended_ns


def _touch(each: Happening, began_ns: int, ended_ns: int) -> bool:
    return each.began_ns <= ended_ns and each.ended_ns >= began_ns


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The judgement of a run.

    rolled_back: transactions that ended without a commit. copies: second deliveries that were not run again.
    kills: kind of fault -> how often. parked: messages in parking queues.
    """

    orders: int
    rolled_back: int
    copies: int
    parked: int
    tables: list[Counted]
    kills: Mapping[str, int]

    @property
    def faults(self) -> list[str]:
        """The reasons why the promise is not shown; empty when it is."""
        nothing = {
            "no order was committed: 0 of 0 shows nothing": self.orders,
            "no transaction was rolled back": self.rolled_back,
            "no copy came a second time": self.copies,
        }
        found = [what for what, count in nothing.items() if not count]
        found += [f"{kind} never happened" for kind, count in self.kills.items() if not count]
        if self.parked:
            found.append(f"{self.parked:,} messages are parked")
        return found + [fault for table in self.tables for fault in table.faults]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "faults": self.faults}
