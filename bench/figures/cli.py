"""The commands ``python -m bench figures`` and ``python -m bench readme``, and all groups of figures."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console

from bench import options
from bench.environment import CHECKOUT, describe, load_average
from bench.errors import BenchError, DoesNotHold, InputInvalid
from bench.figures import audit, feature_costs, gateway, monitor_page, playbooks
from bench.figures.client import gaps, latency, mesh, speed
from bench.figures.figure import Figure, Results, figures_table, update
from bench.figures.full_speed import group
from bench.figures.groups import BEHIND_HAPROXY, DEFAULT_REPEAT, Clusters, Group, Setup
from bench.harness.loop import best_loop

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
    monitor_page.GROUP,
    audit.GROUP,
    gaps.GROUP,
    playbooks.GROUP,
    playbooks.FAILOVER,
)


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


RESULTS = CHECKOUT / "bench" / "results"
# Pages besides README.md.
PAGES = (CHECKOUT / "docs" / "MEASURING.md",)
# The table's width: names, ranges and goals fit into one line each.
WIDTH = 140


@click.command(
    epilog="Example: python -m bench figures client.publish --repeat 5 --name my-machine"
)
@click.argument("groups", nargs=-1)
@options.number(
    "--repeat", default=DEFAULT_REPEAT, help="Repetitions of what is measured by turns."
)
@click.option("--quick", is_flag=True, help="A tenth of everything: shows that it works.")
@click.option(
    "--name",
    help="Of the results file; figures that are there already are replaced. Default: time.",
)
@options.folder("Default: a temporary one.")
@options.network
def figures(
    groups: tuple[str, ...],
    repeat: int,
    quick: bool,
    name: str | None,
    folder: Path | None,
    network: str,
) -> None:
    """Measure the figures of the project, all or those of GROUPS, on a local cluster of its own.

    GROUPS are names, such as client.publish, or common beginnings of names, such as way.

    Prints a table and keeps it as bench/results/NAME.json, after each group. Other load
    of the machine affects the figures: the file has its load before and after. Exit code 7: a goal was
    not met.
    """
    console = Console(highlight=False, soft_wrap=True)
    wanted = chosen(groups)
    folder = (folder or Path(tempfile.mkdtemp(prefix="messagebus-figures-"))).resolve()
    name = name or time.strftime("%Y-%m-%d-%H%M%S")
    setup = Setup(folder, console.print, repeat=repeat, quick=quick)
    path = RESULTS / f"{name}.json"
    found: list[Figure] = []
    failed: list[str] = []
    with Clusters(folder, network, console.print).open() as clusters:
        for group in wanted:
            console.print(f"measuring {group.name}: {group.path}")
            try:
                measured, environment = _measure(group, clusters, setup)
            except BenchError as fault:
                # A failed group must not lose the results of an hour of other groups.
                console.print(f"{group.name} failed: {fault}")
                failed.append(group.name)
                continue
            found += measured
            keep(path, group.name, measured, environment)
    Console(highlight=False, width=WIDTH).print(figures_table(found))
    console.print(f"results: {os.path.relpath(path)}")
    shutil.rmtree(folder, ignore_errors=True)
    if failed:
        raise BenchError(f"not measured: {', '.join(failed)}")
    if missed := [figure.id for figure in found if figure.met is False]:
        raise DoesNotHold(f"goals not met: {', '.join(missed)}")


def _measure(
    group: Group, clusters: Clusters, setup: Setup
) -> tuple[list[Figure], dict[str, object]]:
    """Measure the figures of one group; return them with the environment of the measurement."""
    environment: dict[str, object] = {
        **describe(),
        "loop": best_loop(),
        "path": group.path,
        "quick": setup.quick,
    }
    measured = list(group.measure(clusters.setup(group, setup)))
    return measured, {**environment, "load_after": load_average()}


def keep(path: Path, group: str, figures: list[Figure], environment: dict[str, object]) -> Path:
    """Write the figures of a group into a file of results, replacing its figures with the same ids.

    The file's environment is that of its newest group; ``groups`` has the environment of each.
    """
    known = Results.load(path) if path.exists() else None
    replaced = {figure.id for figure in figures}
    kept = [each for each in known.figures if each.id not in replaced] if known else []
    groups = known.environment.get("groups", {}) if known else {}
    return Results(
        name=path.stem,
        environment={**environment, "groups": {**groups, group: environment}},
        figures=(*kept, *figures),
    ).save(path.parent)


@click.command(epilog="Example: python -m bench readme")
def readme() -> None:
    """Write the newest figures into README.md, docs/MEASURING.md and bench/results/README.md."""
    count = update(CHECKOUT / "README.md", RESULTS, PAGES)
    click.echo(f"README.md, docs/MEASURING.md: they have the figures of {count} results files")
