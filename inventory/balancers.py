"""One HAProxy of an inventory: addresses, files, times and limits; and the functions that read it."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from inventory.tables import NAME, Address, Table
from messagebus.secret import Secret

__all__ = ["Balancer", "Timers", "balancer_tables", "read_balancer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Times of one balancer; `lb.lint` checks that they fit together.

    heartbeat_s: the longest AMQP heartbeat that a client of this bus uses. 60 is RabbitMQ's own
        offer, so it covers clients that set none.
    client_s, server_s: a connection that is silent for this long is cut.
    connect_ms: timeout of a TCP connect to a broker. With leastconn it is also the time that HAProxy waits
        before it tries the next broker after a refused connect: keep it well under a publisher's
        own dial timeout (500 ms).
    check_ms: timeout of the whole login of the gate check. Two late logins in a row cut a broker's sessions,
        so it must be above what a busy broker needs.
    check_inter_ms, check_fast_inter_ms: time between two gate checks, and while the state is changing.
    rise, fall: checks in a row that bring a broker up, or take it down.
    agent_inter_ms: time between two questions to an agent; the upper bound of the delay of a drain.
    list_wait_s: the longest waiting fetch that an agent grants.
    list_server_s: silence that is allowed to an agent.
    connection_lifetime_s: a publisher renews its connection after this time (plus a fifth, at random).
    hard_stop_s: upper bound of the time that a process from before a reload lives on with its connections.
    """

    heartbeat_s: int = 60
    client_s: int = 180
    server_s: int = 180
    connect_ms: int = 250
    check_ms: int = 1_000
    check_inter_ms: int = 1_000
    check_fast_inter_ms: int = 200
    rise: int = 2
    fall: int = 2
    agent_inter_ms: int = 500
    list_wait_s: int = 60
    list_server_s: int = 75
    connection_lifetime_s: int = 600
    hard_stop_s: int = 1_800


SESSIONS_MAX = 8_000
BALANCER = "haproxy"
"""Name of a balancer that has none in the inventory."""

_USER = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """One HAProxy.

    host: name of the host that it runs on; "" for this machine.
    amqp, list, stats: addresses that it binds.
    config, socket, state_file, master_pid_file: absolute paths on its host.
    probe_password: password of the gate check's login; None where the file cannot be read, which is
        enough to look at a balancer but not to render its configuration.
    sessions_max: connections at the same time, of all kinds together.
    server_sessions_max: the same for one broker; a connection above it waits for `connect_ms` and is refused.
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
        """The lock file, on the balancer's host, for writers of configuration or state."""
        return self.config.with_suffix(".lock")


def balancer_tables(top: Table) -> list[Table]:
    """Return the table of each balancer.

    ``[balancer]`` alone is one; beside ``[[balancers]]`` it holds the values that they have in common.
    """
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
