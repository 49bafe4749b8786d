"""Random schedules of brokers, links and consumers around the real `core.keyed`, after reference models.

Each broker has one queue with a single active consumer. Messages are numbered by their place in it.
Each consumer has one real `Keyed`, a link to each broker with a prefetch, and handlers that complete,
fail, overrun, and go on behind a link that has ended; acks are applied later or never. With `claims` it has a
real `core.once` too, and all share the records of one store; there are handlers that never return, and
messages that kill each process that runs them. Checked at each step:

    ORDER     a message completes or is parked first only after all before it of its key and broker, but one
              that is parked because it is too old
    SERIAL    no consumer runs two messages of one key at the same time
    PARKED    while a key is parked nothing of it runs
    STUCK     when all faults are over, everything completes or is parked, but keys with an endless run
    BEHIND    a suspect that may run waits behind another delivery of its lane
    NEEDLESS  a message that kills nobody is parked for runs that never ended, where only messages kill

`Rules` switches off one rule of `core.once` at a time; `naive` hands out what arrives, without lanes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count

from messagebus.core import claims
from messagebus.core.claims import KEY_BYTES, NOBODY, WAITING, Answer, Record, Rule
from messagebus.core.keyed import Keyed
from messagebus.core.once import Claims
from messagebus.core.turns import SEED_BYTES, Turns
from messagebus.core.waiting import GRANTED, NEVER_MS

RULE = Rule(lease_ms=30_000, remember_ms=1 << 40, unended_max=5)


@dataclass(frozen=True)
class Rules:
    """Rules about suspects; False switches one off."""

    alone: bool = True  # one runs at a time
    next_of_its_lane: bool = True  # only one that would go out at once gets its turn
    turns_end: bool = True  # the turn of a run that never ends is over after a lease


@dataclass(frozen=True)
class World:
    """Bounds. last_attempt: runs of one message; then it is parked, one time in three with its key.

    suspects: each message was in two processes that were killed. hangs: runs that never end. killers:
    messages that kill each process that runs them. dies: processes are killed whatever they run.
    old: messages that are too old where the store does not know them; they are parked then.
    """

    brokers: int = 2
    consumers: int = 2
    keys: int = 3
    messages: int = 24
    prefetch: int = 6
    concurrency: int = 4
    last_attempt: int = 3
    claims: bool = False
    suspects: bool = False
    hangs: int = 0
    killers: int = 0
    dies: bool = True
    old: int = 0
    rules: Rules = Rules()
    naive: bool = False
    steps: int = 260


@dataclass(eq=False)
class Delivery:
    """A message, delivered over a link of a consumer. number: of all messages."""

    number: int
    key: str
    link: Link
    attempt: int = 1


@dataclass(eq=False)
class Link:
    """The link of a consumer to a broker; unacked: in the order of delivery. acking: sent, not applied."""

    broker: int
    live: bool = True
    unacked: list[int] = field(default_factory=list)
    acking: list[int] = field(default_factory=list)


class Consumer:
    """One process. seed: another one of each process. old: the messages that are too old."""

    def __init__(self, world: World, seed: int, old: set[int]) -> None:
        self.keyed: Keyed[Delivery] = Keyed(
            lane_of=lambda each: each.key, link_of=lambda each: each.link, claims=world.claims
        )
        self.ready: list[Delivery] = []
        self.runs: list[Delivery] = []
        self.late: list[Delivery] = []
        self.hung: list[Delivery] = []
        self.parking: list[Delivery] = []
        self.parked: set[str] = set()
        self.once: Claims[Delivery] | None = None
        self.turns: Turns[Delivery] | None = None
        self.answer: Answer | None = None
        self.acking: list[Delivery] = []  # ended here; acked when the store knows
        self.unseen: list[Delivery] = []  # to be parked, and never handed out
        self.too_old: set[Delivery] = set()  # of these
        self.telling: list[Delivery] = []  # whose rest is over before the store knows
        if world.claims:
            rules = world.rules
            self.once = Claims(
                RULE,
                deferred_max=1_000,
                park_too_old=True,
                is_next=self.keyed.is_next if rules.next_of_its_lane else lambda _item: True,
            )
            self.turns = Turns(self.once, seed.to_bytes(SEED_BYTES))
            if not rules.alone:
                self.once.suspects.alone_from = 1_000
        self._old = old

    def age_ms(self, delivery: Delivery) -> int:
        """Return an age that no time of this world makes too old, or one that is."""
        return (RULE.remember_ms << 1) * (delivery.number in self._old)


class Fault(Exception):
    pass


class Walk:
    """One random schedule."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.said: list[str] = []
        self.now_ms = 0
        self.keys = [f"k{self.rng.randrange(world.keys)}" for _ in range(world.messages)]
        self.home = [self.rng.randrange(world.brokers) for _ in range(world.messages)]
        self.queues: list[list[int]] = [[] for _ in range(world.brokers)]
        self.seeds = count(1)
        self.records: dict[bytes, Record] = {}
        if world.suspects:
            record = Record(WAITING, NOBODY, 2, 0, RULE.remember_ms)
            self.records = {_key_of(number): record for number in range(world.messages)}
        self.hangs = world.hangs
        self.killers = set(self.rng.sample(range(world.messages), world.killers))
        self.old = set(self.rng.sample(range(world.messages), world.old))
        self.ended: set[int] = set()
        self.links: list[dict[int, Link]] = [
            {} for _ in range(world.brokers)
        ]  # consumer -> link, in turn
        self.consumers = [self.start() for _ in range(world.consumers)]
        self.published = 0

    def start(self) -> Consumer:
        return Consumer(self.world, next(self.seeds), self.old)

    # Steps; each returns False when there is nothing to do.
    def publish(self) -> bool:
        if self.published >= self.world.messages:
            return False
        self.queues[self.home[self.published]].append(self.published)
        self.published += 1
        return True

    def attach(self) -> bool:
        broker = self.rng.randrange(self.world.brokers)
        consumer = self.rng.randrange(len(self.consumers))
        if consumer in self.links[broker]:
            return False
        self.links[broker][consumer] = Link(broker)
        return True

    def deliver(self) -> bool:
        broker = self.rng.randrange(self.world.brokers)
        if not self.links[broker] or not self.queues[broker]:
            return False
        consumer, link = next(iter(self.links[broker].items()))  # the active one
        room = self.world.prefetch - len(link.unacked)
        some = min(room, len(self.queues[broker]), self.rng.randint(1, 3))
        if some <= 0:
            return False
        taken, self.queues[broker] = self.queues[broker][:some], self.queues[broker][some:]
        link.unacked += taken
        deliveries = [Delivery(number, self.keys[number], link) for number in taken]
        own = self.consumers[consumer]
        if self.world.naive:
            own.ready += deliveries
            return True
        own.keyed.arrived(deliveries)
        if own.once is not None:
            own.once.arrived(
                [(key_of(each), each, own.age_ms(each)) for each in deliveries], self.now_ms
            )
        self.take(own)
        return True

    def take(self, consumer: Consumer) -> None:
        """Carry out what `core.once` and `core.keyed` order, as the drivers do."""
        keyed, once = consumer.keyed, consumer.once
        while once is not None and (orders := once.take()) is not None:
            for each in orders.ack:
                if each not in consumer.acking:  # one that nobody saw
                    keyed.answered(each)
                self.ack_to_broker(each)
            for each, reason in orders.park:
                self.judge_parking(each, reason)
                consumer.unseen.append(each)
                if reason.startswith("older"):
                    consumer.too_old.add(each)
            keyed.denied(orders.held)
            keyed.granted(orders.hand_out)
        if not self.world.naive:
            hand_out, park = keyed.take()
            consumer.ready += hand_out
            if once is not None:
                park = [each for each in park if once.may_start(each, self.now_ms)]
                let_go, ask = keyed.take_claims()
                once.let_go(let_go)
                once.ask(ask)
                alone = once.suspects.alone
                if alone is not None and alone.step == GRANTED and alone.item not in keyed._out:
                    raise Fault(f"BEHIND: {alone.item.number} may run, and waits in its lane")
            consumer.parking += park

    def judge_parking(self, delivery: Delivery, reason: str) -> None:
        only_killers = not (self.world.dies or self.world.hangs)
        if only_killers and delivery.number not in self.killers:
            raise Fault(f"NEEDLESS: {delivery.number} is parked: {reason}")

    def ask(self) -> bool:
        """Let the store carry out the next turn of a consumer."""
        return self.ask_of(self.rng.choice(self.consumers))

    def ask_of(self, consumer: Consumer) -> bool:
        turns = consumer.turns
        if turns is None or consumer.answer is not None:
            return False
        if not self.world.rules.turns_end:
            turns.claims.suspects.alone_until_ms = NEVER_MS
        turn = turns.turn(self.now_ms)
        if turn is None:
            return False
        consumer.answer = claims.apply(self.records, turn, RULE, self.now_ms)
        return True

    def hear(self) -> bool:
        """Let a consumer have the answer to its turn."""
        return self.hear_of(self.rng.choice(self.consumers))

    def hear_of(self, consumer: Consumer) -> bool:
        if consumer.turns is None or consumer.answer is None:
            return False
        answer, consumer.answer = consumer.answer, None
        consumer.turns.answered(answer, self.now_ms)
        self.take(consumer)
        return True

    def begin(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        if not consumer.ready or len(consumer.runs) >= self.world.concurrency:
            return False
        delivery = consumer.ready.pop(self.rng.randrange(len(consumer.ready)))
        if not delivery.link.live:  # of a lost link, and nobody began
            self.answered(consumer, delivery)
            return True
        if consumer.once is not None and not consumer.once.may_start(delivery, self.now_ms):
            return True  # its claim ran out: it is handed out again
        beside = [*consumer.runs, *consumer.late, *consumer.hung]
        if delivery.key in {each.key for each in beside}:
            raise Fault(f"SERIAL: {delivery.number} of {delivery.key} runs beside another")
        if delivery.key in consumer.parked:
            raise Fault(f"PARKED: {delivery.number} of {delivery.key} runs")
        consumer.runs.append(delivery)
        return True

    def answered(self, consumer: Consumer, delivery: Delivery) -> None:
        if not self.world.naive:
            consumer.keyed.answered(delivery)
            self.take(consumer)

    def end(self, delivery: Delivery, what: str, *, in_order: bool = True) -> None:
        number = delivery.number
        if number not in self.ended and in_order:
            for other in range(number):
                same = (self.keys[other], self.home[other]) == (delivery.key, self.home[number])
                if same and other not in self.ended:
                    raise Fault(f"ORDER: {number} {what} before {other} of {delivery.key}")
        self.ended.add(number)
        if not self.world.claims:
            self.ack_to_broker(delivery)

    def ack_to_broker(self, delivery: Delivery) -> None:
        if delivery.link.live:
            delivery.link.acking.append(delivery.number)

    def run_of(self, consumer: Consumer) -> Delivery | None:
        """Take out a run that may end."""
        runs = [each for each in consumer.runs if each.number not in self.killers]
        if not runs:
            return None
        delivery = self.rng.choice(runs)
        consumer.runs.remove(delivery)
        return delivery

    def complete(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        delivery = self.run_of(consumer)
        if delivery is None:
            return False
        self.end(delivery, "completes")
        if consumer.once is not None:
            consumer.acking.append(delivery)
            assert consumer.once.ended(delivery)
        self.answered(consumer, delivery)
        return True

    def fail(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        delivery = self.run_of(consumer)
        if delivery is None:
            return False
        if self.rng.random() < 0.3 and not self.world.naive:
            self.overrun(consumer, delivery)
            consumer.late.append(delivery)
        self.failed(consumer, delivery)
        return True

    def overrun(self, consumer: Consumer, delivery: Delivery) -> None:
        consumer.keyed.overran(delivery)
        if consumer.once is not None:
            consumer.once.overran([delivery])

    def hang(self) -> bool:
        """Let a run never end; its time limit, if it has one, ends its delivery."""
        consumer = self.rng.choice(self.consumers)
        delivery = self.run_of(consumer) if self.hangs else None
        if delivery is None:
            return False
        self.hangs -= 1
        consumer.hung.append(delivery)
        if self.rng.random() < 0.5:
            self.overrun(consumer, delivery)
            self.failed(consumer, delivery)
        return True

    def give_claim_back(self, consumer: Consumer, delivery: Delivery) -> None:
        if consumer.once is not None and delivery not in consumer.late + consumer.hung:
            consumer.once.given_back(delivery)

    def failed(self, consumer: Consumer, delivery: Delivery) -> None:
        if not delivery.link.live:
            self.give_claim_back(consumer, delivery)
            self.answered(consumer, delivery)
        elif delivery.attempt < self.world.last_attempt:
            delivery.attempt += 1
            if self.world.naive:
                consumer.ready.append(delivery)
                return
            self.give_claim_back(consumer, delivery)
            if not consumer.keyed.rest(delivery, self.now_ms + self.rng.randrange(20)):
                raise Fault(f"LOST: {delivery.number} was not out")
        else:
            if self.rng.random() < 0.3 and not self.world.naive:
                consumer.keyed.park(delivery)
                consumer.parked.add(delivery.key)
            self.parked(consumer, delivery)

    def parked(self, consumer: Consumer, delivery: Delivery) -> None:
        self.end(delivery, "is parked", in_order=delivery not in consumer.too_old)
        if consumer.once is None:
            self.answered(consumer, delivery)
        else:  # answered when the store knows
            consumer.once.parked(delivery)

    def park(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        some = consumer.parking or consumer.unseen
        if not some:
            return False
        delivery = some.pop(self.rng.randrange(len(some)))
        if delivery.link.live:
            self.parked(consumer, delivery)
        else:
            self.give_claim_back(consumer, delivery)
            self.answered(consumer, delivery)
        return True

    def end_late(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        if not consumer.late:
            return False
        delivery = consumer.late.pop(self.rng.randrange(len(consumer.late)))
        self.give_claim_back(consumer, delivery)
        consumer.keyed.ended_late(delivery)
        self.take(consumer)
        return True

    def pass_time(self) -> bool:
        self.now_ms += self.rng.randrange(1, 15)
        for consumer in self.consumers:
            due = [*consumer.telling, *consumer.keyed.due(self.now_ms)]
            if consumer.once is not None:
                due = [each for each in due if consumer.keyed.waits(each)]
                consumer.telling = [each for each in due if consumer.once.holds(each)]
                for each in due:
                    if each not in consumer.telling:
                        consumer.once.comes_again(
                            key_of(each), each, consumer.age_ms(each), self.now_ms
                        )
            self.take(consumer)
        return True

    def pass_lease(self) -> None:
        """Let the leases of dead processes run out, and no others."""
        for _ in range(4):
            self.now_ms += RULE.lease_ms // 3
            for each in self.consumers:
                while self.ask_of(each) or self.hear_of(each):
                    pass

    def ack(self) -> bool:
        """Let a broker apply some acks of a link."""
        links = [each for some in self.links for each in some.values() if each.acking]
        if not links:
            return False
        link = self.rng.choice(links)
        number = link.acking.pop(0)
        link.unacked.remove(number)
        return True

    def lose(self) -> bool:
        """Lose a link: what is unacked comes again first, in order."""
        broker = self.rng.randrange(self.world.brokers)
        if not self.links[broker]:
            return False
        consumer = self.rng.choice(list(self.links[broker]))
        link = self.links[broker].pop(consumer)
        link.live = False
        self.queues[broker] = link.unacked + self.queues[broker]
        own = self.consumers[consumer]
        if not self.world.naive:
            unseen = [each for each in own.ready if each.link is link and own.once is not None]
            own.ready = [each for each in own.ready if each not in unseen]
            found = own.keyed.lost(link, unseen, keep_runs=True)
            if own.once is not None:
                own.once.dropped(dict.fromkeys([*unseen, *found]))
            self.take(own)
        return True

    def die(self) -> bool:
        """Kill a consumer, with all that it runs."""
        if not self.world.dies:
            return False
        self.kill_of(self.rng.randrange(len(self.consumers)))
        return True

    def kill(self) -> bool:
        """Let a message kill its process."""
        for number, consumer in enumerate(self.consumers):
            if any(each.number in self.killers for each in consumer.runs):
                self.kill_of(number)
                return True
        return False

    def kill_of(self, number: int) -> None:
        """Let another process take the place of one, at once or after a while."""
        for broker in range(self.world.brokers):
            if (link := self.links[broker].pop(number, None)) is not None:
                link.live = False
                self.queues[broker] = link.unacked + self.queues[broker]
        self.consumers[number] = self.start()
        if self.world.claims and self.rng.random() < 0.5:
            self.pass_lease()

    def run(self) -> None:
        often = [self.publish, self.deliver, self.begin, self.complete, self.ack, self.pass_time]
        often += [self.ask, self.hear, self.park, self.end_late, self.attach]
        rare = [self.fail, self.fail, self.lose, self.die, self.hang, self.kill]
        for _ in range(self.world.steps):
            step = self.rng.choice(often * 3 + rare)
            if step():
                self.said.append(step.__name__)
        # No faults any more: all of it ends.
        calm = [each for each in often if each != self.pass_time] + [self.kill, self.hang]
        for _ in range(self.world.steps * 8):
            missing = self.missing()
            if not missing and (self.world.hangs or not any(self.queues)):
                return
            if not sum(step() for step in self.rng.sample(calm, len(calm))):
                self.wait()
        raise Fault(f"STUCK: {missing} never end")

    def missing(self) -> list[int]:
        """Return the messages that have no end yet, but those of keys with a run that never ends."""
        hung = {delivery.key for each in self.consumers for delivery in each.hung}
        numbers = range(self.world.messages)
        return [each for each in numbers if each not in self.ended and self.keys[each] not in hung]

    def wait(self) -> None:
        """Let time pass until a consumer has something to do."""
        times = [each.keyed.wake_ms() for each in self.consumers]
        times += [each.turns.wake_ms() for each in self.consumers if each.turns is not None]
        self.now_ms = max(self.now_ms, min((each for each in times if each), default=0) - 15)
        self.pass_time()


def key_of(delivery: Delivery) -> bytes:
    return _key_of(delivery.number)


def _key_of(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES)


def walk(world: World, seed: int) -> tuple[str, list[str]]:
    """Return the fault of one random schedule, "" for none, and its steps."""
    made = Walk(world, seed)
    try:
        made.run()
    except Fault as fault:
        return str(fault), made.said
    return "", made.said
