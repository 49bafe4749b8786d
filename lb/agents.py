"""Graceful drain of a broker, or the end of it, by the flag that its agent keeps.

An agent's `ready` cancels a drain that was set by hand in HAProxy, so the flag is set at the agent alone.
The result is read back from every HAProxy.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx

from inventory.inventory import Inventory, Node
from lb.errors import AgentRefused, NotReached
from lb.fleet import Fleet, local
from lb.runtime import ServerState
from messagebus.errors import one_line, reason_of

STATE_WITHIN_S = 60.0
"""Time until HAProxy shows it: half a second for the agent's line, more for checks of a starting broker, and
for a machine whose processors are all busy."""
AGENT_WITHIN_S = 10.0
REASON_WITHIN_S = 2.0
"""Of each agent that is asked for the reason beside a table; the table waits for the slowest."""
POLL_S = 0.1
REASON_CHARS = 200


def drain(
    inventory: Inventory, name: str, *, within_s: float = STATE_WITHIN_S, fleet: Fleet | None = None
) -> Mapping[str, ServerState]:
    """Send no new connections to a broker; its present ones live on.

    fleet: the balancers that must show it; those of this machine by default.
    Returns the state that every HAProxy shows, by name of the balancer. Raises AgentRefused (nothing has
    changed), NotReached (the flag is set, and some HAProxy does not show it in time).
    """
    node = inventory.find(name)
    set_draining(inventory, node, draining=True)
    return _wait(inventory, node, "drain", within_s, fleet or local(inventory))


def ready(
    inventory: Inventory, name: str, *, within_s: float = STATE_WITHIN_S, fleet: Fleet | None = None
) -> Mapping[str, ServerState]:
    """Send new connections to a broker again. As `drain`; NotReached names the agent's reason."""
    node = inventory.find(name)
    set_draining(inventory, node, draining=False)
    return _wait(inventory, node, "ready", within_s, fleet or local(inventory))


def reasons(inventory: Inventory, names: Collection[str]) -> Mapping[str, str]:
    """Ask the agents of brokers, all at once, why their brokers are not ready; by name.

    A broker whose agent gives no reason within REASON_WITHIN_S, or that the inventory does not have, is
    left out.
    """
    nodes = [node for node in inventory.brokers if node.name in names]
    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        given = pool.map(lambda node: _health(inventory, node, REASON_WITHIN_S), nodes)
    return {node.name: reason for node, reason in zip(nodes, given, strict=True) if reason}


def set_draining(inventory: Inventory, node: Node, *, draining: bool) -> None:
    """Set the flag at an agent, without checking that HAProxy has seen it. Raises AgentRefused."""
    try:
        answer = httpx.post(
            f"{inventory.agent_url(node)}/drain",
            json={"draining": draining},
            auth=inventory.proof_to(node),
            timeout=AGENT_WITHIN_S,
            trust_env=False,
            verify=inventory.certificates(),
        )
    except httpx.HTTPError as fault:
        raise AgentRefused(
            f"the agent of {node.name} does not answer on {node.agent}:"
            f" {reason_of(fault)}; see `lb drain --by-hand` and `lb maint`"
        ) from fault
    if answer.status_code != httpx.codes.OK:
        text = one_line(answer.text, REASON_CHARS)
        raise AgentRefused(f"the agent of {node.name} says {answer.status_code}: {text}")


def _wait(
    inventory: Inventory, node: Node, wanted: str, within_s: float, fleet: Fleet
) -> Mapping[str, ServerState]:
    def is_so(state: ServerState) -> bool:
        return state.drained if wanted == "drain" else state.is_up

    until = time.monotonic() + within_s
    while not (seen := fleet.look(node.name)).everywhere(is_so):
        if time.monotonic() > until:
            where = seen.differing(is_so)
            if wanted == "ready" and (reason := _health(inventory, node, AGENT_WITHIN_S)):
                where += f"; the agent's reason: {reason}"
            raise NotReached(f"{node.name} is not seen as {wanted} after {within_s:g} s: {where}")
        time.sleep(POLL_S)
    return seen.shown


def _health(inventory: Inventory, node: Node, within_s: float) -> str:
    """Return the reason for which an agent calls its broker not ready; "" when it gives none."""
    try:
        answer = httpx.get(
            f"{inventory.agent_url(node)}/health",
            timeout=within_s,
            trust_env=False,
            verify=inventory.certificates(),
        )
        reason = answer.json()["reason"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return ""
    return one_line(str(reason), REASON_CHARS)
