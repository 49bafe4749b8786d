"""The parts of an agent that its HTTP interface speaks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from messagebus.services.agent.broker.loads import Counting
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.consumer_list import Clients, ListFile
from messagebus.services.agent.gate import Verdict
from messagebus.services.agent.topology.agreement import Topology
from messagebus.services.agent.topology.moves import Moves
from messagebus.services.agent.web.login import Login
from messagebus.services.agent.web.metrics import Metrics
from messagebus.services.agent.web.observe import Observer
from messagebus.services.agent.web.tap import Taps
from messagebus.services.agent.web.trail import Trail


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the agent that the interface speaks for.

    verdict: on the broker, now. is_draining: operators' wish; set_draining stores it.
    unused_s: seconds without use of each expiring subscription. started: marks this process in ETags.
    node: name and epmd_port of the broker's Erlang node, None when it is not configured. names: hosts by
    which the agent is called, in lower case, beside addresses and names without a dot.
    """

    broker: str
    lists: ListFile
    clients: Clients
    topology: Topology
    upkeep: Upkeep
    login: Login
    counting: Counting
    observer: Observer
    unused_s: Callable[[], Mapping[str, float | None]]
    metrics: Metrics
    verdict: Callable[[], Verdict]
    is_draining: Callable[[], bool]
    set_draining: Callable[[bool], Awaitable[None]]
    started: str
    node: Mapping[str, str | int] | None = None
    names: Collection[str] = ()
    moves: Moves | None = None
    taps: Taps | None = None
    trail: Trail | None = None
