"""The commands ``python -m bench figures`` and ``python -m bench readme``, and all groups of figures."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console

from bench import options
from bench.environment import describe, load_average
from bench.errors import BenchError, DoesNotHold, InputInvalid
from bench.figures import audit, feature_costs, gateway, playbooks
from bench.figures.client import confirm_gaps, latency, mesh, speed
from bench.figures.figure import Figure, figures_table
from bench.figures.full_speed import group
from bench.figures.groups import BEHIND_HAPROXY, DEFAULT_REPEAT, Clusters, Group, Setup
from bench.figures.reach import client as reach_client
from bench.figures.reach import deflate, forward, simulated, sixteen, storm, topology
from bench.figures.results import check_keeping, counted_now, keep, update
from bench.harness.loop import best_loop
from messagebus.terminal import duration

# Publishing comes first, on empty brokers. Groups that kill brokers come last.
GROUPS = (
    group("client.publish", speed.publish),
    group("client.consume", speed.consume),
    group("client.batch", speed.batch),
    group("client.threads", speed.threads),
    group("client.handlers", speed.handlers),
    group("client.redundant", speed.redundant, brokers=3, path=BEHIND_HAPROXY),
    latency.GROUP,
    mesh.GROUP,
    *feature_costs.GROUPS,
    gateway.GROUP,
    audit.GROUP,
    simulated.GROUP,
    reach_client.GROUP,
    deflate.GROUP,
    forward.GROUP,
    sixteen.GROUP,
    storm.GROUP,
    topology.GROUP,
    confirm_gaps.GROUP,
    playbooks.GROUP,
    playbooks.FAILOVER,
)
# The table's width where there is no terminal: names, ranges and goals fit into one line each.
WIDTH = 140


def chosen(names: Iterable[str]) -> list[Group]:
    """Return the groups with these names, or whose names begin with one and a dot; all without names.

    Raises InputInvalid for a name that matches no group.
    """
    wanted = list(names)
    for name in wanted:
        if not any(_means(name, group) for group in GROUPS):
            known = ", ".join(group.name for group in GROUPS)
            raise InputInvalid(f"no figures {name!r}; there are {known}")
    return [group for group in GROUPS if not wanted or any(_means(name, group) for name in wanted)]


def _means(name: str, group: Group) -> bool:
    return group.name == name or group.name.startswith(f"{name}.")


@click.command(epilog="Example: python -m bench figures client.publish --repeat 5")
@click.argument("groups", nargs=-1)
@options.number(
    "--repeat", default=DEFAULT_REPEAT, help="Repetitions of what is measured by turns."
)
@click.option("--quick", is_flag=True, help="Do a tenth of everything, to see that it works.")
@options.keep
@options.folder("Default: a temporary one.")
@options.network
def figures(
    groups: tuple[str, ...],
    repeat: int,
    quick: bool,
    publish: bool,
    folder: Path | None,
    network: str,
) -> None:
    """Measure the figures of the project, all or those of GROUPS, on a local cluster of its own.

    GROUPS are names, such as client.publish, or their common beginnings: client (publish, consume, batch,
    threads, handlers, redundant, mesh, gap), feature (order, dedup, spool, outbox, replay, recorder),
    gateway, measure (audit), reach (simulated, client, deflate, forward, sixteen, storm,
    topology), ops (playbooks,
    failover).

    Prints a table, and writes the samples of each group into out/figures. Other load of the machine affects
    the figures: their source has the load before. Exit code 7: a goal was not met.
    """
    if quick and publish:
        raise InputInvalid("--quick, --keep: the figures of a quick run are not kept")
    console = Console(highlight=False, soft_wrap=True)
    wanted = chosen(groups)
    folder = (folder or Path(tempfile.mkdtemp(prefix="messagebus-figures-"))).resolve()
    setup = Setup(folder, console.print, repeat=repeat, quick=quick)
    found: list[Figure] = []
    failed: list[str] = []
    with Clusters(folder, network, console.print).open() as clusters:
        began_s = time.monotonic()
        for done, group in enumerate(wanted):
            if publish:
                check_keeping(console.print)
            console.print(
                f"measuring {group.name}{_of_all(done, len(wanted), began_s)}: {group.path}"
            )
            environment = {**describe(), "loop": best_loop(), "path": group.path, "quick": quick}
            try:
                measured = list(group.measure(clusters.setup(group, setup)))
            except BenchError as fault:
                # A failed group must not lose the results of an hour of other groups.
                console.print(f"{group.name} failed: {fault}")
                failed.append(group.name)
                continue
            found += measured
            environment["load_after"] = load_average()
            path = keep(group.name, measured, environment, publish=publish)
            console.print(f"samples: {os.path.relpath(path)}")
    width = None if sys.stdout.isatty() else WIDTH
    Console(highlight=False, width=width).print(figures_table(found))
    shutil.rmtree(folder, ignore_errors=True)
    if failed:
        raise BenchError(f"not measured: {', '.join(failed)}")
    if missed := [figure.id for figure in found if figure.met is False]:
        raise DoesNotHold(f"goals not met: {', '.join(missed)}")


def _of_all(done: int, count: int, began_s: float) -> str:
    """Return the place of a group among all, and the time left if they take as long as those before."""
    if not done:
        return f" (1 of {count})" if count > 1 else ""
    left_s = (time.monotonic() - began_s) / done * (count - done)
    return f" ({done + 1} of {count}, about {duration(left_s)} left)"


@click.command(epilog="Example: python -m bench readme")
def readme() -> None:
    """Write the figures of bench/results/figures.json into README.md and docs, and mark outdated ones.

    Outdated are figures that are more than 30 days old, or older than 300 commits to what they measure.
    """
    counted_now()
    found = update()
    click.echo(
        f"README.md, docs/MEASURING.md, docs/SCALE.md, bench/results/README.md: {len(found.figures)} figures"
    )
