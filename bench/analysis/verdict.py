"""Verdicts on whether a run measured the system or its own load: pacing, CPU of clients, a steady state.

Pure rules over the records of the load processes; each bound is named. The first lines of a run's report
name the rules that it failed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# The share of one core in the measured part above which a Python process delays itself.
CPU_SHARE_MAX = 0.9
# How late the pacer itself may handle a due message: an event loop's timer has steps of 1 ms, and a
# shared machine adds some more. Waiting for room in the window is not the pacer's lateness.
PACING_P99_MAX_MS = 5.0
# The fraction of intended messages that may remain unsent because the run was over.
UNSENT_PART_MAX = 0.01
# More load processes with the same fault are reported in one line.
LINES_MAX = 3
# Under a steady load the mean of this many seconds stays this near to the median of all, plus this many
# standard deviations of a count.
STEADY_WINDOW_S = 5
STEADY_WITHIN = 0.1
STEADY_DEVIATIONS = 3.0
# This fraction of the intended messages, or the messages under way at the end, may come later.
LATER_PART, LATER_S = 0.01, 0.5
# A publisher that waited longer for room, as a fraction of its time, was held back by the system.
WAITED_PART = 0.05
# Words in a fault which mean that the load was too slow to measure by, independent of the system.
BOTTLENECK, TOO_SLOW = "was the bottleneck", "intended messages: too slow"


@dataclass(frozen=True, slots=True)
class Client:
    """One load process in the measured part. pacing_p99_ms: how late it handled due messages.

    cpu_share: share of one core, for each of the per_process clients in it. unsent: messages of its whole
    load that were intended and never sent. waited: the fraction of its time spent waiting for room in its
    window.
    """

    name: str
    cpu_share: float
    pacing_p99_ms: float
    intended: int
    unsent: int = 0
    per_process: int = 1
    waited: float = 0.0


def bottlenecks(clients: Sequence[Client], others: str = "") -> list[str]:
    """Name the parts of the load that were too slow to measure by; empty if none was.

    others: what else used the machine, which may have delayed the load; "" if that is not known.
    """
    return [
        *_worst({each: _busy(each) for each in clients}, lambda each: each.cpu_share),
        *_worst({each: _late(each, others) for each in clients}, lambda each: each.pacing_p99_ms),
        *_worst({each: _unsent(each, others) for each in clients}, lambda each: each.unsent),
    ]


def _worst(texts: Mapping[Client, str], severity: Callable[[Client], float]) -> list[str]:
    """Return up to EACH_MAX faults; of more, the worst one and the number of the others."""
    found = sorted((each for each in texts if texts[each]), key=severity, reverse=True)
    if len(found) <= LINES_MAX:
        return [texts[each] for each in found]
    return [f"{texts[found[0]]} (the worst of {len(found)} clients)"]


def _busy(client: Client) -> str:
    share = client.cpu_share * client.per_process
    if share <= CPU_SHARE_MAX:
        return ""
    return f"{client.name} used {share:.0%} of a core: the client {BOTTLENECK}"


def _late(client: Client, others: str) -> str:
    if client.pacing_p99_ms <= PACING_P99_MAX_MS or _busy(client):
        return ""
    return (
        f"{client.name} handled 1 % of its messages {client.pacing_p99_ms:.1f} ms late or more: its pacer "
        f"{BOTTLENECK}{_beside(others)}"
    )


def _unsent(client: Client, others: str) -> str:
    if not client.intended or client.unsent / client.intended <= UNSENT_PART_MAX:
        return ""
    sent = f"{client.intended - client.unsent:,} of {client.intended:,}"
    if client.waited > WAITED_PART:
        return f"{client.name} sent {sent} intended messages: held back by its window"
    return f"{client.name} sent {sent} {TOO_SLOW}{_beside(others)}"


def _beside(others: str) -> str:
    return f"; {others}" if others else ""


def is_of_load(fault: str) -> bool:
    """Return whether a fault means that the load was the limit; it then says nothing about the system."""
    return BOTTLENECK in fault or TOO_SLOW in fault


def unsteady(rates: Sequence[float]) -> list[str]:
    """Report measured seconds whose rate is far from the median; empty if there are too few seconds."""
    if len(rates) < STEADY_WINDOW_S:
        return []
    middle = statistics.median(rates)
    bound = STEADY_WITHIN * middle + STEADY_DEVIATIONS * math.sqrt(middle / STEADY_WINDOW_S)
    for start in range(len(rates) - STEADY_WINDOW_S + 1):
        mean = statistics.fmean(rates[start : start + STEADY_WINDOW_S])
        if abs(mean - middle) > bound:
            return [
                f"no steady state: {mean:,.0f} a second from measured second {start} on, "
                f"{middle:,.0f} at the median"
            ]
    return []


def behind(
    intended: int, confirmed: int, expected: int, delivered: int, measured_s: float
) -> list[str]:
    """Name what did not keep up in the measured part: the system, or its consumers.

    expected: deliveries if each confirmed message were delivered to each of its subscriptions.
    """
    least = 1 - max(LATER_PART, LATER_S / measured_s)
    found = []
    if confirmed < least * intended:
        found.append(f"did not keep up: {confirmed:,} confirmed of {intended:,} intended meanwhile")
    if delivered < least * expected:
        found.append(
            f"consumers did not keep up: {delivered:,} delivered of {expected:,} meanwhile"
        )
    return found
