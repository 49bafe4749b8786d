"""All groups of figures, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Iterable

from bench.errors import InputInvalid
from bench.figures.attach import attach_figures
from bench.figures.client import batch, consume, gap, latency, mesh, publish, stream, threads
from bench.figures.comfort import delay, handlers
from bench.figures.comfort import memory as comfort_memory
from bench.figures.kill import kill_figures
from bench.figures.measure import audit as measure_audit
from bench.figures.measure import backlog as measure_backlog
from bench.figures.measure import join as measure_join
from bench.figures.measure import memory as measure_memory
from bench.figures.measure import scans as measure_scans
from bench.figures.memory import memory_figures
from bench.figures.ops import failover as ops_failover
from bench.figures.ops import playbooks as ops_playbooks
from bench.figures.publish import publish_figures
from bench.figures.scene import Group

__all__ = ["GROUPS", "chosen"]

BEHIND_HAPROXY = "HAProxy before three brokers"

# Publishing first: on empty brokers. What kills brokers comes last.
GROUPS = (
    publish.GROUP,
    consume.GROUP,
    batch.GROUP,
    threads.GROUP,
    latency.GROUP,
    stream.GROUP,
    mesh.GROUP,
    delay.GROUP,
    handlers.GROUP,
    comfort_memory.GROUP,
    Group(
        "way.publish", 3, BEHIND_HAPROXY, lambda scene: publish_figures(scene.cluster, scene.say)
    ),
    Group(
        "way.memory",
        3,
        BEHIND_HAPROXY,
        lambda scene: memory_figures(scene.cluster, scene.folder / "crew", scene.say),
    ),
    Group("way.attach", 3, BEHIND_HAPROXY, lambda scene: attach_figures(scene.cluster, scene.say)),
    Group(
        "way.kill",
        3,
        BEHIND_HAPROXY,
        lambda scene: kill_figures(scene.cluster, scene.folder / "crew", scene.say),
    ),
    gap.GROUP,
    ops_playbooks.GROUP,
    ops_failover.GROUP,
    measure_audit.GROUP,
    measure_scans.GROUP,
    measure_backlog.GROUP,
    measure_join.GROUP,
    measure_memory.GROUP,
)


def chosen(names: Iterable[str]) -> list[Group]:
    """Those of that name, or whose names begin with it and a dot; all without any.

    Raises InputInvalid for a name that means none.
    """
    wanted = list(names)
    for name in wanted:
        if not any(_means(name, group) for group in GROUPS):
            known = ", ".join(group.name for group in GROUPS)
            raise InputInvalid(f"no figures {name!r}; there are {known}")
    return [group for group in GROUPS if not wanted or any(_means(name, group) for name in wanted)]


def _means(name: str, group: Group) -> bool:
    return group.name == name or group.name.startswith(f"{name}.")
