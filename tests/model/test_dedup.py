"""Deduplication through every schedule of small worlds, over the real `core`.

Two consumer processes (`core.once`) share a store (`core.claims`). Copies of one message lie on brokers.
Any process may die between any two steps; any call or reply of the store may be lost, and a lost call may
still be carried out at any later time; links and acks may be lost; leases may run out while their owner is
alive.

`explore` looks at every reachable state of a `World`. It finds:
  DROPPED   every copy is acked, its handler never ended well, and no copy is parked.
  TWICE     the handler ended well twice, and none of the causes that the guide names had happened.
  NEEDLESS  a message was parked for runs that never ended, although no process died.
  STUCK     a copy is owed for ever.

`Rules` switches off one rule at a time: each is needed, as `explore` then finds a fault."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from messagebus.core import claims
from messagebus.core.claims import (
    DONE,
    FIRST,
    RUNNING,
    WAITING,
    Answer,
    Held,
    Record,
    Rule,
    Turn,
    Verdict,
)
from messagebus.core.once import Claims, NextTurn, RecentKeys
from messagebus.core.turns import SEED_BYTES, SentTurn, Turns
from messagebus.core.waiting import HeldDeliveries, LocalMessage, Suspects
from tests.support.examples import without_large

KEY = bytes(claims.KEY_BYTES)
LEASE_MS, REMEMBER_MS = 30_000, 1 << 40
READY, OWED, ACKED = "ready", "held", "acked"
T = TypeVar("T")


@dataclass(frozen=True)
class Rules:
    """Rules of the design; False switches one off."""

    token: bool = True  # a claim that its own owner repeats is granted again
    token_of_turn: bool = True  # a token names one turn's claims, not the process
    keep_done: bool = True  # done is forgotten by time, not after the acks of two copies
    park_at_the_end: bool = True  # too many runs that never ended: parked, not taken as done
    owner_release: bool = True  # only its owner takes a claim away before its lease runs out
    release_counts_back: bool = True  # what was given back has ended: it counts no more
    done_first: bool = True  # done is stored before the ack
    ack_after: bool = True  # no ack before the run
    expire_late: bool = True  # a record lives as long as a copy may
    park_before_ack: bool = True  # what is given up is parked before it is acked


@dataclass(frozen=True)
class World:
    """The events that may happen, and their number."""

    copies: int = 2
    deaths: int = 0
    lost_calls: int = 0  # the turn does not reach the store
    lost_replies: int = 0
    late_calls: int = 0  # the turn is carried out after its consumer gave it up
    lost_links: int = 0
    lost_acks: int = 0
    late_leases: int = 0  # a lease runs out under a live owner
    forgets: int = 0
    fails: int = 0
    unended_max: int = 2
    run_when_away: bool = False


# A delivery: number of its copy, number of the delivery.
Item = tuple[int, int]
NONE = (-1, 0)


class Fault(Exception):
    """Raised when a state breaks a promise."""


class Process:
    """A consumer. seed: of its Claims; every start has another."""

    def __init__(self, number: int, starts: int, world: World) -> None:
        self.number, self.starts = number, starts
        self.seed = bytes([number, starts]).ljust(SEED_BYTES, b"\0")
        self.once: Claims[Item] = Claims(Rule(LEASE_MS, REMEMBER_MS, world.unended_max))
        self.turns = Turns(self.once, self.seed, run_when_away=world.run_when_away)
        self.handed: list[Item] = []
        self.running: list[Item] = []
        self.parking: list[Item] = []
        self.answer: Answer | None = None
        self.acked_first: list[Item] = []  # without the rule done_first: their done comes later


@dataclass
class State:
    copies: list[str]
    budget: dict[str, int]
    processes: list[Process]
    records: dict[bytes, Record] = field(default_factory=dict)
    late: list[Turn] = field(default_factory=list)
    deliveries: int = 0
    owed: dict[int, Item] = field(default_factory=dict)
    acks: int = 0
    ended: int = 0
    parked: bool = False
    excused: bool = False
    crashed: bool = False
    dead_seeds: list[bytes] = field(default_factory=list)


class Explorer:
    """All states of a world under these rules."""

    def __init__(self, world: World, rules: Rules) -> None:
        self.world, self.rules = world, rules
        self.rule = Rule(LEASE_MS, REMEMBER_MS, world.unended_max)

    def first(self) -> State:
        budget = {
            name: getattr(self.world, name)
            for name in (
                *("deaths", "lost_calls", "lost_replies", "late_calls", "lost_links"),
                *("lost_acks", "late_leases", "forgets", "fails"),
            )
        }
        processes = [Process(number, 0, self.world) for number in range(2)]
        return State([READY] * self.world.copies, budget, processes)

    # The store.
    def apply(self, state: State, turn: Turn) -> Answer:
        if not self.rules.token_of_turn:
            turn = _of_process(turn)
        record = state.records.get(KEY)
        if not self.rules.release_counts_back and turn.release and record:
            before = record.unended
            answer = claims.apply(state.records, turn._replace(claim=()), self.rule, 0)
            after = state.records[KEY]
            if after.state == WAITING and record.state != WAITING:
                state.records[KEY] = after._replace(unended=before)
            answer = claims.apply(
                state.records, Turn(claim=turn.claim, token=turn.token), self.rule, 0
            )
            return answer
        if (
            not self.rules.owner_release
            and turn.release
            and record
            and record.state in (FIRST, RUNNING)
        ):
            turn = turn._replace(release=[Held(KEY, record.owner)])
        answer = claims.apply(state.records, turn, self.rule, 0)
        if turn.claim and not self.rules.token and record and record.owner == turn.token:
            answer.verdicts[:] = [Verdict("later", LEASE_MS)]
            state.records[KEY] = record
        if turn.claim and not self.rules.park_at_the_end and answer.verdicts[0].kind == "park":
            answer.verdicts[:] = [Verdict("ended")]
            state.records[KEY] = claims.done(self.rule, 0)
        return answer

    # Carrying out the orders of a consumer.
    def carry_out(self, state: State, process: Process) -> None:
        while (orders := process.once.take()) is not None:
            process.handed += orders.hand_out
            for item in orders.ack:
                self.ack(state, item)
            for item, _reason in orders.park:
                if not (state.crashed or state.excused):
                    raise Fault("NEEDLESS: parked, and no process had died")
                process.parking.append(item)
            # A copy for the next run is stored, then this one is acked: the message is ready again.
            self.come_again(state, [*orders.released, *(item for item, _ms in orders.defer)])

    def come_again(self, state: State, items: Iterable[Item]) -> None:
        for item in items:
            if state.owed.get(item[0]) == item:
                del state.owed[item[0]]
                state.copies[item[0]] = READY

    def ack(self, state: State, item: Item) -> None:
        if state.owed.get(item[0]) != item:
            return  # its link was lost
        del state.owed[item[0]]
        state.copies[item[0]] = ACKED
        state.acks += 1
        record = state.records.get(KEY)
        if not self.rules.keep_done and state.acks == 2 and record and record.state >= DONE:
            del state.records[KEY]

    # Steps. Each changes the state that it is given.
    def steps(self, state: State) -> Iterator[tuple[str, int, Item]]:
        """Yield the possible steps: name, process, delivery."""
        budget = state.budget
        for number, process in enumerate(state.processes):
            if READY in state.copies:  # one is as good as another
                yield "arrives", number, (state.copies.index(READY), 0)
            if process.answer is None and not process.turns.is_idle:
                yield "asks", number, NONE
                for what in ("lost_calls", "late_calls"):
                    if budget[what]:
                        yield what, number, NONE
            elif process.answer is not None:
                yield "is answered", number, NONE
                if budget["lost_replies"]:
                    yield "lost_replies", number, NONE
            for item in process.handed:
                yield "starts", number, item
                if budget["late_leases"]:
                    yield "starts late", number, item
            for item in process.running:
                yield "ends", number, item
                if budget["fails"]:
                    yield "fails", number, item
            for item in process.parking:
                yield "parks", number, item
            for item in process.acked_first:
                yield "says done late", number, item
            if budget["lost_links"] and process.once.messages:
                yield "lost_links", number, NONE
            if budget["deaths"] and (process.once.messages):
                yield "deaths", number, NONE
        if budget["lost_acks"]:
            for copy, where in enumerate(state.copies):
                if where == ACKED:
                    yield "lost_acks", 0, (copy, 0)
        if state.late:
            yield "late call comes", 0, NONE
        record = state.records.get(KEY)
        if record and record.state in (FIRST, RUNNING) and record.lease_ms:
            if record.owner[:SEED_BYTES] in state.dead_seeds or not self.is_cared_for(
                state, record.owner
            ):
                yield "lease of nobody ends", 0, NONE
            elif budget["late_leases"]:
                yield "late_leases", 0, NONE
        if record and budget["forgets"]:
            yield "forgets", 0, NONE
        if not self.rules.expire_late and record and record.state == DONE and READY in state.copies:
            yield "expires", 0, NONE

    def is_cared_for(self, state: State, token: bytes) -> bool:
        """Return whether a live process has this claim, or may learn that it has."""
        for process in state.processes:
            once = process.once
            if any(each.token == token for each in once.messages.values()):
                return True
            sent = process.turns.sent
            tells = [*once.next_turn.behind, *(sent.behind if sent else ())]
            if any(held.token == token for _end, held in tells):
                return True
        return not self.rules.token_of_turn and any(
            process.once.messages and _process_token(process.seed) == token
            for process in state.processes
        )

    def step(self, state: State, name: str, number: int, item: Item) -> None:
        process = state.processes[number]
        once, turns = process.once, process.turns
        if name in state.budget:
            state.budget[name] -= 1
        match name:
            case "arrives":
                state.deliveries += 1
                item = state.owed[item[0]] = (item[0], state.deliveries)
                state.copies[item[0]] = OWED
                once.arrived([(KEY, item, 0)], once.now_ms)
                if not self.rules.ack_after:
                    self.ack(state, item)
            case "asks" | "lost_calls" | "late_calls":
                turn = turns.turn(max(once.now_ms, turns.wake_ms() or 0))
                if turn is None:
                    return
                if name == "asks":
                    process.answer = self.apply(state, turn)
                    return
                if name == "late_calls":
                    state.late.append(turn)
                self.give_up(state, process)
            case "lost_replies":
                self.give_up(state, process)
            case "is answered":
                assert process.answer is not None
                turns.answered(process.answer, once.now_ms)
                process.answer = None
            case "late call comes":
                self.apply(state, state.late.pop(0))
            case "starts":
                process.handed.remove(item)
                if once.may_start(item, 0):
                    process.running.append(item)
            case "starts late":
                state.budget["late_leases"] -= 1
                process.handed.remove(item)
                assert not once.may_start(item, 1 << 61)
            case "ends":
                process.running.remove(item)
                state.ended += 1
                if state.ended > 1 and not state.excused:
                    raise Fault("TWICE: the handler ended well twice without a cause")
                if self.rules.done_first:
                    once.ended(item)
                else:
                    self.ack(state, item)
                    process.acked_first.append(item)
            case "says done late":
                process.acked_first.remove(item)
                once.ended(item)
            case "fails":
                process.running.remove(item)
                once.given_back(item)
            case "parks":
                process.parking.remove(item)
                state.parked |= self.rules.park_before_ack
                once.parked(item)
            case "lost_links":
                self.lose_link(state, process)
            case "deaths":
                self.die(state, number)
            case "lost_acks":
                state.copies[item[0]] = READY
            case "lease of nobody ends" | "late_leases":
                state.records[KEY] = state.records[KEY]._replace(lease_ms=0)
                state.excused |= name == "late_leases"
            case "forgets" | "expires":
                del state.records[KEY]
                state.excused |= name == "forgets"
        self.carry_out(state, process)

    def give_up(self, state: State, process: Process) -> None:
        process.answer = None
        process.turns.away(process.once.now_ms)
        state.excused |= self.world.run_when_away

    def lose_link(self, state: State, process: Process) -> None:
        """Lose its link: what it holds is delivered again, to anybody."""
        mine = list(process.once._of)
        self.come_again(state, mine)
        process.handed = []
        process.once.dropped(mine)

    def die(self, state: State, number: int) -> None:
        process = state.processes[number]
        state.crashed = True
        state.excused |= any(m.end == "done" for m in process.once.messages.values())
        self.come_again(state, process.once._of)
        state.dead_seeds.append(process.seed)
        state.processes[number] = Process(number, process.starts + 1, self.world)


def _of_process(turn: Turn) -> Turn:
    """Return the turn with tokens that name the process alone."""

    def fixed(pairs: Sequence[Held]) -> list[Held]:
        return [Held(key, _process_token(token)) for key, token in pairs]

    return turn._replace(
        parked=fixed(turn.parked),
        release=fixed(turn.release),
        extend=fixed(turn.extend),
        token=_process_token(turn.token),
    )


def _process_token(token: bytes) -> bytes:
    return token[:2].ljust(claims.TOKEN_BYTES, b"\0")


# Copies of a state: a step changes one process, and what all share.
def _before_step(state: State, number: int) -> State:
    """Return a copy of the state, which shares the other process with it."""
    after = _copy(state)
    for name in ("copies", "budget", "processes", "records", "late", "owed", "dead_seeds"):
        setattr(after, name, getattr(state, name).copy())
    process = after.processes[number] = _copy(state.processes[number])
    for name in ("handed", "running", "parking", "acked_first"):
        setattr(process, name, getattr(process, name).copy())
    process.turns = _Copied()(process.turns)
    process.once = process.turns.claims
    return after


# What changes of what `Turns` holds, but for counters, which nobody reads here.
PARTS = {Claims, HeldDeliveries, NextTurn, RecentKeys, Suspects, Turns}


def _copy(value: T) -> T:
    """Return what `copy.copy` does, which is slow."""
    made = object.__new__(type(value))
    vars(made).update(vars(value))
    return made


class _Copied:
    """Copier of what `Turns` holds: each message once."""

    def __init__(self) -> None:
        self._messages: dict[int, Any] = {}

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in PARTS:
            part = object.__new__(kind)
            vars(part).update({name: self(each) for name, each in vars(value).items()})
            return part
        if kind is LocalMessage:
            if id(value) not in self._messages:
                found = self._messages[id(value)] = object.__new__(LocalMessage)
                for name in LocalMessage.__slots__:
                    setattr(found, name, getattr(value, name))
                found.copies = list(value.copies)
            return self._messages[id(value)]
        if kind is dict:
            return {self(key): self(each) for key, each in value.items()} if value else {}
        if kind is list or kind is tuple:
            return kind(map(self, value)) if value else kind()
        if kind is SentTurn:
            return SentTurn(*(self(getattr(value, name)) for name in SentTurn.__slots__))
        return value.copy() if kind is set else value


# Looking at all states.
def fingerprint(state: State) -> Hashable:
    """Return what decides on a state's future: the two consumers are alike, whichever is first."""
    return min(
        _fingerprint(state, state.processes), _fingerprint(state, state.processes[::-1]), key=hash
    )


