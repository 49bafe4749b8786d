"""Random schedules of publishers, a partition's home and a group, around the real machines.

One partition: its home has one quorum queue with a single active consumer, which returns messages as RabbitMQ
does: behind those that were returned before, and before all others. Publishers have the real
`core.pending.PendingPublishes`; consumers the real `core.keyed.Keyed`. Links are cut with bytes on their way,
which the home may read late, beside the next link; confirms are lost; deadlines pass; the home is frozen and
killed; consumers are frozen (their links are lost, they go on with what they hold), killed, and let go.

Checked: a message completes for the first time only behind everything of its key that its publisher's calls
sent before it, and that anybody knew to be confirmed before its call began, as far as that completes at all.
In the end all that was confirmed has completed. Each field of `Rules` switches a rule off.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count

from messagebus.core.ends import CONFIRMED, Item
from messagebus.core.keyed import Keyed
from messagebus.core.pending import PendingPublishes

PLACE = "mb.part/orders 7.1"


@dataclass(frozen=True)
class Rules:
    """Rules of the design. home: all publishes of a partition go to one broker.

    again: what was sent and has no answer goes again, first and in order, though its caller was told unknown.
    prefetch: every consumer has the same. close: a channel is closed, not cancelled. place: a failed run is
    repeated in place, not by a nack. lanes: the messages of a key run one after the other. drop: what a lost
    link brought, and nobody began, is dropped.
    """

    home: bool = True
    again: bool = True
    prefetch: bool = True
    close: bool = True
    place: bool = True
    lanes: bool = True
    drop: bool = True


@dataclass(frozen=True)
class World:
    publishers: int = 2
    consumers: int = 3
    keys: int = 2
    messages: int = 22
    window: int = 6
    prefetch: int = 5
    steps: int = 320
    more: tuple[str, ...] = ()  # faults that come more often


@dataclass(eq=False)
class Line:
    """A publisher's link: what it wrote and the home has not read; its answers on their way."""

    number: int
    broker: int
    wrote: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    read: int = 0
    live: bool = True


@dataclass(eq=False)
class Channel:
    """A consumer's channel: what it holds, in the order of delivery; acks on their way."""

    owner: int
    prefetch: int
    number: int = 0
    live: bool = True
    cancelled: bool = False
    unacked: list[int] = field(default_factory=list)
    acking: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Delivery:
    number: int
    key: int
    channel: Channel


class Publisher:
    def __init__(self, world: World, rules: Rules) -> None:
        self.pending = PendingPublishes(
            messages_max=1_000,
            bytes_max=1 << 20,
            window=world.window,
            window_bytes_max=1 << 20,
            attempts_max=3,
            retry_unknown=True,
            ordered=rules.again,
        )
        self.pending.backlog.open(PLACE)
        self.line: Line | None = None
        self.calls: list[Item] = []


class Member:
    """A consumer's process. brought: deliveries that it has, and no handler has begun."""

    def __init__(self, rules: Rules) -> None:
        self.keyed: Keyed[Delivery] = Keyed(
            lane_of=lambda each: each.key if rules.lanes else each,
            link_of=lambda each: each.channel,
        )
        self.channel: Channel | None = None
        self.ready: list[Delivery] = []
        self.runs: list[Delivery] = []
        self.frozen = False
        self.lost: list[Channel] = []  # it has not noticed yet


class Fault(Exception):
    pass


