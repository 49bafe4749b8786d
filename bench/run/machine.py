"""How busy the whole machine was while it was measured: what is neither brokers nor load shows as the rest.

The rest is balancer, agents, kernel, and whatever else ran there; cores that a hypervisor gave to
others are told apart.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from bench.run.growth import between

__all__ = ["Busy", "Usage", "look", "usage"]


@dataclass(frozen=True, slots=True)
class Busy:
    """at_s: since the load began. busy_s, stolen_s: of all cores, so far. load: average of a minute."""

    at_s: float
    busy_s: float
    stolen_s: float
    load: float


@dataclass(frozen=True, slots=True)
class Usage:
    """In cores, on average. rest: neither brokers nor load processes."""

    cores: int
    busy: float
    brokers: float
    clients: float
    stolen: float
    load_max: float

    @property
    def rest(self) -> float:
        return max(0.0, self.busy - self.brokers - self.clients)

    def __str__(self) -> str:
        told = (
            f"{self.busy:.2f} of {self.cores} cores busy: load {self.clients:.2f}, brokers "
            f"{self.brokers:.2f}, all else {self.rest:.2f}"
        )
        return told + (f"; {self.stolen:.2f} given to others" if self.stolen >= 0.01 else "")


def look(at_s: float) -> Busy:
    times = psutil.cpu_times()
    stolen_s = getattr(times, "steal", 0.0)
    busy_s = times.user + times.system + times.nice
    busy_s += getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
    return Busy(at_s, busy_s, stolen_s, os.getloadavg()[0])


def usage(
    seen: Sequence[Busy], within: range, *, cores: int, brokers: float, clients: float
) -> Usage | None:
    """Of the seconds within; brokers, clients: their cores. None: too little was seen."""
    if not seen:
        return None
    begin_s, end_s = max(within.start, seen[0].at_s), min(within.stop, seen[-1].at_s)
    busy_s = between([(each.at_s, each.busy_s) for each in seen], begin_s, end_s)
    stolen_s = between([(each.at_s, each.stolen_s) for each in seen], begin_s, end_s)
    if busy_s is None or stolen_s is None or end_s <= begin_s:
        return None
    return Usage(
        cores=cores,
        # The kernel counts in ticks, which may be ahead of the clock by some.
        busy=min(float(cores), busy_s / (end_s - begin_s)),
        brokers=brokers,
        clients=clients,
        stolen=stolen_s / (end_s - begin_s),
        load_max=max(each.load for each in seen),
    )
