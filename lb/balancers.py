"""What an inventory says of one HAProxy: addresses, files, limits. Values, and how they are read."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from lb.tables import NAME, Address, Table
from lb.timers import Timers
from messagebus.secret import Secret

__all__ = ["Balancer", "balancer_tables", "read_balancer"]

SESSIONS_MAX = 8_000
BALANCER = "haproxy"
"""Name of the one that has none of its own."""

_USER = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """One HAProxy.

    host: name of the host that it runs on; "" for this machine.
    amqp, list, stats: addresses that it binds.
    config, socket, state_file, master_pid_file: absolute paths on its host.
    probe_password: what the gate check logs in with; None where the file cannot be read, which is
        enough to look at a balancer but not to render its configuration.
    sessions_max: connections at the same time, of all kinds together.
    server_sessions_max: the same for one broker; who comes then waits for `connect_ms` and is refused.
    """

    name: str = BALANCER
    host: str = ""
    amqp: Address
    list: Address
    stats: Address
    config: Path
    socket: Path
    state_file: Path
    master_pid_file: Path
    probe_user: str
    probe_password_file: Path
    probe_password: Secret | None
    sessions_max: int = SESSIONS_MAX
    server_sessions_max: int = SESSIONS_MAX
    timers: Timers = dataclasses.field(default_factory=Timers)

    @property
    def lock_file(self) -> Path:
        """On its host: of who writes configuration or state."""
        return self.config.with_suffix(".lock")


def balancer_tables(top: Table) -> list[Table]:
    """``[balancer]`` alone is one; beside ``[[balancers]]`` it says what they have in common."""
    several = top.tables("balancers", common="balancer")
    return several or [top.table("balancer")]


def read_balancer(table: Table) -> Balancer:
    timers = table.table("timers", required=False)
    host = table.text("host", NAME, required=False)
    sessions_max = table.number("sessions_max", SESSIONS_MAX)
    balancer = Balancer(
        name=table.text("name", NAME, required=False) or BALANCER,
        host=host,
        amqp=table.address("amqp"),
        list=table.address("list"),
        stats=table.address("stats"),
        config=table.path("config", absolute=bool(host)),
        socket=table.path("socket", absolute=bool(host)),
        state_file=table.path("state_file", absolute=bool(host)),
        master_pid_file=table.path("master_pid_file", absolute=bool(host)),
        probe_user=table.text("probe_user", _USER),
        probe_password_file=table.path("probe_password_file"),
        probe_password=None,
        sessions_max=sessions_max,
        server_sessions_max=table.number("server_sessions_max", sessions_max),
        timers=Timers(
            **{
                field.name: timers.number(field.name, field.default)
                for field in dataclasses.fields(Timers)
                if isinstance(field.default, int)
            }
        ),
    )
    table.nothing_else()
    timers.nothing_else()
    return balancer
