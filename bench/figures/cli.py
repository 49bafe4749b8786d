"""``python -m bench figures`` and ``python -m bench readme``."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console

from bench.errors import BenchError
from bench.figures.attach import attach_figures
from bench.figures.environment import CHECKOUT, describe, load_average
from bench.figures.form import Figure, Results, figures_table
from bench.figures.kill import kill_figures
from bench.figures.memory import memory_figures
from bench.figures.publish import publish_figures
from bench.readme import update
from ops.local.cluster import LocalCluster
from ops.local.layout import DEFAULT_NETWORK

__all__ = ["figures", "readme"]

RESULTS = CHECKOUT / "bench" / "results"
BROKERS = 3
# Publishing first: on empty brokers. Killing last.
GROUPS = ("publish", "memory", "attach", "kill")


@click.command(epilog="Example: python -m bench figures --only publish --name my-machine-publish")
@click.option("--only", type=click.Choice(GROUPS), multiple=True, help="These alone.")
@click.option("--name", help="Of the results file; default: the time.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Default: a temporary one.")
@click.option("--network", default=DEFAULT_NETWORK, show_default=True, help="Of all addresses.")
def figures(only: tuple[str, ...], name: str | None, folder: Path | None, network: str) -> None:
    """Measure the figures of the project on a local cluster of 3 brokers.

    Prints a table and keeps it as bench/results/NAME.json. A machine that does other things
    meanwhile measures those too: the load before and after is in the file. Exit code 1: a goal was
    not met.
    """
    console = Console(highlight=False)
    folder = (folder or Path(tempfile.mkdtemp(prefix="messagebus-figures-"))).resolve()
    environment = describe()
    cluster = LocalCluster(folder / "cluster", BROKERS, network=network, say=console.print)
    found: list[Figure] = []
    try:
        with console.status("a cluster of 3 brokers starts"):
            cluster.up()
        for figure in _measure(only or GROUPS, cluster, folder, console.print):
            found.append(figure)
    finally:
        cluster.down(wipe=True)
    environment["load_after"] = load_average()
    results = Results(
        name=name or time.strftime("%Y-%m-%d-%H%M%S"),
        environment=environment,
        figures=tuple(found),
    )
    console.print(figures_table(found))
    console.print(f"results: {os.path.relpath(results.save(RESULTS))}")
    shutil.rmtree(folder, ignore_errors=True)
    if missed := [figure.id for figure in found if figure.met is False]:
        raise BenchError(f"goals not met: {', '.join(missed)}")


def _measure(
    groups: tuple[str, ...], cluster: LocalCluster, folder: Path, say: Callable[[str], None]
) -> Iterator[Figure]:
    measures: dict[str, Callable[[], Iterator[Figure]]] = {
        "publish": lambda: publish_figures(cluster, say),
        "memory": lambda: memory_figures(cluster, folder / "memory", say),
        "attach": lambda: attach_figures(cluster, say),
        "kill": lambda: kill_figures(cluster, folder / "kill", say),
    }
    for group in GROUPS:
        if group in groups:
            say(f"measuring {group}")
            yield from measures[group]()


@click.command(epilog="Example: python -m bench readme")
def readme() -> None:
    """Make the table of figures in README.md from the newest results of bench/results."""
    count = update(CHECKOUT / "README.md", RESULTS)
    click.echo(f"README.md has the figures of {count} results files")