def _fingerprint(state: State, processes: Sequence[Process]) -> Hashable:
    """Return it for the consumers in this order: tokens and copies by their rank, no times, no counts."""
    names: dict[bytes, int] = {}
    copies: dict[int, int] = {}

    def name(token: bytes) -> int:
        return -1 if not token.strip(b"\0") else names.setdefault(token, len(names))

    def items(found: Iterable[Item]) -> Hashable:
        return tuple(
            (copies.setdefault(copy, len(copies)), state.owed.get(copy) == (copy, number))
            for copy, number in found
        )

    def of_turn(turn: Turn | None) -> Hashable:
        if turn is None:
            return None
        pairs = [[name(token) for _key, token in part] for part in turn[1:4]]
        return (len(turn.done), *map(tuple, pairs), len(turn.claim), name(turn.token))

    def of_process(process: Process) -> Hashable:
        once = process.once
        message = once.messages.get(KEY)
        sent, next_turn, suspects = process.turns.sent, once.next_turn, once.suspects
        return (
            name(process.seed + process.turns._number.to_bytes(3)),
            message
            and (
                *(items([message.item, *message.copies]), message.step, name(message.token)),
                *(message.end, message.until_ms == 0, message in next_turn.wanted),
                *(message is suspects.alone, message in suspects.waiting),
                message in next_turn.ends,
            ),
            sent
            and (
                *(len(sent.ends), len(sent.extended), message in sent.wanted),
                tuple((end, name(held.token)) for end, held in sent.behind),
            ),
            tuple((end, name(held.token)) for end, held in next_turn.behind),
            *(KEY in once.recent.now | once.recent.before, process.turns._away_since_ms is None),
            *(items(process.handed), items(process.running), items(process.parking)),
            items(process.acked_first),
            process.answer
            and (tuple(v[:3:2] for v in process.answer.verdicts), *process.answer.kept),
        )

    record = state.records.get(KEY)
    found = tuple(of_process(process) for process in processes)
    return (
        found,
        tuple(state.copies[copy] for copy in copies),
        tuple(sorted(each for copy, each in enumerate(state.copies) if copy not in copies)),
        record
        and (
            *(record.state, name(record.owner), record.unended, record.lease_ms > 0),
            record.owner[:SEED_BYTES] in state.dead_seeds,
        ),
        tuple(of_turn(turn) for turn in state.late),
        tuple(state.budget.values()),
        *(min(state.acks, 3), min(state.ended, 2), state.parked, state.excused, state.crashed),
    )


