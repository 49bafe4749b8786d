"""The rule that keeps brokers serving: enough others take publishes before one is taken out.

`serving_min` of the inventory says how many. Playbooks keep the rule before each step that keeps publishers
away, and so does each command that does that by hand. How a broker takes publishes is seen by each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import click

from inventory.errors import TooFewServe

FORCE = "--below-serving-min"

below_serving_min = click.option(
    FORCE,
    "forced",
    is_flag=True,
    help="Do it even if fewer than serving_min other brokers take publishes.",
)


def too_few(faults: Mapping[str, str], without: Collection[str], wanted: int) -> str:
    """Return why fewer than `wanted` brokers take publishes without these; "" where enough do.

    faults: name of each broker -> why it takes no publishes, "" where it does.
    """
    others = {name: fault for name, fault in faults.items() if name not in without}
    serving = sum(not fault for fault in others.values())
    if serving >= wanted:
        return ""
    reasons = "; ".join(f"{name}: {fault}" for name, fault in others.items() if fault)
    return (
        f"{serving} other brokers take publishes, {wanted} must: {reasons or 'there is no other'}"
    )


def refuse_last(name: str, faults: Mapping[str, str], wanted: int) -> None:
    """Refuse to keep publishers away from a broker where too few others take them.

    faults: as of `too_few`. A broker that takes no publishes is no loss. Raises TooFewServe.
    """
    if not faults.get(name) and (why := too_few(faults, {name}, wanted)):
        raise TooFewServe(
            f"{name} is not taken out: {why}; see to those first, or do it all the same with {FORCE}"
        )