class Walk:
    """One random schedule."""

    def __init__(self, world: World, rules: Rules, seed: int) -> None:
        self.world, self.rules, self.rng = world, rules, random.Random(seed)
        self.said: list[str] = []
        self.now_ms = 0
        self.publishers = [Publisher(world, rules) for _ in range(world.publishers)]
        self.members = [Member(rules) for _ in range(world.consumers)]
        brokers = 1 if rules.home else 2
        self.ready: list[list[int]] = [[] for _ in range(brokers)]
        self.returns: list[list[int]] = [[] for _ in range(brokers)]
        self.waiting: list[list[Channel]] = [[] for _ in range(brokers)]
        self.attached: list[list[Channel]] = [[] for _ in range(brokers)]
        self.up = [True] * brokers
        self.frozen = [False] * brokers
        self.lines: list[Line] = []
        self.numbers, self.channels = count(1), count(1)
        self.keys: list[int] = []
        self.before: list[set[int]] = []
        self.items: list[Item] = []
        self.completed: list[int] = []

    # Publishers.
    def call(self) -> bool:
        """Accept a publish: a caller has one of its own open for a key, or shares it behind a confirm."""
        if len(self.items) >= self.world.messages:
            return False
        number, who = len(self.items), self.rng.choice(self.publishers)
        key = self.rng.randrange(self.world.keys)
        own = {self.items.index(each) for each in who.calls}
        known = {n for n, each in enumerate(self.items) if each.end and each.end[0] == CONFIRMED}
        self.before.append({n for n in own | known if self.keys[n] == key})
        item = Item(str(number), PLACE, 1, self.now_ms + self.rng.randrange(20, 200))
        self.keys.append(key)
        self.items.append(item)
        who.calls.append(item)
        who.pending.backlog.accept(item)
        return True

    def dial(self) -> bool:
        who = self.rng.choice(self.publishers)
        broker = self.rng.randrange(len(self.up))
        if who.line is not None or not self.up[broker] or self.frozen[broker]:
            return False
        who.line = line = Line(next(self.numbers), broker)
        self.lines.append(line)
        who.pending.in_flight.opened(line.number, after=())
        return True

    def send(self) -> bool:
        who = self.rng.choice(self.publishers)
        if who.line is None:
            return False
        taken = who.pending.take(self.now_ms)
        who.line.wrote += [int(each.message_id) for each in taken]
        return bool(taken)

    def read(self) -> bool:
        """Let a broker read one publish of a link, also of one that is cut."""
        lines = [
            n for n in self.lines if n.wrote and self.up[n.broker] and not self.frozen[n.broker]
        ]
        if not lines:
            return False
        line = self.rng.choice(lines)
        self.ready[line.broker].append(line.wrote.pop(0))
        line.read += 1
        line.answers.append(line.read)
        return True

    def answer(self) -> bool:
        who = self.rng.choice(self.publishers)
        if who.line is None or not who.line.answers:
            return False
        tag = who.line.answers.pop(0)
        who.pending.answered(who.line.number, tag, multiple=False, ok=True)
        return True

    def cut(self) -> bool:
        """Lose a publisher's link; what it wrote may be read late, and its answers are gone."""
        who = self.rng.choice(self.publishers)
        if who.line is None:
            return False
        self.lose_line(who)
        return True

    def lose_line(self, who: Publisher) -> None:
        assert who.line is not None
        who.line.live, number = False, who.line.number
        who.line.answers.clear()
        who.line = None
        who.pending.link_lost(number, self.now_ms)

    def time(self) -> bool:
        self.now_ms += self.rng.randrange(1, 25)
        for who in self.publishers:
            who.pending.expire(self.now_ms)
        return True

    # The home.
    def kill(self) -> bool:
        """Kill a broker: links end, bytes on their way are gone, what was held comes back; later it boots."""
        broker = self.rng.randrange(len(self.up))
        if not self.up[broker]:
            self.up[broker] = True
            return True
        self.up[broker] = self.frozen[broker] = False
        for line in self.lines:
            if line.broker == broker:
                line.wrote.clear()
        for who in self.publishers:
            if who.line is not None and who.line.broker == broker:
                self.lose_line(who)
        for channel in list(self.attached[broker]):
            self.end_channel(broker, channel)
        return True

    def freeze(self) -> bool:
        broker = self.rng.randrange(len(self.up))
        self.frozen[broker] = not self.frozen[broker]
        return self.up[broker]

    def end_channel(self, broker: int, channel: Channel) -> None:
        """End a channel: what it holds is returned, behind what was returned before."""
        channel.live = False
        if channel in self.attached[broker]:
            self.attached[broker].remove(channel)
        if channel in self.waiting[broker]:
            self.waiting[broker].remove(channel)
        self.returns[broker] += channel.unacked
        channel.unacked = []
        member = self.members[channel.owner]
        if member.channel is channel:
            member.lost.append(channel)

    def ack(self) -> bool:
        channels = [each for some in self.attached for each in some if each.acking]
        if not channels:
            return False
        channel = self.rng.choice(channels)
        number = channel.acking.pop(0)
        if number in channel.unacked:
            channel.unacked.remove(number)
        return True

    # Consumers.
    def attach(self) -> bool:
        who = self.rng.randrange(len(self.members))
        member, broker = self.members[who], self.rng.randrange(len(self.up))
        if member.channel is not None or member.frozen or not self.up[broker]:
            return False
        size = self.world.prefetch if self.rules.prefetch else self.rng.randint(1, 5)
        member.channel = channel = Channel(who, size, next(self.channels))
        self.attached[broker].append(channel)
        self.waiting[broker].append(channel)
        return True

    def deliver(self) -> bool:
        """Serve the active one as much as it may hold, in one piece."""
        broker = self.rng.randrange(len(self.up))
        if not self.waiting[broker] or not self.up[broker] or self.frozen[broker]:
            return False
        channel = self.waiting[broker][0]
        room = channel.prefetch - len(channel.unacked)
        from_returns = self.returns[broker][:room]
        taken = from_returns + self.ready[broker][: room - len(from_returns)]
        if not taken:
            return False
        del self.returns[broker][: len(from_returns)]
        del self.ready[broker][: len(taken) - len(from_returns)]
        channel.unacked += taken
        member = self.members[channel.owner]
        member.keyed.arrived([Delivery(n, self.keys[n], channel) for n in taken])
        self.take(member)
        return True

    def take(self, member: Member) -> None:
        hand_out, _park = member.keyed.take()
        member.ready += hand_out

    def begin(self) -> bool:
        member = self.rng.choice(self.members)
        if not member.ready or member.frozen:
            return False
        place = 0 if self.rules.lanes else self.rng.randrange(len(member.ready))
        delivery = member.ready.pop(place)
        if self.rules.drop and self.noticed(member, delivery):
            member.keyed.answered(delivery)
            self.take(member)
            return True
        member.runs.append(delivery)
        return True

    def noticed(self, member: Member, delivery: Delivery) -> bool:
        """Return whether the process knows that the channel of a delivery has ended."""
        return not delivery.channel.live and delivery.channel not in member.lost

    def complete(self) -> bool:
        member = self.rng.choice(self.members)
        if not member.runs or member.frozen:
            return False
        delivery = member.runs.pop(self.rng.randrange(len(member.runs)))
        number = delivery.number
        if number not in self.completed:
            late = [n for n in range(len(self.items)) if number in self.before[n]]
            if passed := [n for n in late if n in self.completed]:
                raise Fault(f"ORDER: {number} of key {delivery.key} behind {passed}")
            self.completed.append(number)
        if delivery.channel.live:
            delivery.channel.acking.append(number)
        member.keyed.answered(delivery)
        self.take(member)
        return True

    def fail(self) -> bool:
        member = self.rng.choice(self.members)
        if not member.runs or member.frozen:
            return False
        delivery = member.runs.pop(self.rng.randrange(len(member.runs)))
        channel = delivery.channel
        if self.noticed(member, delivery):
            member.keyed.answered(delivery)
        elif self.rules.place or not channel.live:
            member.keyed.rest(delivery, self.now_ms)
            member.keyed.due(self.now_ms)
        else:  # given back by a nack, which this queue takes behind what was returned before
            channel.unacked.remove(delivery.number)
            broker = next(n for n, some in enumerate(self.attached) if channel in some)
            self.returns[broker].append(delivery.number)
            member.keyed.answered(delivery)
        self.take(member)
        return True

    def let_go(self) -> bool:
        """Give the partition to the next one when nothing of it runs; the rest goes back with the channel."""
        member = self.rng.choice(self.members)
        channel = member.channel
        if channel is None or not channel.live or member.frozen:
            return False
        broker = next((n for n, some in enumerate(self.attached) if channel in some), None)
        if broker is None:
            return False
        if not self.rules.close:
            if channel in self.waiting[broker]:
                self.waiting[broker].remove(channel)
                return True
            return False
        if any(each.channel is channel for each in member.runs):
            return False
        self.end_channel(broker, channel)
        self.notice_one(member)
        return True

    def lose(self) -> bool:
        """Cut a consumer's link; the process may not notice for long."""
        channels = [(n, each) for n, some in enumerate(self.attached) for each in some]
        if not channels:
            return False
        self.end_channel(*self.rng.choice(channels))
        return True

    def notice(self) -> bool:
        member = self.rng.choice(self.members)
        if not member.lost or member.frozen:
            return False
        self.notice_one(member)
        return True

    def notice_one(self, member: Member) -> None:
        for channel in member.lost:
            if self.rules.drop:
                unseen = [each for each in member.ready if each.channel is channel]
                member.ready = [each for each in member.ready if each.channel is not channel]
                member.keyed.lost(channel, unseen, keep_runs=True)
            if member.channel is channel:
                member.channel = None
        member.lost = []
        self.take(member)

    def stall(self) -> bool:
        """Freeze a consumer, or let it go on."""
        member = self.rng.choice(self.members)
        member.frozen = not member.frozen
        return True

    def die(self) -> bool:
        who = self.rng.randrange(len(self.members))
        channel = self.members[who].channel
        self.members[who] = Member(self.rules)
        for broker, some in enumerate(self.attached):
            if channel is not None and channel in some:
                self.end_channel(broker, channel)
        self.members[who].lost = []
        return True

    def run(self) -> None:
        often = [self.call, self.dial, self.send, self.send, self.read, self.read, self.answer]
        often += [self.attach, self.deliver, self.begin, self.complete, self.ack, self.notice]
        rare = [self.cut, self.kill, self.freeze, self.lose, self.let_go, self.stall, self.die]
        rare += [self.fail, self.time, self.time]
        rare += [getattr(self, name) for name in self.world.more]
        for _ in range(self.world.steps):
            step = self.rng.choice(often * 3 + rare)
            if step():
                self.said.append(step.__name__)
        # No faults any more: what was confirmed completes.
        self.up, self.frozen = [True] * len(self.up), [False] * len(self.up)
        for member in self.members:
            member.frozen = False
        wanted = {n for n, each in enumerate(self.items) if each.end and each.end[0] == CONFIRMED}
        for _ in range(self.world.steps * 6):
            if wanted <= set(self.completed):
                return
            if not sum(step() for step in self.rng.sample(often[1:], len(often) - 1)):
                self.time()
        raise Fault(f"LOST: {sorted(wanted - set(self.completed))} were confirmed")


def walk(world: World, rules: Rules, seed: int) -> tuple[str, list[str]]:
    """Return the fault of one random schedule, "" for none, and its steps."""
    made = Walk(world, rules, seed)
    try:
        made.run()
    except Fault as fault:
        return str(fault), made.said
    return "", made.said
