"""Distribution of the operators' list to every node, with a check that every node serves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from consumer_lists import listfile, nodes
from consumer_lists.errors import PushRefused
from consumer_lists.nodes import Client, Cluster, Node, Served
from messagebus.broker import BrokerList
from messagebus.files import write_whole

JUMP_MAX = 1_000
"""Generations that a recovery may go up by without confirmation: edits of years."""
SERVED_WITHIN_S = 60.0
"""Agents read their file every 200 ms; the rest is for slow disks, transport and busy hosts."""
DOWN_WITHIN_S = 10.0
"""Time for which an agent is waited for at whose address nobody listens: it may be starting."""
POLL_S = 0.1

Write = Callable[[Node, Path, str], None]
"""Write a text to a path on a node, atomically and durably. Raises OSError when it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The outcome of a push. differing: node name -> why it does not serve this list.

    silent: node name -> why a recovery could not ask it; it may know a newer generation.
    jump: the generation that a recovery started from, and who reported the highest one.
    """

    generation: int
    serving: tuple[str, ...]
    differing: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    jump: str = field(default="", compare=False)

    @property
    def complete(self) -> bool:
        return not self.differing


def push(
    cluster: Cluster,
    *,
    write: Write | None = None,
    within_s: float = SERVED_WITHIN_S,
    without: Collection[str] = (),
) -> Pushed:
    """Write the operators' list to every node and wait until each agent serves it.

    without: nodes whose agents are dead; they are not waited for.
    Raises PushRefused, with nothing written, when a node serves the list of another cluster, a newer
    one or another one of the same generation, or a client has applied a newer one; Locked;
    ListInvalid. A node that is down is written to all the same, and reported in `differing`.
    """
    with listfile.locked(cluster.list_file):
        text = listfile.read(cluster.list_file)
        ours, serving = BrokerList.parse(text), nodes.served(cluster.nodes)
        _refuse_strangers(cluster, ours, serving)
        _refuse_contradictions(ours, serving, nodes.clients(cluster.nodes)[0])
        return _distribute(cluster, text, write or write_local, within_s, without)


def recover(
    cluster: Cluster,
    *,
    write: Write | None = None,
    within_s: float = SERVED_WITHIN_S,
    without: Collection[str] = (),
    is_jump_meant: bool = False,
) -> Pushed:
    """Push the list after a disaster, under a generation above all that any node or client has seen.

    Asks every node for its list and every client for the generation it has applied. Nodes that cannot be
    asked are reported in `silent`: first start all agents that can be started. The operators' file is
    changed, too. Raises PushRefused as `push` does, with nothing changed, and also for more than JUMP_MAX
    generations at once, unless is_jump_meant: nothing proves what clients say, and there is no way back to a
    lower generation.
    """
    with listfile.locked(cluster.list_file):
        text = listfile.read(cluster.list_file)
        ours, serving = BrokerList.parse(text), nodes.served(cluster.nodes)
        _refuse_strangers(cluster, ours, serving)
        known, silent = nodes.clients(cluster.nodes)
        newest, who = _newest(ours, serving, known)
        jump = f"from generation {ours.generation} above {newest}: {who}"
        if newest + 1 - ours.generation > JUMP_MAX and not is_jump_meant:
            raise PushRefused(
                f"{jump}; more than {JUMP_MAX} at once, and there is no way back. Look who says so;"
                " if it is true: --jump"
            )
        text = listfile.with_generation(text, newest + 1)
        write_whole(cluster.list_file, text, mode=listfile.MODE)
        pushed = _distribute(cluster, text, write or write_local, within_s, without)
        return replace(pushed, silent=silent, jump=jump)


def write_local(_node: Node, path: Path, text: str) -> None:
    """Write the list on this machine."""
    write_whole(path, text, mode=listfile.MODE)


def _newest(
    ours: BrokerList, serving: Sequence[Served], known: Sequence[Client]
) -> tuple[int, str]:
    """Return the newest generation that any node or client has seen, and the source of that report."""
    reports = [(ours.generation, "the operators' list has it")]
    reports += [(node.generation, f"{node.node} serves it") for node in serving]
    reports += [
        (client.applied, f"client {client.id} of {client.subscription} says it has applied it")
        for client in known
    ]
    return max(reports, key=lambda one: one[0])


def _refuse_strangers(cluster: Cluster, ours: BrokerList, serving: Sequence[Served]) -> None:
    """Refuse when the list, the inventory and a node name different clusters.

    Either an address in the inventory is wrong, or it is the inventory of another cluster.
    """
    if ours.cluster and ours.cluster != cluster.name:
        raise PushRefused(f"the list is of {ours.cluster!r}, the inventory of {cluster.name!r}")
    for node in serving:
        if node.served and node.served.cluster not in ("", cluster.name):
            raise PushRefused(
                f"{node.node} serves the list of {node.served.cluster!r}, not of {cluster.name!r}:"
                " look at its address in the inventory"
            )


def _refuse_contradictions(
    ours: BrokerList, serving: Sequence[Served], clients: Sequence[Client]
) -> None:
    for node in serving:
        if node.generation > ours.generation:
            raise PushRefused(
                f"{node.node} serves generation {node.generation}, above {ours.generation}:"
                " clients would keep theirs; see `push --recover`"
            )
        if node.served and node.generation == ours.generation and node.served != ours:
            raise PushRefused(
                f"{node.node} serves another list of generation {ours.generation}: edit with"
                " add, drain, remove, or see `push --recover`"
            )
    for client in clients:
        if client.applied > ours.generation:
            raise PushRefused(
                f"client {client.id} of {client.subscription} has applied generation"
                f" {client.applied}, above {ours.generation}: it would keep that; see `push --recover`"
            )


def _distribute(
    cluster: Cluster, text: str, write: Write, within_s: float, without: Collection[str]
) -> Pushed:
    ours = BrokerList.parse(text)
    unwritten = _write_all(cluster, text, write)
    waited_for = [node for node in cluster.nodes if node.name not in without]
    unwritten = {name: why for name, why in unwritten.items() if name not in without}
    began_s = time.monotonic()
    waiting = {node.name: node for node in waited_for if node.name not in unwritten}
    reasons = dict.fromkeys(waiting, "not asked")
    while waiting:
        answers = nodes.served(list(waiting.values()))
        for answer in answers:
            if answer.served == ours:
                del waiting[answer.node], reasons[answer.node]
            else:
                reasons[answer.node] = answer.fault or f"serves generation {answer.generation}"
        down = all(answer.is_down for answer in answers if answer.node in waiting)
        waited_s = time.monotonic() - began_s
        if not waiting or waited_s > (min(within_s, DOWN_WITHIN_S) if down else within_s):
            break
        time.sleep(POLL_S)
    differing = {**unwritten, **reasons}
    serving = tuple(node.name for node in waited_for if node.name not in differing)
    return Pushed(generation=ours.generation, serving=serving, differing=differing)


def _write_all(cluster: Cluster, text: str, write: Write) -> dict[str, str]:
    """Write the list to every node. Returns node name -> why it could not be written."""

    def written(node: Node) -> str:
        try:
            write(node, node.list_file, text)
        except OSError as fault:
            return f"not written: {fault}"
        return ""

    faults = nodes.ask_all(cluster.nodes, written)
    return {node.name: fault for node, fault in zip(cluster.nodes, faults, strict=True) if fault}