def explore(
    world: World, rules: Rules, *, deep: bool = False, states_max: int = 400_000
) -> tuple[str, int, list[str]]:
    """Look at all states. Returns the first fault or "", the number of states, and the steps to the fault.

    deep: follow each way to its end first: finds some fault soon, not the one of the fewest steps."""
    explorer = Explorer(world, rules)
    first = explorer.first()
    start = fingerprint(first)
    came: dict[Hashable, tuple[Hashable, str]] = {start: (None, "")}
    before: dict[Hashable, list[Hashable]] = {}
    todo = deque([(start, first)])
    ends: list[Hashable] = []

    def steps_to(mark: Hashable) -> list[str]:
        names = []
        while mark is not None:
            mark, name = came[mark]
            names.append(name)
        return names[-2::-1]

    while todo:
        assert len(came) < states_max, "the world is too large"
        mark, state = todo.pop() if deep else todo.popleft()
        if _is_over(state):
            if not state.ended and not state.parked:
                return (
                    "DROPPED: all is acked, nothing ended well or is parked",
                    len(came),
                    steps_to(mark),
                )
            ends.append(mark)
        for step in list(explorer.steps(state)):
            after = _before_step(state, step[1])
            try:
                explorer.step(after, *step)
            except Fault as fault:
                return str(fault), len(came), [*steps_to(mark), str(step)]
            found = fingerprint(after)
            before.setdefault(found, []).append(mark)
            if found not in came:
                came[found] = (mark, str(step))
                todo.append((found, after))
    good, marks = set(ends), deque(ends)
    while marks:
        for mark in before.get(marks.popleft(), ()):
            if mark not in good:
                good.add(mark)
                marks.append(mark)
    for mark in came:
        if mark not in good:
            return "STUCK: a copy is owed for ever", len(came), steps_to(mark)
    return "", len(came), []


