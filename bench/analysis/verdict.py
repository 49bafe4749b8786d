"""Verdicts on whether a run measured the system or its own load: pacing, CPU of clients, a steady state.

Pure rules over what the load processes recorded; each bound is named. A run that fails one is told
so on the first lines of its report.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Client", "behind", "bottlenecks", "is_of_load", "unsteady"]

# Of one core, in the measured part: above that a Python process is late by itself.
CPU_SHARE_MAX = 0.9
# How late the pacer itself may look at a message that is due: an event loop's timer has steps of 1 ms,
# and a shared machine some more. What waited for room in the window is not the pacer's lateness.
PACING_P99_MAX_MS = 5.0
# Messages that were intended and never tried, because the run was over: of all.
UNSENT_PART_MAX = 0.01
# More load processes with the same fault are told in one line.
EACH_MAX = 3
# The mean of so many seconds lies that near to the median of all when the load is steady, and within that
# many standard deviations of a count.
STEADY_WINDOW_S = 5
STEADY_WITHIN = 0.1
STEADY_DEVIATIONS = 3.0
# Of what was intended in the measured part, as much, or what is under way at its end, may come later.
LATER_PART, LATER_S = 0.01, 0.5
# Of its time: a publisher that waited for room longer was held back by the system.
WAITED_PART = 0.05
# In the words of a fault: the load was too slow to measure by, whatever the system did.
BOTTLENECK, TOO_SLOW = "was the bottleneck", "intended messages: too slow"


@dataclass(frozen=True, slots=True)
class Client:
    """One load process in the measured part. pacing_p99_ms: how late it looked at what was due.

    cpu_share: of one core, of each of the per_process in it. unsent: messages that were intended and
    that it never came to send, of its whole load; waited: the part of its time in which it waited for
    room in its window.
    """

    name: str
    cpu_share: float
    pacing_p99_ms: float
    intended: int
    unsent: int = 0
    per_process: int = 1
    waited: float = 0.0


def bottlenecks(clients: Sequence[Client]) -> list[str]:
    """In words, what of the load was too slow to measure by; empty when nothing was."""
    return [
        *_told({each: _busy(each) for each in clients}, lambda each: each.cpu_share),
        *_told({each: _late(each) for each in clients}, lambda each: each.pacing_p99_ms),
        *_told({each: _unsent(each) for each in clients}, lambda each: each.unsent),
    ]


def _told(said: Mapping[Client, str], severity: Callable[[Client], float]) -> list[str]:
    """Each of a few; of more the worst, and how many others there are."""
    found = sorted((each for each in said if said[each]), key=severity, reverse=True)
    if len(found) <= EACH_MAX:
        return [said[each] for each in found]
    return [f"{said[found[0]]} (and {len(found) - 1} others less so)"]


def _busy(each: Client) -> str:
    share = each.cpu_share * each.per_process
    if share <= CPU_SHARE_MAX:
        return ""
    return f"{each.name} used {share:.0%} of a core: the client {BOTTLENECK}"


def _late(each: Client) -> str:
    if each.pacing_p99_ms <= PACING_P99_MAX_MS or _busy(each):
        return ""
    return (
        f"{each.name} looked at 1 % of its messages {each.pacing_p99_ms:.1f} ms late or more: its pacer "
        f"{BOTTLENECK}"
    )


def _unsent(each: Client) -> str:
    if not each.intended or each.unsent / each.intended <= UNSENT_PART_MAX:
        return ""
    sent = f"{each.intended - each.unsent:,} of {each.intended:,}"
    if each.waited > WAITED_PART:
        return f"{each.name} sent {sent} intended messages: held back by its window"
    return f"{each.name} sent {sent} {TOO_SLOW}"


def is_of_load(fault: str) -> bool:
    """Tell whether a run's fault says that the load was the limit, and so nothing of the system."""
    return BOTTLENECK in fault or TOO_SLOW in fault


def unsteady(rates: Sequence[float]) -> list[str]:
    """Of the measured seconds, in words, where the rate was not what it mostly was; too few: nothing."""
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
    """In words, what did not keep up in the measured part: the system, or its consumers.

    expected: deliveries, were each confirmed message delivered to each of its subscriptions.
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
