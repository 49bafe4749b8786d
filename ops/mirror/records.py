"""Records about a mirror beside the inventory: where its broker runs, and which host went on alone.

A playbook writes them in its own process while a broker is down; each is a command too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime

from inventory.inventory import Host
from messagebus.files import write_whole
from ops.errors import NoAnswer
from ops.mirror.state import Alone, Status
from ops.mirror.view import MirrorView
from ops.playbooks.inventory_text import with_value


def record_host(view: MirrorView, host: Host) -> None:
    """Record in the inventory that the broker runs on this host."""
    text = with_value(view.file.read_text(), view.name, "host", host.name)
    write_whole(view.file, text, mode=None)


def record_alone(view: MirrorView, host: Host) -> Alone | None:
    """Record that this host writes without its peer, or is about to. None where it has one: nothing is kept.

    Before it writes its generation is not known, so this is done again afterwards.
    """
    side, before = view.status(host), view.alone
    if side.is_connected:
        return None
    now = Alone(host=host.name, since=f"{datetime.now(UTC):%F %H:%M} UTC")
    if before and before.host == host.name:
        now = before
    has = side.generations
    if side.role == "Primary" and not side.frozen and has and has.base:  # it is ahead of its peer
        now = Alone(host=now.host, since=now.since, generation=has.current)
    write_whole(view.alone_file, json.dumps(asdict(now)) + "\n", mode=None)
    return now


def clear_alone(view: MirrorView, sides: Mapping[str, Status | NoAnswer]) -> None:
    """Delete the record of a host that went on alone, where both hosts report the same data now."""
    if all(isinstance(side, Status) and side.is_whole for side in sides.values()):
        view.alone_file.unlink(missing_ok=True)
