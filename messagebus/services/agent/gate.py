"""The state of a broker's gate, rules for opening it, and the verdict on the broker that balancers get.

Decides; asks nobody. The *gate* opens once per life of the broker: when its agent is informed and
exactly the current version of the map is on the broker and settled. The *verdict* is a courtesy and is
never worse than `drain` while the gate is open. A creation in progress does not drain: it would drain
all brokers at once. A map that could not be applied for BEHIND_MS does, and so does a queue that
vanished, from the moment it was noticed until it is made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from messagebus.observing.snapshot import NO_LINK

# A creation takes 5 to 90 ms. The 4 s wait of a settle without erl_call is not counted: it would
# drain all brokers at once.
BEHIND_MS = 2_000


class Gate:
    """The state of a broker's gate, as its agent knows it. Only that agent opens it.

    | state   | event                            | next    |
    |---------|----------------------------------|---------|
    | any     | looked: the gate is there, or not | open, or shut |
    | shut    | opening: the order is sent       | unknown: if its answer is lost, it may be open |
    | unknown | opened: the broker has answered  | open    |
    | open    | link_ended                       | unknown: it may have gone with the broker |
    | shut    | link_ended                       | shut: nobody else opens it |
    | unknown | broker_gone                      | shut    |
    """

    def __init__(self) -> None:
        self._is_open: bool | None = None  # None: unknown

    @property
    def is_open(self) -> bool:
        """True when it is certainly open."""
        return self._is_open is True

    @property
    def is_shut(self) -> bool:
        """True when it is certainly shut."""
        return self._is_open is False

    @property
    def is_unknown(self) -> bool:
        return self._is_open is None

    def looked(self, is_there: bool) -> None:
        self._is_open = is_there

    def opening(self) -> None:
        self._is_open = None

    def opened(self) -> None:
        self._is_open = True

    def link_ended(self) -> None:
        if self._is_open:
            self._is_open = None

    def broker_gone(self) -> None:
        """Note that the broker's process has ended, and its gate with it."""
        if self._is_open is None:
            self._is_open = False


class VerdictKind(Enum):
    READY = "ready"
    DRAIN = "drain"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer for balancers. reason: "" when all is well."""

    kind: VerdictKind
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """An agent's knowledge of its broker.

    linked: an AMQP link is open. gate_open: the mark was seen or made on this link.
    informed: a majority was read in this life of the broker. joining: the broker was put on the
    list, and no majority was read since.
    wanted_version: of the map. brought_version: of the map on the broker, settled.
    behind_since_ms: since when they differ; None while they are equal.
    vanished: number of queues that existed and are missing. alarm: the broker's own, "" for none.
    stuck: what neither takes nor gives messages, "" for nothing. draining: reason of the operators' drain,
    "" for none. losing: policies that lose messages, "" for none.
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
    stuck: str = ""
    losing: str = ""


def may_open(condition: Condition) -> bool:
    """Return whether the gate may be declared now; call it under the lock that applies the map."""
    return (
        condition.linked
        and not condition.gate_open
        and condition.informed
        and condition.vanished == 0
        and condition.brought_version == condition.wanted_version
    )


def verdict(condition: Condition, now_ms: int) -> Verdict:
    """Return the current verdict on the broker."""
    if not condition.linked:
        return Verdict(kind=VerdictKind.DOWN, reason=NO_LINK)
    if not condition.gate_open:
        waits_for = "map not brought about" if condition.informed else "no majority of agents read"
        return Verdict(kind=VerdictKind.DOWN, reason=f"gate is shut: {waits_for}")
    if reason := _polite_reason(condition, now_ms):
        return Verdict(kind=VerdictKind.DRAIN, reason=reason)
    # A drain would drain all brokers when all agents begin anew. The gate is open, so no change that was
    # acknowledged before is lost. But a change that is acknowledged from now on may be missing here.
    if not condition.informed:
        return Verdict(kind=VerdictKind.READY, reason="ready, but no majority of agents was read")
    losing = f"ready, but {condition.losing}" if condition.losing else ""
    return Verdict(kind=VerdictKind.READY, reason=losing)


def _polite_reason(condition: Condition, now_ms: int) -> str:
    if condition.draining:
        return condition.draining
    if condition.alarm:
        return condition.alarm
    if condition.vanished:
        return f"{condition.vanished} queues vanished"
    if condition.stuck:
        return condition.stuck
    if condition.joining:
        return "listed anew: no majority of agents read yet"
    since_ms = condition.behind_since_ms
    if since_ms is not None and now_ms - since_ms > BEHIND_MS:
        return f"map not brought about for {(now_ms - since_ms) // 1000} s"
    return ""
