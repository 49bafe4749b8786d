"""May the gate of a broker open, and what is said about the broker to balancers.

Decides; asks nobody. The *gate* opens once per life of the broker: when its agent is informed and
exactly the current version of the map is there and settled. The *verdict* is politeness and is
never worse than `drain` while the gate is open: a creation in progress does not drain (it would
drain all brokers at once), a map that could not be brought about for BEHIND_MS does, and so does a
queue that vanished, from the moment it was noticed until it is made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["BEHIND_MS", "Condition", "Verdict", "VerdictKind", "may_open", "verdict"]

# A creation takes 5 to 90 ms. The 4 s wait of a settle without erl_call is not counted: it would
# drain all brokers at once.
BEHIND_MS = 2_000


class VerdictKind(Enum):
    READY = "ready"
    DRAIN = "drain"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What balancers hear. reason: "" when all is well."""

    kind: VerdictKind
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What an agent knows about its broker.

    linked: an AMQP link is open. gate_open: the mark was seen or made on this link.
    informed: a majority was read in this life of the broker. joining: the broker was put on the
    list, and no majority was read since.
    wanted_version, brought_version: of the map, and what of it is on the broker and settled.
    behind_since_ms: since when they differ, None while they do not.
    vanished: how many queues are missing that were there. alarm: the broker's own, "" for none.
    draining: operators' wish, "" for none.
    """

    linked: bool = False
    gate_open: bool = False
    informed: bool = False
    joining: bool = False
    wanted_version: int = 0
    brought_version: int = 0
    behind_since_ms: int | None = None
    vanished: int = 0
    alarm: str = ""
    draining: str = ""


def may_open(condition: Condition) -> bool:
    """Whether the gate may be declared now; ask under the lock that brings the map about."""
    return (
        condition.linked
        and not condition.gate_open
        and condition.informed
        and condition.vanished == 0
        and condition.brought_version == condition.wanted_version
    )


def verdict(condition: Condition, now_ms: int) -> Verdict:
    """What to say about the broker now."""
    if not condition.linked:
        return Verdict(kind=VerdictKind.DOWN, reason="no AMQP link to the broker")
    if not condition.gate_open:
        waits_for = "map not brought about" if condition.informed else "no majority of agents read"
        return Verdict(kind=VerdictKind.DOWN, reason=f"gate is shut: {waits_for}")
    if reason := _polite_reason(condition, now_ms):
        return Verdict(kind=VerdictKind.DRAIN, reason=reason)
    # A drain would drain all brokers when all agents begin anew; the gate is open, so nothing is lost
    # of what was acknowledged before. But what is acknowledged from now on may be missing here.
    uninformed = "" if condition.informed else "ready, but no majority of agents was read"
    return Verdict(kind=VerdictKind.READY, reason=uninformed)


def _polite_reason(condition: Condition, now_ms: int) -> str:
    if condition.draining:
        return condition.draining
    if condition.alarm:
        return condition.alarm
    if condition.vanished:
        return f"{condition.vanished} queues vanished"
    if condition.joining:
        return "listed anew: no majority of agents read yet"
    since_ms = condition.behind_since_ms
    if since_ms is not None and now_ms - since_ms > BEHIND_MS:
        return f"map not brought about for {(now_ms - since_ms) // 1000} s"
    return ""
