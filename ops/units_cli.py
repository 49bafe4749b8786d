"""`python -m ops units`: systemd units for hosts of balancers and workers."""

from __future__ import annotations

import os
from pathlib import Path

import click

from inventory.inventory import DEFAULT_PATH, ENV_PATH, load
from ops.unit_files import balancer_files, worker_files

__all__ = ["units"]


@click.command(short_help="Show the files that a host needs for systemd.")
@click.option("--balancer", "name", help="For the host of this balancer; default: the first.")
@click.option(
    "--worker",
    "program",
    type=click.Path(path_type=Path),
    help="Instead, for workers: where their command `messagebus` is.",
)
@click.option(
    "--out",
    "output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write them below this folder instead of printing them.",
)
@click.option(
    "--inventory",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=lambda: Path(os.environ.get(ENV_PATH) or DEFAULT_PATH),
    help=f"Default ${ENV_PATH}, else {DEFAULT_PATH}.",
)
def units(name: str | None, program: Path | None, output: Path | None, file: Path) -> None:
    """Show the files that a host needs so that systemd runs what is ours there.

    \b
    Example:
      python -m ops units --balancer lb2 --out /tmp/lb2
      python -m ops units --worker /opt/shop/bin/messagebus
    """
    if program:
        files = worker_files(program)
    else:
        inventory = load(file)
        balancer = inventory.find_balancer(name) if name else inventory.balancer
        files = balancer_files(inventory, balancer)
    for path, text in files.items():
        if output is None:
            click.echo(f"# ---- {path}\n{text}")
            continue
        there = output / path.relative_to("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text)
        click.echo(there)
