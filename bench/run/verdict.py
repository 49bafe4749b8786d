"""Whether a run measured the system or its own load: pacing, CPU of the clients, a steady state.

Pure rules over what the load processes recorded; each bound is named. A run that fails one is told
so on the first line of its report: its latencies are the client's, not the broker's.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Client", "bottlenecks", "steady_from"]

# Of one core, in the measured part: above that a Python process is late by itself.
CPU_SHARE_MAX = 0.9
# How late the pacer itself may look at a message that is due: an event loop's timer has steps of 1 ms,
# and a shared machine some more. What waited for room in the window is not the pacer's lateness.
PACING_P99_MAX_MS = 5.0
# Messages that were intended and never tried, because the run was over: of all.
UNSENT_PART_MAX = 0.01
# Two thirds of a window of seconds lie that near to its median when the load is steady.
STEADY_WITHIN = 0.1
STEADY_WINDOW_S = 5


@dataclass(frozen=True, slots=True)
class Client:
    """One load process in the measured part. pacing_p99_ms: how late it looked at what was due.

    cpu_share: of one core, of each of the per_process in it. unsent: messages that were intended and
    that it never came to send; waited: whether it was held back by a full window, so that the system
    was slower than the load.
    """

    name: str
    cpu_share: float
    pacing_p99_ms: float
    intended: int
    unsent: int = 0
    per_process: int = 1
    waited: bool = False


def bottlenecks(clients: Sequence[Client]) -> list[str]:
    """In words, what of the load was too slow to measure by; empty when nothing was."""
    found = []
    for each in clients:
        share = each.cpu_share * each.per_process
        if share > CPU_SHARE_MAX:
            found.append(f"{each.name} used {share:.0%} of a core: the client was the bottleneck")
        elif each.pacing_p99_ms > PACING_P99_MAX_MS:
            found.append(
                f"{each.name} looked at 1 % of its messages {each.pacing_p99_ms:.1f} ms late or more: "
                "its pacer was the bottleneck"
            )
        if each.intended and each.unsent / each.intended > UNSENT_PART_MAX:
            held = "held back by its window" if each.waited else "too slow"
            found.append(
                f"{each.name} sent {each.intended - each.unsent:,} of {each.intended:,} intended "
                f"messages: {held}"
            )
    return found


def steady_from(rates: Sequence[float]) -> int | None:
    """The first second from which on the rate is steady for `STEADY_WINDOW_S`; None: it never is."""
    for start in range(len(rates) - STEADY_WINDOW_S + 1):
        window = rates[start : start + STEADY_WINDOW_S]
        middle = statistics.median(window)
        near = [abs(rate - middle) <= STEADY_WITHIN * middle for rate in window]
        if middle > 0 and near[0] and sum(near) * 3 >= 2 * len(window):
            return start
    return None
