"""Moves of a partition from one home to the next, decided step by step.

Pure, and without a memory: each step follows from the map and from what the broker shows, so an agent that
died at any of them goes on where it was. The home of a segment alone decides the next one:

1. It writes to the map that its segment is sealed, and where the next one is to be (`sealed`).
2. The next home binds its segment. Nobody publishes to it yet; the old one goes on.
3. The old home unbinds its own, and waits until no channel still carries what was routed before: the barrier.
4. It writes that the next one is open. That is bound by then: were it bound later, a publish could be
   returned and one behind it be stored, which breaks their order.
5. The sealed segment is consumed first. When nothing is left, unacked messages counted, it is finished, for
   each subscription by itself.

A home whose disk is lost decides nothing any more. The first agent of the list does so in its place, when all
of the list agree (`abandoned`): as in a move, but nothing of the lost segment is waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from messagebus.core.homes import Chain, Home


class Step(Enum):
    """Next step of a broker's agent for a partition."""

    UNBIND = "unbind"
    BIND = "bind"
    PASS_BARRIER = "pass the barrier"
    OPEN = "open"
    FINISH = "finish"


class Facts(NamedTuple):
    """View of one partition that an agent has.

    bound: epochs whose segments are bound on its broker. quiet: behind the unbind of the sealed one, every
    channel has answered. next_bound: the next home's agent says that it is bound. left: epoch -> messages in
    all queues of its segment, those that are ready, unacked, and to be dead-lettered.
    """

    bound: Collection[int]
    quiet: bool
    next_bound: bool
    left: Mapping[int, int]


def why_not(chain: Chain, me: str, to: str, staying: Collection[str]) -> str:
    """Return why the agent of a broker does not begin a move to another one, "" when it does.

    staying: brokers of the list that do not drain.
    """
    last = chain.homes[-1]
    if not chain.is_open:
        return f"it is moving to {last.broker}, which goes on by itself"
    if last.broker != me:
        return f"its home {last.broker} decides"
    if to == me:
        return f"{to} is its home"
    if len(chain.homes) > 1:
        return f"its former home {chain.homes[0].broker} still has messages: consume these first"
    return "" if to in staying else f"{to} is not on the list, or drains"


def sealed(chain: Chain, to: str) -> Chain:
    """Return the chain when its open segment is sealed, and the next is to be on this broker."""
    next_home = Home(to, chain.homes[-1].epoch + 1)
    return chain._replace(homes=(*chain.homes, next_home), is_open=False)


def abandoned(chain: Chain, lost: str, to: str, *, is_bound: bool) -> Chain:
    """Return the next state of a chain when the disk of one of its homes is lost; the same while it waits.

    All agents of the list have to know a state before the next one is asked for: a home that comes back hears
    of it from any of them, before it takes publishes. to: its next home, where it needs one, none of the
    chain. is_bound: the last segment is, at its home.
    """
    first, last = chain.homes[0], chain.homes[-1]
    if last.broker == lost:
        # Alone, it is sealed as in a move, and makes a move of it should it come back before the end. With a
        # former home, that one is sealed already, and goes on by itself.
        return Chain(
            (first, Home(to, last.epoch + 1)), False, done=chain.done, lost=chain.lost | {last}
        )
    if first.broker == lost and (chain.is_open or is_bound):
        return Chain((last,), lost=chain.lost | {first})
    return chain


def next_step(chain: Chain, me: str, facts: Facts) -> tuple[Step, int] | None:
    """Return what the agent of a broker does next, and for which epoch; None for nothing."""
    last = chain.homes[-1]
    for epoch in sorted(facts.bound):
        if last != Home(me, epoch):
            is_awaited = not chain.is_open and chain.homes[-2] == Home(me, epoch)
            return None if is_awaited and not facts.next_bound else (Step.UNBIND, epoch)
    if last.broker == me and last.epoch not in facts.bound:
        return Step.BIND, last.epoch
    if not chain.is_open and chain.homes[-2].broker == me:
        if not facts.quiet:
            return Step.PASS_BARRIER, chain.homes[-2].epoch
        if facts.next_bound:
            return Step.OPEN, last.epoch
    first = chain.homes[0]
    is_sealed = len(chain.homes) > (1 if chain.is_open else 2)
    if is_sealed and first.broker == me and facts.left.get(first.epoch) == 0:
        return Step.FINISH, first.epoch
    return None
