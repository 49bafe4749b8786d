"""Two copies of one message on two brokers: where a copy may go, and how the publish of both ends.

Decides; sends nothing. Both copies are items of `core.ends` with one id and the same bytes. Each counts
after its own confirm, and two confirms count as two only from two brokers that say their names.

A copy is never sent to the broker that its twin was last sent to, whether that one confirmed it, may hold it
or has yet to answer (`may_go`). Two links always lead to two brokers, so a copy that may not go out on one of
them goes out on the other: were both barred, its twin would have been last at two places.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from messagebus.core.confirms import Batch
from messagebus.core.ends import CONFIRMED, REFUSED, UNKNOWN, UNROUTABLE, Entry, Item

REQUIRED, PREFERRED = MODES = ("required", "preferred")
# No redundancy: the mark of topics whose publishes have drivers of their own for another reason.
PARTITIONED = "partitioned"


class CopyEnd(NamedTuple):
    """The end of one copy. broker: where it was last sent, "" when never, or when that is not identified."""

    outcome: str
    reason: str = ""
    broker: str = ""


NO_SECOND = CopyEnd(REFUSED, "there is no second broker")


class PairEnd(NamedTuple):
    """The end of a redundant publish. brokers: those that confirmed. downgraded: one was enough."""

    outcome: str
    reason: str = ""
    brokers: tuple[str, ...] = ()
    downgraded: bool = False


def may_go(broker: str, twin_at: str) -> bool:
    """Return whether a copy may be sent to this broker.

    broker: its name, "" for one that does not say it. twin_at: where the other copy was last sent, "" before.
    """
    return broker not in ("", twin_at)


def barred(entries: Iterable[Entry], broker: str, room: int) -> set[Item]:
    """Return the copies that may not be sent to this broker; the others are meant for it from now on.

    entries: what may be sent next, in order. room: number of those looked at that may stay.
    """
    gone: set[Item] = set()
    for entry in entries:
        if room <= 0:
            break
        twin = entry.twin if not isinstance(entry, Batch) else None
        if twin is not None and twin.place != broker and broker:  # the usual case of `may_go`
            entry.place = broker  # type: ignore[union-attr]
            room -= 1
            continue
        before = len(gone)
        items = entry.items if isinstance(entry, Batch) else (entry,)
        for item in items:
            if item.twin is None:
                continue
            if may_go(broker, item.twin.place):
                item.place = broker  # type: ignore[misc]  # a copy has a slot for it
            else:
                gone.add(item)
        room -= len(gone) - before < len(items)  # what is left of it leaves
    return gone


def end_of(first: CopyEnd, second: CopyEnd, mode: str) -> PairEnd:
    """Return the end of the publish of these two copies. mode: REQUIRED or PREFERRED."""
    confirmed = [each for each in (first, second) if each.outcome == CONFIRMED]
    brokers = tuple(dict.fromkeys(each.broker for each in confirmed if each.broker))
    left = first if second in confirmed else second
    if unroutable := [each for each in (first, second) if each.outcome == UNROUTABLE]:
        return PairEnd(UNROUTABLE, unroutable[0].reason, brokers)
    if len(brokers) == 2:
        return PairEnd(CONFIRMED, "", brokers)
    if confirmed and mode == PREFERRED:
        return PairEnd(CONFIRMED, left.reason, brokers, downgraded=True)
    if confirmed:
        why = f"stored on 1 of 2 brokers: {brokers[0] if brokers else 'one without a name'}"
        return PairEnd(UNKNOWN, f"{why}; {left.reason}" if left.reason else why, brokers)
    if first.outcome == second.outcome == REFUSED:
        return PairEnd(REFUSED, first.reason or second.reason)
    unknown = first if first.outcome == UNKNOWN else second
    return PairEnd(UNKNOWN, unknown.reason)
