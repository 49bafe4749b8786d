"""systemd units of what runs for long, and what they start, as text.

The agent's unit is written by `ops provision`, with the rest of a broker's host.
"""

from __future__ import annotations

from pathlib import Path

import jinja2

import lb.keeper
from inventory.inventory import Balancer, Inventory

__all__ = ["BALANCER_STATE_UNIT", "KEEPER", "balancer_files", "worker_files"]

UNITS = Path("/etc/systemd/system")
KEEPER = Path("/usr/local/lib/messagebus/keeper.py")
"""Where a balancer's host has a copy of lb/keeper.py."""
BALANCER_STATE_UNIT = "messagebus-balancer-state"
SAVE_EVERY_S = 2
WORKER_GRACE_S = 30
# Beside two for each connection: listeners, checks, logs.
FILES_BESIDE = 1_000

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("ops", "units"),
    undefined=jinja2.StrictUndefined,
    autoescape=False,
    keep_trailing_newline=True,
)


def balancer_files(inventory: Inventory, balancer: Balancer) -> dict[Path, str]:
    """What the host of a balancer should have: path -> text; beside Debian's haproxy.service."""
    words = {
        "cluster": inventory.cluster,
        "balancer": balancer,
        "keeper": KEEPER,
        "every_s": SAVE_EVERY_S,
        "files_max": 2 * balancer.sessions_max + FILES_BESIDE,
    }
    state = f"{BALANCER_STATE_UNIT}.service"
    return {
        UNITS / "haproxy.service.d" / "messagebus.conf": _render("haproxy.conf.j2", words),
        UNITS / state: _render(f"{state}.j2", words),
        KEEPER: Path(lb.keeper.__file__).read_text(),
    }


def worker_files(program: Path) -> dict[Path, str]:
    """Of all workers of a host, an instance for each app. program: the command ``messagebus``."""
    name = "messagebus-worker@.service"
    return {UNITS / name: _render(f"{name}.j2", {"program": program, "grace_s": WORKER_GRACE_S})}


def _render(template: str, words: dict[str, object]) -> str:
    return _TEMPLATES.get_template(template).render(words)
