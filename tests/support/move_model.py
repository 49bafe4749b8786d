"""A partition that moves, in every order of events, around the real decisions of `topology.handover`.

Publishers have a window, stale maps, and links that are cut with bytes on their way; each broker has an agent
with a map of its own, stale as well, that dies between any two steps; brokers are killed and boot with the
bindings of their disk; consumers attach to a segment's queue, one is active, and let go. What a broker has
read goes through two states: *routed* (by the bindings of that moment), then *stored*. A broker may be lost:
off the list, and abandoned by the first of the others; it may come back with its disk, when its agent hears
of the map from any of the others before its gate is open, and nobody consumes there what is lost. In every
state:

    ORDER  a message completes for the first time only behind all that its publisher sent before it, and all
           that was confirmed before it was first sent
    LOST   nothing enters a segment that is finished
    STUCK  where nothing can happen any more, everything has completed

but for what was confirmed by a lost broker and not completed.

Each field of `Rules` tells the decisions a falsehood, or passes one over.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from messagebus.core.homes import Chain, Home, may_publish
from messagebus.services.agent.topology.handover import (
    Facts,
    Step,
    abandoned,
    next_step,
    sealed,
    why_not,
)


@dataclass(frozen=True)
class Rules:
    """Rules of a move. seal: the old segment is unbound. barrier: what was routed is stored first.

    bind: the next segment is bound before it is open. quiesce: a publisher has nothing unanswered at the old
    home. chain: consumers read the first unfinished segment only. unacked: these count as left. resend: what
    a lost link left open goes again first, in order. gate: who comes back takes nothing before it has unbound
    what it lost. all: a lost home is passed by when all the others know what is to be.
    """

    seal: bool = True
    barrier: bool = True
    bind: bool = True
    quiesce: bool = True
    chain: bool = True
    unacked: bool = True
    resend: bool = True
    gate: bool = True
    all: bool = True


class World(NamedTuple):
    """Bounds. owners: the publisher of each message. gives: a consumer lets go, or its link is lost.

    losses: brokers that are lost; none moves from then on. returns: of them.
    """

    owners: tuple[int, ...] = (0, 0)
    brokers: int = 2
    epochs: int = 2
    consumers: int = 1
    window: int = 2
    prefetch: int = 2
    kills: int = 0
    crashes: int = 0
    cuts: int = 0
    gives: int = 0
    losses: int = 0
    returns: int = 0


class Sent(NamedTuple):
    """A publish on its way. state: "sent", "routed", "stored" or "returned"."""

    message: int
    epoch: int
    state: str


class Map(NamedTuple):
    """Knowledge of the map: segments that are decided, open (or were), finished, and marked as lost."""

    decided: int = 1
    opened: int = 1
    finished: int = 0
    lost: tuple[int, ...] = ()


class Publisher(NamedTuple):
    known: Map = Map()
    again: tuple[int, ...] = ()
    window: tuple[Sent, ...] = ()
    taken: int = 0


class State(NamedTuple):
    """Everything. Epochs count from 0 here."""

    homes: tuple[int, ...]
    map: Map
    agents: tuple[Map, ...]
    quiet: bool
    bound: tuple[bool, ...]
    up: tuple[bool, ...]
    ready: tuple[tuple[int, ...], ...]
    attached: tuple[tuple[int, ...], ...]
    hands: tuple[tuple[tuple[int, int, bool], ...], ...]
    seen: tuple[Map, ...]
    publishers: tuple[Publisher, ...]
    ghosts: tuple[Sent, ...]
    done: frozenset[int]
    confirmed: frozenset[int]
    before: tuple[frozenset[int] | None, ...]
    kills: int
    crashes: int
    cuts: int
    gives: int
    losses: int
    returns: int
    gone: frozenset[int] = frozenset()
    shut: frozenset[int] = frozenset()
    given_up: frozenset[int] = frozenset()


class Broken(Exception):
    pass


Steps = Iterator[tuple[str, State]]
# Words of steps that a random schedule takes less often.
RARE = {
    "learns": 0.4,
    "killed": 0.15,
    "lets": 0.2,
    "cut": 0.2,
    "seals": 0.3,
    "dies": 0.3,
    "back": 0.4,
    "lost": 0.05,
}


def start(world: World) -> State:
    epochs, consumers = world.epochs, world.consumers
    return State(
        homes=(0,),
        map=Map(),
        agents=(Map(),) * world.brokers,
        quiet=False,
        bound=(True,) + (False,) * (epochs - 1),
        up=(True,) * world.brokers,
        ready=((),) * epochs,
        attached=((),) * epochs,
        hands=((),) * consumers,
        seen=(Map(),) * consumers,
        publishers=(Publisher(),) * (max(world.owners) + 1),
        ghosts=(),
        done=frozenset(),
        confirmed=frozenset(),
        before=(None,) * len(world.owners),
        kills=world.kills,
        crashes=world.crashes,
        cuts=world.cuts,
        gives=world.gives,
        losses=world.losses,
        returns=world.returns,
    )


def put(some: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*some[:place], value, *some[place + 1 :])


def chain_of(state: State, known: Map) -> Chain:
    homes = [Home(str(home), epoch) for epoch, home in enumerate(state.homes, start=1)]
    lost = frozenset(homes[epoch] for epoch in known.lost)
    left = (
        h
        for h in homes[known.finished : known.decided]
        if h not in lost or h == homes[known.finished]
    )
    return Chain(tuple(left), is_open=known.decided == known.opened, lost=lost)


def store(state: State, sent: Sent) -> State:
    if sent.epoch < state.map.finished:
        raise Broken(f"LOST: {sent.message} enters segment {sent.epoch + 1}, which is finished")
    ready = (*state.ready[sent.epoch], sent.message)
    return state._replace(ready=put(state.ready, sent.epoch, ready))


def detach(state: State, consumer: int, epoch: int) -> State:
    """End a channel: what it holds comes again, first and in order."""
    hand = state.hands[consumer]
    mine = tuple(message for at, message, _ in hand if at == epoch)
    return state._replace(
        ready=put(state.ready, epoch, mine + state.ready[epoch]),
        hands=put(state.hands, consumer, tuple(h for h in hand if h[0] != epoch)),
        attached=put(
            state.attached, epoch, tuple(c for c in state.attached[epoch] if c != consumer)
        ),
    )


def back(again: tuple[int, ...], left: list[int], rules: Rules) -> tuple[int, ...]:
    if rules.resend:
        return tuple(sorted((*again, *left)))
    return (*again, *left[1:], *left[:1])


def publishing(state: State, world: World, rules: Rules, who: int) -> Steps:
    one = state.publishers[who]

    def become(**changed: Any) -> tuple[Publisher, ...]:
        return put(state.publishers, who, one._replace(**changed))

    if one.known != state.map:
        yield f"p{who} learns the map", state._replace(publishers=become(known=state.map))
    own = [m for m, owner in enumerate(world.owners) if owner == who]
    taking = chain_of(state, one.known).taking
    unanswered = [sent.epoch + 1 for sent in one.window] if rules.quiesce else []
    if (
        taking is not None
        and may_publish(taking, unanswered)
        and state.up[int(taking.broker)]
        and int(taking.broker) not in state.shut
        and len(one.window) < world.window
        and (one.again or one.taken < len(own))
    ):
        message = one.again[0] if one.again else own[one.taken]
        before = state.before
        if before[message] is None:
            earlier = {m for m in own if m < message}
            before = put(before, message, state.confirmed | earlier)
        sent = Sent(message, taking.epoch - 1, "sent")
        taken = one.taken if one.again else one.taken + 1
        changed = become(again=one.again[1:], taken=taken, window=(*one.window, sent))
        where = f"to segment {taking.epoch}"
        yield f"p{who} sends {message} {where}", state._replace(before=before, publishers=changed)
    for place, sent in enumerate(one.window):
        others = one.window[:place] + one.window[place + 1 :]
        first = not any(x.state == sent.state and x.epoch == sent.epoch for x in one.window[:place])
        here = state.up[state.homes[sent.epoch]] and first
        if sent.state == "sent" and here:
            moved = sent._replace(state="routed" if state.bound[sent.epoch] else "returned")
            window = put(one.window, place, moved)
            yield (
                f"{sent.message} is {moved.state}",
                state._replace(publishers=become(window=window)),
            )
        elif sent.state == "routed" and here:
            window = put(one.window, place, sent._replace(state="stored"))
            yield (
                f"{sent.message} is stored",
                store(state._replace(publishers=become(window=window)), sent),
            )
        elif sent.state == "stored":
            confirmed = state.confirmed | {sent.message}
            changed = become(window=others)
            yield (
                f"{sent.message} is confirmed",
                state._replace(publishers=changed, confirmed=confirmed),
            )
        elif sent.state == "returned" and first:
            again = tuple(sorted((*one.again, sent.message)))
            yield (
                f"{sent.message} comes back",
                state._replace(publishers=become(window=others, again=again)),
            )
    if state.cuts and one.window and all(x.state in ("sent", "routed") for x in one.window):
        again = back(one.again, [x.message for x in one.window], rules)
        yield (
            f"the link of p{who} is cut",
            state._replace(
                cuts=state.cuts - 1,
                ghosts=state.ghosts + one.window,
                publishers=become(window=(), again=again),
            ),
        )


def arriving_late(state: State) -> Steps:
    for place, sent in enumerate(state.ghosts):
        ahead, rest = state.ghosts[:place], state.ghosts[:place] + state.ghosts[place + 1 :]
        if any(x.epoch == sent.epoch and x.state == sent.state for x in ahead):
            continue
        if sent.state == "routed":
            yield f"{sent.message} is stored late", store(state._replace(ghosts=rest), sent)
        elif state.bound[sent.epoch]:
            moved = put(state.ghosts, place, sent._replace(state="routed"))
            yield f"{sent.message} is routed late", state._replace(ghosts=moved)
        else:
            yield f"{sent.message} is returned to nobody", state._replace(ghosts=rest)


def deciding(state: State, world: World, rules: Rules, broker: int) -> Steps:
    """Yield what an agent does: it begins a move, goes one step on, learns the map, or dies."""
    known, me = state.agents[broker], str(broker)
    if broker in state.shut:
        yield from coming_back(state, rules, broker)
        return
    if known != state.map:
        agents = put(state.agents, broker, state.map)
        yield f"agent {me} learns the map", state._replace(agents=agents)
    if not state.up[broker]:
        return
    chain = chain_of(state, known)
    mine = [e for e, home in enumerate(state.homes) if home == broker]
    if known.decided < world.epochs - state.losses and not state.gone:
        for other in range(world.brokers):
            if not why_not(chain, me, str(other), [str(b) for b in range(world.brokers)]):
                assert known.decided == state.map.decided, "nobody else decides its segment"
                made = sealed(chain, str(other)).homes[-1]
                now = state.map._replace(decided=made.epoch)
                yield (
                    f"agent {me} seals segment {made.epoch - 1}; {other} is next",
                    state._replace(
                        homes=(*state.homes, other),
                        map=now,
                        agents=put(state.agents, broker, known._replace(decided=made.epoch)),
                        quiet=False,
                    ),
                )
    bound = [e + 1 for e in mine if state.bound[e] and (rules.seal or e == known.decided - 1)]
    held = {
        e: sum(at == e for hand in state.hands for at, _, _ in hand) if rules.unacked else 0
        for e in mine
    }
    facts = Facts(
        bound=bound,
        quiet=state.quiet or not rules.barrier,
        next_bound=not rules.bind or state.bound[known.decided - 1],
        left={e + 1: len(state.ready[e]) + held[e] for e in mine},
    )
    match next_step(chain, me, facts):
        case Step.UNBIND, epoch:
            yield (
                f"agent {me} unbinds segment {epoch}",
                state._replace(bound=put(state.bound, epoch - 1, False)),
            )
        case Step.BIND, epoch:
            yield (
                f"agent {me} binds segment {epoch}",
                state._replace(bound=put(state.bound, epoch - 1, True)),
            )
        case Step.PASS_BARRIER, epoch:
            windows = [sent for one in state.publishers for sent in one.window]
            routed = [s for s in (*windows, *state.ghosts) if s.state == "routed"]
            if not any(sent.epoch == epoch - 1 for sent in routed):
                yield f"agent {me} passes the barrier", state._replace(quiet=True)
        case Step.OPEN, epoch:
            agents = put(state.agents, broker, known._replace(opened=epoch))
            now = state.map._replace(opened=max(epoch, state.map.opened))
            yield f"agent {me} opens segment {epoch}", state._replace(map=now, agents=agents)
        case Step.FINISH, epoch:
            finished = chain.homes[1].epoch - 1
            agents = put(state.agents, broker, known._replace(finished=finished))
            now = state.map._replace(finished=max(finished, state.map.finished))
            attached = put(state.attached, epoch - 1, ())
            yield (
                f"segment {epoch} is finished",
                state._replace(map=now, agents=agents, attached=attached),
            )
    if state.quiet and state.crashes:
        yield f"agent {me} dies", state._replace(quiet=False, crashes=state.crashes - 1)


def coming_back(state: State, rules: Rules, broker: int) -> Steps:
    """Yield what the agent of a broker that was lost does first: it hears of the map from any other."""
    mine = [e for e, home in enumerate(state.homes) if home == broker]
    for other, known in enumerate(state.agents):
        if state.up[broker] and other != broker:
            open_at = chain_of(state, known).homes[-1].epoch - 1
            bound = tuple(
                is_bound and (e not in mine or e == open_at)
                for e, is_bound in enumerate(state.bound)
            )
            now = state._replace(agents=put(state.agents, broker, known), shut=frozenset())
            yield f"agent {broker} hears of {other} what is lost", now._replace(bound=bound)


def abandoning(state: State, world: World, rules: Rules) -> Steps:
    """Yield what the first of the list decides in place of a lost broker that does not answer."""
    chain = chain_of(state, state.map)
    others = [agent for b, agent in enumerate(state.agents) if b not in state.gone]
    if rules.all and any(agent != state.map for agent in others):
        return
    for gone in state.gone:
        brokers = [int(home.broker) for home in chain.homes]
        if state.up[gone] or gone not in brokers:
            continue
        for to in set(range(world.brokers)) - state.gone - set(brokers):
            is_bound = state.bound[state.map.decided - 1]
            after = abandoned(chain, str(gone), str(to), is_bound=is_bound)
            decided = after.homes[-1].epoch
            if after == chain or decided > world.epochs:
                continue
            now = Map(
                decided=decided,
                opened=decided if after.is_open else state.map.opened,
                finished=after.homes[0].epoch - 1,
                lost=tuple(sorted(home.epoch - 1 for home in after.lost)),
            )
            left = {
                m
                for home in set(chain.homes) - set(after.homes)
                for m in state.ready[home.epoch - 1]
            }
            first = min(set(range(world.brokers)) - state.gone)
            yield (
                f"{first} decides for {gone}, which is lost: {now}",
                state._replace(
                    homes=state.homes if decided == state.map.decided else (*state.homes, to),
                    map=now,
                    agents=put(state.agents, first, now),
                    given_up=state.given_up | (left & state.confirmed),
                ),
            )


def living(state: State, rules: Rules, broker: int) -> Steps:
    is_gone = broker in state.gone
    if not state.up[broker] and (not is_gone or state.returns):
        yield (
            f"broker {broker} is back",
            state._replace(
                up=put(state.up, broker, True),
                shut=frozenset({broker} if is_gone and rules.gate else ()),
                returns=state.returns - is_gone,
            ),
        )
    if state.up[broker] and state.losses and not state.gone:
        (_, dead), *_none = living(state._replace(losses=0, kills=1), rules, broker)
        yield (
            f"broker {broker} is lost",
            dead._replace(kills=state.kills, losses=state.losses - 1, gone=state.gone | {broker}),
        )
    if state.up[broker] and state.kills:
        here = {e for e, home in enumerate(state.homes) if home == broker}
        publishers = []
        for one in state.publishers:
            left = [sent.message for sent in one.window if sent.epoch in here]
            window = tuple(sent for sent in one.window if sent.epoch not in here)
            publishers.append(one._replace(window=window, again=back(one.again, left, rules)))
        dead = state._replace(
            up=put(state.up, broker, False),
            kills=state.kills - 1,
            quiet=False,
            publishers=tuple(publishers),
            ghosts=tuple(sent for sent in state.ghosts if sent.epoch not in here),
        )
        for epoch in here:
            for consumer in state.attached[epoch]:
                dead = detach(dead, consumer, epoch)
        yield f"broker {broker} is killed", dead


def consuming(state: State, world: World, rules: Rules, who: int) -> Steps:
    if state.seen[who] != state.map:
        yield f"c{who} learns the map", state._replace(seen=put(state.seen, who, state.map))
    known, hand = state.seen[who], state.hands[who]
    wanted = range(known.finished, known.opened if not rules.chain else known.finished + 1)
    for epoch in wanted:
        if (
            epoch >= state.map.finished
            and epoch + 1 in [home.epoch for home in chain_of(state, state.map).homes]
            and who not in state.attached[epoch]
            and state.up[state.homes[epoch]]
        ):
            attached = put(state.attached, epoch, (*state.attached[epoch], who))
            yield f"c{who} attaches to segment {epoch + 1}", state._replace(attached=attached)
    for epoch, attached in enumerate(state.attached):
        if who not in attached:
            continue
        ready = state.ready[epoch]
        if attached[0] == who and ready and sum(h[0] == epoch for h in hand) < world.prefetch:
            yield (
                f"c{who} gets {ready[0]}",
                state._replace(
                    ready=put(state.ready, epoch, ready[1:]),
                    hands=put(state.hands, who, (*hand, (epoch, ready[0], False))),
                ),
            )
        mine = [k for k, each in enumerate(hand) if each[0] == epoch]
        place = next((k for k in mine if not hand[k][2]), None)
        if place is not None:
            message = hand[place][1]
            needed = state.before[message]
            assert needed is not None
            if message not in state.done and (missing := needed - state.done - state.given_up):
                raise Broken(f"ORDER: {message} completes before {sorted(missing)}")
            now = put(hand, place, (epoch, message, True))
            yield (
                f"c{who} completes {message}",
                state._replace(done=state.done | {message}, hands=put(state.hands, who, now)),
            )
        if mine and hand[mine[0]][2]:
            now = hand[: mine[0]] + hand[mine[0] + 1 :]
            yield (
                f"an ack of c{who} is applied",
                state._replace(hands=put(state.hands, who, now)),
            )
        if state.gives:
            less = state._replace(gives=state.gives - 1)
            yield f"c{who} lets segment {epoch + 1} go", detach(less, who, epoch)


def steps(state: State, world: World, rules: Rules) -> Steps:
    for who in range(len(state.publishers)):
        yield from publishing(state, world, rules, who)
    yield from arriving_late(state)
    for broker in range(world.brokers):
        yield from deciding(state, world, rules, broker)
        yield from living(state, rules, broker)
    yield from abandoning(state, world, rules)
    for who in range(world.consumers):
        yield from consuming(state, world, rules, who)


def explore(world: World, rules: Rules, states_max: int = 2_000_000) -> tuple[str, int, list[str]]:
    """Return the first fault, "" for none in any schedule; the number of states; the steps to the fault."""
    first = start(world)
    parent: dict[State, tuple[State | None, str]] = {first: (None, "")}
    todo = deque([first])

    def path(state: State) -> list[str]:
        told: list[str] = []
        at: State | None = state
        while at is not None:
            at, label = parent[at]
            told.append(label)
        return told[::-1]

    while todo:
        state = todo.popleft()
        has_moved = False
        try:
            for label, after in steps(state, world, rules):
                has_moved = has_moved or after != state
                if after not in parent:
                    parent[after] = (state, label)
                    todo.append(after)
        except Broken as fault:
            return str(fault), len(parent), path(state)
        if not has_moved and len(state.done | state.given_up) < len(world.owners):
            return f"STUCK: only {sorted(state.done)} completed", len(parent), path(state)
        if len(parent) > states_max:
            raise AssertionError(f"more than {states_max} states")
    return "", len(parent), []


def walk(world: World, rules: Rules, seed: int, length: int = 900) -> tuple[str, list[str]]:
    """Return the fault of one random schedule, "" for none, and its steps."""
    rng, state, told = random.Random(seed), start(world), list[str]()
    for _ in range(length):
        try:
            options = [each for each in steps(state, world, rules) if each[1] != state]
        except Broken as fault:
            return str(fault), told
        if not options:
            missing = sorted(set(range(len(world.owners))) - state.done - state.given_up)
            return (f"STUCK: {missing} did not complete" if missing else ""), told
        weights = [
            next((w for word, w in RARE.items() if word in label), 1.0) for label, _ in options
        ]
        label, state = rng.choices(options, weights)[0]
        told.append(label)
    return "", told