def _is_over(state: State) -> bool:
    """Return whether every copy is acked, and no consumer has anything to do."""
    return all(where == ACKED for where in state.copies) and all(
        process.turns.is_idle and not process.acked_first for process in state.processes
    )


WORLDS = {
    "quiet": World(copies=3, lost_acks=1),
    "lost calls and replies": World(lost_calls=1, lost_replies=1),
    "a death": World(deaths=1, unended_max=1),
    "deaths": World(deaths=2),
    "a lost link": World(lost_links=1, lost_calls=1),
    "a late call": World(late_calls=1, fails=1),
    "a late call after a lost link": World(late_calls=1, lost_links=1),
    "failed runs": World(fails=2, lost_replies=1),
    "a late lease": World(late_leases=1, deaths=1),
    "a store that forgets": World(forgets=1),
    "a store that is away, and runs go on": World(lost_calls=1, fails=1, run_when_away=True),
}
# Rule -> a world that shows why it is there, and the fault that is found without it.
NEEDED = {
    "token": (World(lost_replies=1, unended_max=1), "NEEDLESS"),
    "token_of_turn": (World(late_calls=1, fails=1, lost_links=1), "TWICE"),
    "keep_done": (World(copies=3), "TWICE"),
    "park_at_the_end": (World(deaths=1, unended_max=1), "DROPPED"),
    "owner_release": (World(late_calls=1, fails=2), "TWICE"),
    "release_counts_back": (World(fails=2, unended_max=1), "NEEDLESS"),
    "done_first": (World(deaths=1), "TWICE"),
    "ack_after": (World(deaths=1), "DROPPED"),
    "expire_late": (World(), "TWICE"),
    "park_before_ack": (World(deaths=1, unended_max=1), "DROPPED"),
}


@pytest.mark.guarantee("handled-once")
@pytest.mark.parametrize(
    "name", without_large(WORLDS, "a late call after a lost link", "a late lease")
)
def test_no_schedule_drops_repeats_or_blocks_a_message(name: str) -> None:
    fault, _states, steps = explore(WORLDS[name], Rules())
    assert not fault, "\n".join([fault, *steps])


@pytest.mark.parametrize("rule", NEEDED)
def test_each_rule_is_needed(rule: str) -> None:
    world, wanted = NEEDED[rule]
    fault, _states, _steps = explore(world, replace(Rules(), **{rule: False}), deep=True)
    assert fault.startswith(wanted), f"without {rule}: {fault or 'no fault'}"
