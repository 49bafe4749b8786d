"""Commands of the kits as values, for plans; and the folder that they run in. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from ops.run.plan import Command

CHECKOUT = Path(__file__).resolve().parents[2]


def kit(module: str, *words: str) -> Command:
    """Run ``python -m module words...`` on the operator's machine."""
    return Command((sys.executable, "-m", module, *words))


def lb(inventory: Path, *words: str, without: Iterable[str] = ()) -> Command:
    """Run a command of `lb`. without: balancers that are dead, and neither changed nor checked."""
    return kit("lb", "--inventory", str(inventory), *words, *_without(without))


def lists(inventory: Path, *words: str, without: Iterable[str] = ()) -> Command:
    """Run a command of `consumer_lists`. without: nodes whose agents are dead, and not waited for."""
    return kit("consumer_lists", "--inventory", str(inventory), *words, *_without(without))


def ops(inventory: Path, *words: str, call: Callable[[], object] | None = None) -> Command:
    """Run a command of `ops`. call: does the same in this process, see `Command`."""
    return replace(kit("ops", *words, "--inventory", str(inventory)), call=call)


def quotas(
    inventory: Path, *, without: Iterable[str] = (), without_agents: Iterable[str] = ()
) -> Command:
    """Share the quotas among the brokers of now. without: dead brokers; without_agents: of dead agents."""
    agents = _without(without_agents, "--without-agent")
    return ops(inventory, "quota", "share", "--in-playbook", *_without(without), *agents)


def _without(names: Iterable[str], option: str = "--without") -> list[str]:
    return [word for name in sorted(names) for word in (option, name)]
