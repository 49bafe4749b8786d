"""Random schedules of brokers, links and consumers around the real `core.keyed`, after reference models.

Each broker has one queue with a single active consumer. Messages are numbered by their place in it.
Each consumer has one real `Keyed`, a link to each broker with a prefetch, and handlers that complete,
fail, overrun, and go on behind a link that has ended; acks are applied later or never. Checked at each step:

    ORDER   a message completes or is parked for the first time only after all before it of its key and broker
    SERIAL  no consumer runs two messages of one key at the same time
    PARKED  while a key is parked nothing of it runs
    STUCK   when all faults are over, everything completes or is parked

`naive` leaves the lanes out: what arrives is handed out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count

from messagebus.core.keyed import Keyed


@dataclass(frozen=True)
class World:
    """Bounds. last_attempt: runs of one message; then it is parked, one time in three with its key."""

    brokers: int = 2
    consumers: int = 2
    keys: int = 3
    messages: int = 24
    prefetch: int = 6
    concurrency: int = 4
    last_attempt: int = 3
    claims: bool = False
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
    """One process."""

    def __init__(self, world: World) -> None:
        self.keyed: Keyed[Delivery] = Keyed(
            lane_of=lambda each: each.key, link_of=lambda each: each.link, claims=world.claims
        )
        self.ready: list[Delivery] = []
        self.runs: list[Delivery] = []
        self.late: list[Delivery] = []
        self.asked: list[Delivery] = []  # claims that the store has not answered yet
        self.parking: list[Delivery] = []
        self.parked: set[str] = set()


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
        self.numbers = count()
        self.ended: set[int] = set()
        self.links: list[dict[int, Link]] = [
            {} for _ in range(world.brokers)
        ]  # consumer -> link, in turn
        self.consumers = [Consumer(world) for _ in range(world.consumers)]
        self.published = 0

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
        if self.world.claims:
            own.asked += deliveries
        self.take(own)
        return True

    def take(self, consumer: Consumer) -> None:
        if not self.world.naive:
            hand_out, park = consumer.keyed.take()
            consumer.ready += hand_out
            consumer.parking += park

    def grant(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        if not consumer.asked:
            return False
        delivery = consumer.asked.pop(self.rng.randrange(len(consumer.asked)))
        if delivery.link.live:
            consumer.keyed.granted([delivery])
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
        if delivery.key in {each.key for each in [*consumer.runs, *consumer.late]}:
            raise Fault(f"SERIAL: {delivery.number} of {delivery.key} runs beside another")
        if delivery.key in consumer.parked:
            raise Fault(f"PARKED: {delivery.number} of {delivery.key} runs")
        consumer.runs.append(delivery)
        return True

    def answered(self, consumer: Consumer, delivery: Delivery) -> None:
        if not self.world.naive:
            consumer.keyed.answered(delivery)
            self.take(consumer)

    def end(self, delivery: Delivery, what: str) -> None:
        number = delivery.number
        if number not in self.ended:
            for other in range(number):
                same = (self.keys[other], self.home[other]) == (delivery.key, self.home[number])
                if same and other not in self.ended:
                    raise Fault(f"ORDER: {number} {what} before {other} of {delivery.key}")
        self.ended.add(number)
        if delivery.link.live:
            delivery.link.acking.append(number)

    def complete(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        if not consumer.runs:
            return False
        delivery = consumer.runs.pop(self.rng.randrange(len(consumer.runs)))
        self.end(delivery, "completes")
        self.answered(consumer, delivery)
        return True

    def fail(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        if not consumer.runs:
            return False
        delivery = consumer.runs.pop(self.rng.randrange(len(consumer.runs)))
        is_late = self.rng.random() < 0.3
        if is_late and not self.world.naive:
            consumer.keyed.overran(delivery)
            consumer.late.append(delivery)
        self.failed(consumer, delivery)
        return True

    def failed(self, consumer: Consumer, delivery: Delivery) -> None:
        if not delivery.link.live:
            self.answered(consumer, delivery)
        elif delivery.attempt < self.world.last_attempt:
            delivery.attempt += 1
            if self.world.naive:
                consumer.ready.append(delivery)
            elif not consumer.keyed.rest(delivery, self.now_ms + self.rng.randrange(20)):
                raise Fault(f"LOST: {delivery.number} was not out")
        else:
            if self.rng.random() < 0.3 and not self.world.naive:
                consumer.keyed.park(delivery)
                consumer.parked.add(delivery.key)
            self.end(delivery, "is parked")
            self.answered(consumer, delivery)

    def park(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        if not consumer.parking:
            return False
        delivery = consumer.parking.pop(self.rng.randrange(len(consumer.parking)))
        if delivery.link.live:
            self.end(delivery, "is parked")
        self.answered(consumer, delivery)
        return True

    def end_late(self) -> bool:
        consumer = self.rng.choice(self.consumers)
        if not consumer.late:
            return False
        delivery = consumer.late.pop(self.rng.randrange(len(consumer.late)))
        consumer.keyed.ended_late(delivery)
        self.take(consumer)
        return True

    def pass_time(self) -> bool:
        self.now_ms += self.rng.randrange(1, 15)
        for consumer in self.consumers:
            due = consumer.keyed.due(self.now_ms)
            if self.world.claims:
                consumer.asked += due
            self.take(consumer)
        return True

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
            own.keyed.lost(link, (), keep_runs=True)
            self.take(own)
        return True

    def die(self) -> bool:
        """Kill a consumer, with all that it runs; another process takes its place."""
        number = self.rng.randrange(len(self.consumers))
        for broker in range(self.world.brokers):
            if (link := self.links[broker].pop(number, None)) is not None:
                link.live = False
                self.queues[broker] = link.unacked + self.queues[broker]
        self.consumers[number] = Consumer(self.world)
        return True

    def run(self) -> None:
        often = [self.publish, self.deliver, self.begin, self.complete, self.ack, self.pass_time]
        often += [self.grant, self.park, self.end_late, self.attach]
        rare = [self.fail, self.fail, self.lose, self.die]
        for _ in range(self.world.steps):
            step = self.rng.choice(often * 3 + rare)
            if step():
                self.said.append(step.__name__)
        # No faults any more: all of it ends.
        calm = [each for each in often if each != self.pass_time]
        for _ in range(self.world.steps * 8):
            if len(self.ended) == self.world.messages and not any(self.queues):
                return
            if not sum(step() for step in self.rng.sample(calm, len(calm))):
                self.pass_time()
        raise Fault(f"STUCK: {sorted(set(range(self.world.messages)) - self.ended)} never end")


def walk(world: World, seed: int) -> tuple[str, list[str]]:
    """Return the fault of one random schedule, "" for none, and its steps."""
    made = Walk(world, seed)
    try:
        made.run()
    except Fault as fault:
        return str(fault), made.said
    return "", made.said
