"""A running HAProxy: its answers, and the orders that only its admin socket takes.

The only module that uses haproxyadmin. It asks with one command for all servers, because the library
asks three times for each.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from haproxyadmin import haproxy
from haproxyadmin.exceptions import CommandFailed, HAProxyBaseError

from lb import state
from lb.errors import BalancerUnreachable, LbError
from lb.render import BROKERS
from messagebus.errors import reason_of

ANSWER_WITHIN_S = 2.0
"""Timeout of each command on the socket. HAProxy answers in under a millisecond unless it hangs."""
WEIGHT_MAX = 255
# HAProxy's word for an agent whose last line it understood; it does not say which line.
AGENT_ANSWERED = "CHECKED"

# haproxyadmin's words for a socket behind which nobody answers.
_NOBODY = "UNIX socket file was not set"

STATES_BY_AGENT = ("says ready", "says drain")
Verdict = Literal["up", "down", "drain", "maint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The serving process. description: marker of its configuration."""

    pid: int
    uptime_s: int
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One broker as the serving process sees it.

    verdict: `up` where new connections go there, or why they do not.
    drained: an order to drain stands, whatever the verdict is.
    check: last result of the gate check in HAProxy's words.
    agent: one of SAID, or HAProxy's reason for which the agent said nothing.
    sessions: connections of this process; those of the process before a reload are not in it.
    changed_s: seconds since the verdict changed.
    """

    name: str
    address: str
    verdict: Verdict
    drained: bool
    check: str
    agent: str
    sessions: int
    sessions_total: int
    queue: int
    weight: int
    changed_s: int

    @property
    def is_up(self) -> bool:
        """True where new connections go there."""
        return self.verdict == "up"


def process(socket: Path) -> Process:
    """Return the serving process. Raises BalancerUnreachable."""
    with _answers(socket) as ask:
        known = dict(line.split(": ", 1) for line in ask("show info") if ": " in line)
        return Process(
            pid=int(known["Pid"]),
            uptime_s=int(known["Uptime_sec"]),
            description=known.get("description", ""),
        )


def servers(socket: Path) -> dict[str, ServerState]:
    """Return every broker by name, in the order of the configuration. Raises BalancerUnreachable."""
    with _answers(socket) as ask:
        listed = state.rows("\n".join(ask("show servers state")))
        lines = ask("show stat")
        table = csv.DictReader([lines[0].removeprefix("# "), *lines[1:]])
        return {
            row["svname"]: _server_state(row, listed[row["svname"]])
            for row in table
            if row["pxname"] == BROKERS and row["svname"] in listed
        }


def server_state_text(socket: Path) -> str:
    """Return the text of a state file with which HAProxy starts again as it is.

    Raises BalancerUnreachable.
    """
    with _answers(socket) as ask:
        return "\n".join(ask("show servers state")) + "\n"


def maint(socket: Path, name: str, *, on: bool) -> None:
    """Take a broker whose agent is dead and cannot be asked out at once, or back.

    Its sessions are not cut. Raises LbError when its agent lives: each of its `ready` would undo this.
    """
    known = servers(socket).get(name)
    if on and known and known.agent in STATES_BY_AGENT:
        raise LbError(f"the agent of {name} answers and would undo it: see `lb drain`")
    _server(socket, name, lambda server: server.setstate("maint" if on else "ready"))


def set_drain(socket: Path, name: str, *, on: bool) -> None:
    """Drain a broker whose agent is dead: send it no new connections, or again."""
    _server(socket, name, lambda server: server.setstate("drain" if on else "ready"))


def set_weight(socket: Path, name: str, weight: int) -> None:
    """Set the weight of a broker, its share of new connections: 0 to 255, 100 is normal.

    Kept over reloads.
    """
    if not 0 <= weight <= WEIGHT_MAX:
        raise LbError(f"weight {weight}: 0 to {WEIGHT_MAX}")
    _server(socket, name, lambda server: server.setweight(weight))


def _server(socket: Path, name: str, order: Callable[[Any], object]) -> None:
    with _connected(socket) as hap:
        try:
            found = hap.server(name, backend=BROKERS)
        except ValueError as fault:
            raise LbError(f"the balancer knows no server {name!r}") from fault
        order(found[0])


def _server_state(row: Mapping[str, str], listed: state.Row) -> ServerState:
    drained = bool(listed.admin_state & state.DRAIN_FLAGS)
    answered = row["agent_status"] == AGENT_ANSWERED
    return ServerState(
        name=row["svname"],
        address=row["addr"],
        verdict=_verdict(row["status"]),
        drained=drained,
        check=_words(row["check_status"], row["last_chk"]),
        agent=STATES_BY_AGENT[drained]
        if answered
        else _words(row["agent_status"], row["last_agt"]),
        sessions=int(row["scur"] or 0),
        sessions_total=int(row["stot"] or 0),
        queue=int(row["qcur"] or 0),
        weight=int(row["weight"] or 0),
        changed_s=int(row["lastchg"] or 0),
    )


def _verdict(status: str) -> Verdict:
    """Translate HAProxy's status, such as ``UP 1/2`` or ``DRAIN (agent)``, into one of our words."""
    match status.split():
        case ["UP", *_] | ["no", "check"]:
            return "up"
        case ["DRAIN" | "NOLB", *_]:
            return "drain"
        case ["MAINT", *_]:
            return "maint"
        case _:
            return "down"


def _words(*parts: str) -> str:
    return " ".join(part for part in parts if part)


@contextmanager
def _connected(socket: Path) -> Iterator[Any]:
    try:
        yield haproxy.HAProxy(
            socket_file=str(socket), retry=None, retry_interval=0, timeout=ANSWER_WITHIN_S
        )
    except CommandFailed as fault:
        raise LbError(f"HAProxy refuses: {fault}") from fault
    except HAProxyBaseError as fault:
        raise BalancerUnreachable(f"{socket}: {reason_of(fault)}") from fault
    except (OSError, ValueError, LookupError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        if reason == _NOBODY:
            reason = f"its process has ended, or is frozen: no answer in {ANSWER_WITHIN_S:g} s"
        raise BalancerUnreachable(f"HAProxy does not answer on {socket}: {reason}") from fault


@contextmanager
def _answers(socket: Path) -> Iterator[Callable[[str], list[str]]]:
    with _connected(socket) as hap:
        yield lambda command: [str(line) for line in hap.command(command)[0][1]]
