"""core.shards: each shard of an outbox has one relay at a time, and relays have equal shares."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus.core.shards import SHARDS, Ask, Lease, Shares
from tests.support.examples import examples

LEASE_MS = 9_000


def quiet(_shard: int) -> bool:
    return True


def asking(made: Shares, now_ms: int, is_quiet: Callable[[int], bool] = quiet) -> Ask:
    asked = made.ask(now_ms, is_quiet)
    assert asked is not None
    return asked


def leases(ours: int, *, free: int = 0, left_ms: int = LEASE_MS) -> list[Lease]:
    """Return the table with so many of ours, then so many free ones; others have the rest."""
    return [
        Lease(shard, shard < ours, left_ms if shard < ours or shard >= ours + free else 0)
        for shard in range(SHARDS)
    ]


def test_alone_it_takes_every_shard() -> None:
    made = Shares(LEASE_MS, first=5)
    assert asking(made, 0) == Ask((), ())
    made.leased(leases(0, free=16), 1, 0)
    assert sorted(asking(made, 0).take) == list(range(SHARDS))
    assert asking(made, 0).take[0] == 5
    made.leased(leases(16), 1, 0)
    assert made.owned == SHARDS
    assert made.ask(LEASE_MS // 3 - 1, quiet) is None
    assert asking(made, LEASE_MS // 3) == Ask((), ())


def test_it_believes_in_a_lease_from_when_it_asked_and_not_to_its_end() -> None:
    made = Shares(LEASE_MS)
    made.leased(leases(1), 1, 1_000)
    assert made.until_ms() == {0: 1_000 + LEASE_MS - LEASE_MS // 5}


def test_it_takes_no_more_than_its_share() -> None:
    made = Shares(LEASE_MS)
    made.leased(leases(4, free=12), 3, 0)
    assert asking(made, 0).take == (4, 5)


def test_it_lets_go_what_is_above_its_share_when_nothing_of_it_is_on_its_way() -> None:
    made = Shares(LEASE_MS)
    made.leased(leases(16), 2, 0)
    assert sorted(made.until_ms()) == list(range(8)), "nothing is sent there any more"
    assert made.ask(1, lambda _: False) is None
    assert asking(made, 1, lambda shard: shard == 9) == Ask((), (9,))
    made.leased(leases(8), 2, 2)
    assert made.owned == 8
    assert made.ask(3, quiet) is None


def test_a_stop_lets_all_go_and_takes_none() -> None:
    made = Shares(LEASE_MS)
    made.leased(leases(4, free=12), 1, 0)
    made.stop()
    assert made.until_ms() == {}
    assert asking(made, 0) == Ask((), (0, 1, 2, 3))
    made.leased(leases(0, free=16), 1, 0)
    assert asking(made, LEASE_MS) == Ask((), ())


def test_without_an_answer_it_asks_again_later() -> None:
    made = Shares(LEASE_MS)
    made.unseen(100, 50)
    assert made.ask(149, quiet) is None
    assert made.due_ms == 150
    assert made.ask(150, quiet) is not None


@dataclass
class World:
    """A table of leases, and relays that use it. The database's clock is ahead by some time."""

    now_ms: int = 0
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    alive: dict[int, int] = field(default_factory=dict)

    def carry_out(self, relay: int, asked: Ask) -> tuple[list[Lease], int]:
        for shard, (owner, _) in self.rows.items():
            if owner == relay:
                released = shard in asked.release
                self.rows[shard] = (0, 0) if released else (relay, self.now_ms + LEASE_MS)
        self.alive[relay] = self.now_ms + LEASE_MS
        for shard in asked.take:
            if self.rows[shard][1] <= self.now_ms:
                self.rows[shard] = (relay, self.now_ms + LEASE_MS)
        found = [
            Lease(shard, owner == relay, until - self.now_ms)
            for shard, (owner, until) in self.rows.items()
        ]
        return found, sum(until > self.now_ms for until in self.alive.values())


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 5))
def test_no_shard_has_two_relays_and_in_the_end_all_have_equal_shares(
    seed: int, count: int
) -> None:
    chance = random.Random(seed)
    world = World(rows=dict.fromkeys(range(SHARDS), (0, 0)))
    relays = {n: Shares(LEASE_MS, first=chance.randrange(99)) for n in range(1, count + 1)}
    silent: dict[int, int] = {}

    def step(number: int) -> None:
        made, asked_ms = relays[number], world.now_ms
        if world.now_ms < silent.get(number, 0):
            return
        if (asked := made.ask(world.now_ms, lambda _: chance.random() < 0.5)) is None:
            return
        lost = chance.random() < 0.1
        world.now_ms += chance.randrange(30)
        answer, living = world.carry_out(number, asked)
        world.now_ms += chance.randrange(30)
        if lost:
            made.unseen(world.now_ms, 100)
        else:
            made.leased(answer, living, asked_ms)

    def check() -> None:
        owners: dict[int, int] = {}
        for number, made in relays.items():
            for shard, until_ms in made.until_ms().items():
                if world.now_ms < until_ms:
                    assert owners.setdefault(shard, number) == number
                    assert world.rows[shard][0] == number

    for _ in range(300):
        world.now_ms += chance.choice([1, 100, 1_000])
        if chance.random() < 0.02:
            silent[chance.randint(1, count)] = world.now_ms + chance.randrange(4 * LEASE_MS)
        step(chance.randint(1, count))
        check()
    silent.clear()
    for _ in range(200):
        world.now_ms += 500
        for number in relays:
            step(number)
            check()
    shares = sorted(made.owned for made in relays.values())
    assert sum(shares) == SHARDS
    assert shares[-1] <= -(-SHARDS // count)
