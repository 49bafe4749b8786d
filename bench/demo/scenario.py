"""The scenario of the demo: its steps in order, their time limits, and the rate of messages.

Pure: no clock, no process. The records are spread over the time that the remaining steps need, so
that messages flow during every one of them and the input ends soon after the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOPIC = "packages"
BROKERS = 3
PUBLISHERS = 4
# The subscription of each consumer.
CONSUMERS = ("billing", "billing", "billing", "audit")
SUBSCRIPTIONS = tuple(dict.fromkeys(CONSUMERS))
ADDED, REMOVED, KILLED = "mb4", "mb1", "mb2"
PREFETCH = 200
# Seconds that the killed broker stays down.
DOWN_S = 10.0

# With fewer records, no message would flow during some of the steps.
RECORDS_MIN = 500
SMALL_RECORDS = 2_000

# The input must not end before the last step: this time is always assumed to be left.
RESERVE_S = 4.0
# The records left after the last step are sent in about this time, and never slower than this rate.
TAIL_S = 2.0
TAIL_MIN_PER_S = 400.0
RATE_MAX_PER_S = 4_000.0
# A machine may be busy with other things. Beyond that, later steps see fewer messages.
SLOW_MAX = 4.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step that is done while messages flow.

    needs_s: the expected duration, for the pace. within_s: its bound; a longer step is a failure.
    looks_s: the part of it that only shows the resulting state to a person.
    """

    name: str
    title: str
    needs_s: float
    within_s: float
    looks_s: float = 1.0


def steps(*, small: bool) -> tuple[Step, ...]:
    """Return the plan. small: without time for looking, but with every event."""
    looks_s = 1.0 if small else 4.0
    flows_s = looks_s + 1.5
    return (
        Step("flow", f"messages flow over {BROKERS} brokers", flows_s, 120, looks_s),
        Step("add", f"{ADDED} is added by the playbook", 26, 240),
        Step("used", f"{ADDED} takes publishes and is consumed", 1.5, 60),
        Step("reload", "HAProxy reloads", 3, 60),
        Step("remove", f"{REMOVED} is removed: drained to zero, stopped", 22, 240),
        Step("kill", f"{KILLED} is killed (SIGKILL) and stays down for 10 s", DOWN_S, 60),
        Step("back", f"{KILLED} comes back", 8, 180),
        Step("again", "messages flow over all brokers again", flows_s, 120, looks_s),
    )


def slowness(done: Sequence[tuple[Step, float]], running: Step, in_step_s: float) -> float:
    """Return the ratio of actual to expected durations of steps on this machine; 1 to SLOW_MAX.

    done: finished steps with the seconds they took.
    """
    needed_s = sum(step.needs_s for step, _ in done)
    by_now = sum(took_s for _, took_s in done) / needed_s if needed_s else 1.0
    return min(max(1.0, by_now, in_step_s / running.needs_s), SLOW_MAX)


def planned_rate(*, left: int, ahead: Sequence[Step], in_step_s: float, slow: float = 1.0) -> float:
    """Return the messages per second of all publishers together, from now on.

    left: records not yet sent. ahead: the running step, then those after it; empty when all are done.
    in_step_s: seconds since the running step began. slow: the factor by which steps take longer.
    """
    if not ahead:
        return min(max(left / TAIL_S, TAIL_MIN_PER_S), RATE_MAX_PER_S)
    running, *later = ahead
    running_s = max(running.needs_s * slow - in_step_s, 0.0)
    planned_s = running_s + sum(step.needs_s for step in later) * slow
    return min(left / max(planned_s, RESERVE_S), RATE_MAX_PER_S)
