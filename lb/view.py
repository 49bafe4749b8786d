"""The state that balancers show, as a table for people and as plain values for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

from inventory.inventory import Inventory
from lb import runtime
from lb.errors import BalancerUnreachable
from lb.fleet import Fleet
from lb.render import marker, render
from lb.runtime import Process, ServerState
from messagebus.errors import ConfigError
from messagebus.terminal import plural, printable

STYLES = {"up": "green", "drain": "yellow", "maint": "magenta", "down": "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One balancer. fault: why it does not answer; process is None then.

    current: whether it serves the present inventory; None where that cannot be known.
    """

    name: str
    process: Process | None = None
    servers: Sequence[ServerState] = field(default_factory=tuple)
    current: bool | None = None
    fault: str = ""


def look(inventory: Inventory, fleet: Fleet) -> list[Shown]:
    """Ask every balancer, in the inventory's order."""
    return [_look(inventory, fleet, balancer.name) for balancer in inventory.balancers]


def _look(inventory: Inventory, fleet: Fleet, name: str) -> Shown:
    if name in fleet.unreachable:
        return Shown(name=name, fault=fleet.unreachable[name])
    try:
        process = runtime.process(fleet.sockets[name])
        servers = tuple(runtime.servers(fleet.sockets[name]).values())
    except BalancerUnreachable as fault:
        return Shown(name=name, fault=str(fault))
    try:
        wanted = marker(render(inventory.at(inventory.find_balancer(name))))
        current = process.description == wanted
    except ConfigError:  # a user who may look need not have the probe's password
        current = None
    return Shown(name=name, process=process, servers=servers, current=current)


def plain(shown: Sequence[Shown]) -> dict[str, Any]:
    return {"balancers": [dataclasses.asdict(each) for each in shown]}


def headlines(shown: Sequence[Shown]) -> Iterator[Text]:
    """Yield a line for each balancer."""
    for each in shown:
        if each.process is None:
            yield Text.assemble(
                (each.name, "bold"), "  ", (printable(f"no answer: {each.fault}"), "red")
            )
            continue
        up = sum(server.verdict == "up" for server in each.servers)
        sessions = sum(server.sessions for server in each.servers)
        yield Text.assemble(
            (each.name, "bold"),
            f"  process {each.process.pid}, up {in_words(each.process.uptime_s)},"
            f" {up} of {len(each.servers)} brokers up, {plural(sessions, 'session')}",
            ("  differs from the inventory: python -m lb apply", "bold red")
            if each.current is False
            else "",
        )


def server_table(shown: Sequence[Shown]) -> Table:
    """Make a table with a row for each broker and balancer; the rows of one broker stand together."""
    several = len(shown) > 1
    columns = ["broker", "address", *(["balancer"] if several else []), "state"]
    numbers = (Column(title, justify="right") for title in ("sessions", "queue", "weight"))
    table = Table(*columns, *numbers, "gate check", "agent", "since", box=SIMPLE_HEAD)
    names = list(dict.fromkeys(server.name for each in shown for server in each.servers))
    for name in names:
        found = [(each.name, one) for each in shown for one in each.servers if one.name == name]
        for number, (balancer, server) in enumerate(found):
            first = number == 0
            table.add_row(
                Text(printable(server.name if first else "")),
                Text(printable(server.address if first else "")),
                *([Text(printable(balancer))] if several else []),
                _state(server),
                str(server.sessions),
                str(server.queue),
                str(server.weight),
                Text(printable(server.check)),
                Text(printable(server.agent)),
                in_words(server.changed_s),
                end_section=several and number == len(found) - 1,
            )
    return table


def in_words(seconds: int) -> str:
    """Return a duration in its two largest units: ``2 days 3 h``."""
    parts = []
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {'day' if unit == 'days' and count == 1 else unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def _state(server: ServerState) -> Text:
    hidden = server.drained and server.verdict != "drain"
    text = f"{server.verdict}, drained" if hidden else server.verdict
    return Text(text, style=STYLES[server.verdict])
