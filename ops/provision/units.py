"""`python -m ops units`: systemd units for hosts of balancers and workers, and their programs, as text.

`ops provision` writes the agent's unit, with the rest of a broker's host.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

import lb.keeper
from inventory.files import Templates
from inventory.inventory import Balancer, Inventory, load
from lb.render import ALIVE
from ops.run.command import inventory_option

UNITS = Path("/etc/systemd/system")
KEEPER = Path("/usr/local/lib/messagebus/keeper.py")
"""Path of the copy of lb/keeper.py on a balancer's host."""
BALANCER_STATE_UNIT = "messagebus-balancer-state"
SAVE_EVERY_S = 2
WORKER_GRACE_S = 30
KEEPALIVED = Path("/etc/keepalived/keepalived.conf")
ALIVE_CHECK = KEEPER.with_name("alive.sh")
"""Path of the check by which keepalived learns whether HAProxy works."""
# Descriptors beside two for each connection: listeners, checks, logs.
FILES_BESIDE = 1_000


def _quoted(value: object) -> str:
    """Return a string literal of TOML and Erlang, which are as JSON's for the values of an inventory."""
    return json.dumps(str(value), ensure_ascii=False)


TEMPLATES = Templates("ops.provision", quoted=_quoted)
"""Templates of this folder; `ops.provision.wanted` uses them too."""


def balancer_files(inventory: Inventory, balancer: Balancer) -> dict[Path, str]:
    """Return the files for the host of a balancer: path -> text; beside Debian's haproxy.service."""
    words = {
        "cluster": inventory.cluster,
        "balancer": balancer,
        "keeper": KEEPER,
        "every_s": SAVE_EVERY_S,
        "files_max": 2 * balancer.sessions_max + FILES_BESIDE,
    }
    state = f"{BALANCER_STATE_UNIT}.service"
    files = {
        UNITS / "haproxy.service.d" / "messagebus.conf": _render("haproxy.conf.j2", words),
        UNITS / state: _render(f"{state}.j2", words),
        KEEPER: Path(lb.keeper.__file__).read_text(),
    }
    if balancer.vrrp_address:
        words |= {"check": ALIVE_CHECK, "alive": ALIVE}
        words |= {
            "stats_host": "127.0.0.1" if balancer.stats.is_any else balancer.stats.host.strip("[]")
        }
        files[ALIVE_CHECK] = _render("alive.sh.j2", words)
        files[KEEPALIVED] = _render("keepalived.conf.j2", words)
    return files


def worker_files(program: Path) -> dict[Path, str]:
    """Return the files for all workers of a host, one instance an app.

    program: the command ``messagebus``.
    """
    name = "messagebus-worker@.service"
    return {UNITS / name: _render(f"{name}.j2", {"program": program, "grace_s": WORKER_GRACE_S})}


def _render(template: str, words: dict[str, object]) -> str:
    return TEMPLATES.render(template, words)


@click.command(short_help="Show the files that a host needs for systemd.")
@click.option(
    "--balancer", "name", help="Balancer whose host the files are for; default the first."
)
@click.option(
    "--worker",
    "program",
    type=click.Path(path_type=Path),
    help="Print files for workers instead; path of their command `messagebus`.",
)
@click.option(
    "--out",
    "output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write them below this folder instead of printing them.",
)
@inventory_option
def units(name: str | None, program: Path | None, output: Path | None, file: Path) -> None:
    """Show the files that a host needs so that systemd runs our programs there.

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
