"""The processor time and memory of the brokers and agents of a local cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from ops.local.cluster import LocalCluster

TICKS_A_S = os.sysconf("SC_CLK_TCK")
MB = 1e6


@dataclass(frozen=True, slots=True)
class Used:
    """The processor time of each part by now, in seconds. agents: with their ended child processes."""

    at_s: float
    brokers: Mapping[str, float]
    agents: Mapping[str, float]

    @classmethod
    def now(cls, cluster: LocalCluster) -> Used:
        return cls(time.monotonic(), _seconds(cluster), _seconds(cluster, agent=True))

    def cpu_s(self, before: Used) -> tuple[float, float]:
        """Return the time of all brokers, and of all agents, since then."""
        return _sum(self.brokers, before.brokers), _sum(self.agents, before.agents)

    def percent(self, before: Used) -> tuple[float, float]:
        """Return the shares of one core of the busiest broker, and of the busiest agent, since then."""
        took_s = self.at_s - before.at_s
        return (
            _most(self.brokers, before.brokers) / took_s * 100,
            _most(self.agents, before.agents) / took_s * 100,
        )


def memory_mb(cluster: LocalCluster) -> tuple[float, float]:
    """Return the mean memory of a broker, and of an agent."""
    return _mean_mb(cluster), _mean_mb(cluster, agent=True)


def _mean_mb(cluster: LocalCluster, *, agent: bool = False) -> float:
    found = [cluster.process_of(name, agent=agent) for name in cluster.names]
    return (
        sum(psutil.Process(each.pid).memory_info().rss for each in found if each) / MB / len(found)
    )


def _seconds(cluster: LocalCluster, *, agent: bool = False) -> dict[str, float]:
    found = {name: cluster.process_of(name, agent=agent) for name in cluster.names}
    return {name: each.cpu_ticks / TICKS_A_S for name, each in found.items() if each}


def _sum(now: Mapping[str, float], before: Mapping[str, float]) -> float:
    return sum(now[name] - before[name] for name in now.keys() & before.keys())


def _most(now: Mapping[str, float], before: Mapping[str, float]) -> float:
    return max((now[name] - before[name] for name in now.keys() & before.keys()), default=0.0)
