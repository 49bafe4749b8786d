"""Dead nodes and balancers, by proof: a playbook goes on without them. A silent one still stops it.

Nothing that answers is dead. A silent process is dead when its supervisor says that none of it is left,
or when an operator has seen that its host is off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from inventory.errors import CommandFailed
from messagebus.errors import ConfigError
from ops.cluster.members import Absent
from ops.cluster.view import View
from ops.commands.supervise import ENDED, Supervisor
from ops.errors import NoAnswer, OpsError
from ops.run.plan import Check, Command
from ops.run.runner import HostRunner, Runner

PARALLEL = 16


def find_absent(
    view: View,
    supervisor: Callable[[Iterable[str]], Supervisor],
    but: Collection[str],
    dead: Iterable[str],
    *,
    runner: Runner | None = None,
) -> Absent:
    """Return the names of nodes whose broker or agent is dead, without those of `but`, and of dead balancers.

    dead: nodes and balancers whose host is off, by an operator's word. Raises OpsError for one of these
    that answers, ConfigError for one that is not in the inventory.
    """
    words, run = frozenset(dead), runner or HostRunner()
    balancers = {each.name for each in view.inventory.balancers}
    for name in words - balancers:
        view.node(name)
    asked = [node.name for node in view.nodes if node.name not in but]
    nodes = supervisor(asked)
    with ThreadPoolExecutor(PARALLEL) as pool:
        brokers = pool.map(lambda name: _answers(view.brokers.overview, name), asked)
        agents = pool.map(lambda name: _answers(view.agents.health, name), asked)
        found = dict(zip(asked, zip(brokers, agents, strict=True), strict=True))
    silent = view.balancers.silent_balancers()
    answering = {name for name in found if any(found[name])} | balancers.difference(silent)
    if lying := sorted(words & answering):
        raise OpsError(f"{lying[0]} is not dead: it answers")
    return Absent(
        brokers=frozenset(
            name
            for name, (broker, _) in found.items()
            if not broker and (name in words or _is_ended(nodes.broker_state(name), run))
        ),
        agents=frozenset(
            name
            for name, (_, agent) in found.items()
            if not agent and (name in words or _is_ended(nodes.agent_state(name), run))
        ),
        balancers=dead_balancers(view, words, silent),
    )


def dead_balancers(
    view: View, words: Collection[str] = (), silent: Collection[str] | None = None
) -> frozenset[str]:
    """Return the names of dead balancers; none when all are dead.

    With all dead, it is not known which brokers they send publishers to.
    words: hosts and balancers that are off, by an operator's word. silent: balancers that do not answer.
    """
    silent = view.balancers.silent_balancers() if silent is None else silent
    every = view.inventory.balancers
    dead = frozenset(
        each.name
        for each in every
        if each.name in silent
        and ({each.name, each.host} & set(words) or view.balancers.balancer_has_ended(each.name))
    )
    return dead if len(dead) < len(every) else frozenset()


def has_ended(state: Command, runner: Runner) -> Check:
    """Check by a supervisor's word that no process is left on its host. state: prints that word."""

    def check() -> str:
        word = runner.run(state).strip()
        where = f" on {state.host}" if state.host else ""
        return (
            ""
            if word in ENDED
            else f"its process{where} is {word}: end it there, if it is the dead one"
        )

    return check


def silent_of(view: View, names: Iterable[str]) -> Absent:
    """Return the parts of these nodes that do not answer: those that a command is to do without.

    Raises ConfigError for a name that is not in the inventory.
    """
    asked = [view.node(name).name for name in names]
    return Absent(
        brokers=frozenset(name for name in asked if not _answers(view.brokers.overview, name)),
        agents=frozenset(name for name in asked if not _answers(view.agents.health, name)),
    )


def answering(view: View) -> View:
    """Return the view of the brokers and agents that answer now."""
    return View(view.file, silent_of(view, [node.name for node in view.nodes]))


def _answers(ask: Callable[[str], object], name: str) -> bool:
    try:
        ask(name)
    except (NoAnswer, ConfigError, OSError):
        return False
    return True


def _is_ended(state: Command, runner: Runner) -> bool:
    """Return whether the supervisor says that the process has ended; no answer counts as no."""
    try:
        return runner.run(state).strip() in ENDED
    except CommandFailed:
        return False
