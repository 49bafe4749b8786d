"""core.relay: rows of an outbox are published once each, and in order, whatever ends when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus.core.relay import (
    FAILED_FIRST_MS,
    HOME_MS,
    KEY_ROWS_MAX,
    PAUSE_FIRST_MS,
    SECOND_MS,
    End,
    Exchange,
    RelayedRows,
    RelayLimits,
    Row,
)
from tests.support.examples import examples

FOREVER_MS = 1 << 50
ALL = dict.fromkeys(range(16), FOREVER_MS)
CONFIRMED, FAILED, INVALID, NOT_SENT = End.CONFIRMED, End.FAILED, End.INVALID, End.NOT_SENT
NO_SECOND, HOME_AWAY = End.NO_SECOND, End.HOME_AWAY


def relayed(
    *,
    batch: int = 10,
    held_max: int = 100,
    held_bytes_max: int = 1_000,
    in_flight_max: int = 50,
    attempts_max: int = 3,
    key_waits: bool = True,
) -> RelayedRows:
    limits = RelayLimits(
        batch=batch,
        held_max=held_max,
        held_bytes_max=held_bytes_max,
        in_flight_max=in_flight_max,
        poll_ms=100,
        attempts_max=attempts_max,
        key_waits=key_waits,
    )
    made = RelayedRows(limits)
    made.own(ALL)
    return made


def row(number: int, key: str = "", *, shard: int = 0, attempts: int = 0, size: int = 0) -> Row:
    return Row(number, shard, key, attempts, size)


def reading(made: RelayedRows, now_ms: int = 0) -> Exchange:
    asked = made.exchange(now_ms)
    assert asked is not None
    return asked


def read(made: RelayedRows, *rows: Row, now_ms: int = 0) -> None:
    made.woken()
    assert reading(made, now_ms).limit
    made.exchanged(rows, now_ms)


def end(made: RelayedRows, number: int, how: End, now_ms: int = 0) -> None:
    made.ended(number, how, "why", now_ms, 0.0)


def test_rows_without_a_key_go_out_together_and_those_of_a_key_one_by_one() -> None:
    made = relayed()
    read(made, row(1, "k"), row(2, "k"), row(3), row(4), row(5, "l"))
    assert made.take(0) == [1, 3, 4, 5]
    end(made, 3, CONFIRMED)
    assert made.take(0) == []
    end(made, 1, CONFIRMED)
    assert made.take(0) == [2]


def test_a_row_is_deleted_after_its_confirm_and_known_until_then() -> None:
    made = relayed()
    read(made, row(1), row(2))
    made.take(0)
    assert made.exchange(0) is None
    end(made, 1, CONFIRMED)
    asked = reading(made)
    assert (asked.delete, asked.limit) == ((1,), 0)
    assert not made.is_settled
    assert made.exchange(0) is None, "one exchange at a time"
    made.exchanged([], 0)
    assert made.held == 1


def test_what_an_exchange_may_not_have_told_is_told_again_and_not_sent_again() -> None:
    made = relayed()
    read(made, row(1), row(2))
    made.take(0)
    end(made, 1, CONFIRMED)
    end(made, 2, FAILED)
    first = reading(made)
    made.exchange_failed()
    assert reading(made) == first
    assert made.take(0) == []


def test_a_row_that_a_read_returns_although_it_is_held_is_not_sent_twice() -> None:
    made = relayed()
    read(made, row(1))
    assert made.take(0) == [1]
    made.woken()
    asked = reading(made)
    assert asked.held == (1,)
    end(made, 1, CONFIRMED)
    assert made.exchanged([row(1), row(2)], 0) == [2]
    assert made.take(0) == [2]


def test_a_key_waits_behind_a_failed_row_and_others_go_on() -> None:
    made = relayed()
    read(made, row(1, "k"), row(2, "k"), row(3, "l"))
    assert made.take(0) == [1, 3]
    end(made, 1, FAILED)
    assert made.take(0) == []
    asked = reading(made)
    assert [(f.id, f.attempts, f.parked, f.reason) for f in asked.failures] == [
        (1, 1, False, "why")
    ]
    assert asked.failures[0].wait_ms == FAILED_FIRST_MS // 2
    made.exchanged([], 0)
    assert made.take(0) == [], "the rows behind it come from the table again"
    read(made, row(1, "k", attempts=1), row(2, "k"))
    assert made.take(0) == [1]


def test_a_key_goes_on_when_that_is_asked_for() -> None:
    made = relayed(key_waits=False)
    read(made, row(1, "k"), row(2, "k"))
    assert made.take(0) == [1, 2]
    end(made, 1, FAILED)
    made.exchange(0)
    made.exchanged([], 0)
    end(made, 2, CONFIRMED)
    assert reading(made).delete == (2,)


@pytest.mark.parametrize(("how", "attempts"), [(FAILED, 2), (INVALID, 0)])
def test_a_row_is_parked_after_its_last_attempt_or_at_once_when_it_is_invalid(
    how: End, attempts: int
) -> None:
    made = relayed()
    read(made, row(1, "k", attempts=attempts), row(2, "k"))
    made.take(0)
    end(made, 1, how)
    assert made.take(0) == [], "not before the table knows it"
    assert reading(made).failures[0].parked
    made.exchanged([], 0)
    assert made.take(0) == [2]
    assert (made.failed, made.parked) == (1, 1)


def test_back_off_doubles_with_each_failure() -> None:
    made = relayed(attempts_max=20)
    read(made, row(1, attempts=3))
    made.take(0)
    end(made, 1, FAILED)
    assert reading(made).failures[0].wait_ms == FAILED_FIRST_MS * 8 // 2


def test_without_brokers_all_rows_pause_and_none_is_charged() -> None:
    made = relayed()
    read(made, row(1, "k"), row(2), row(3))
    assert made.take(0) == [1, 2, 3]
    for number in (1, 2, 3):
        end(made, number, NOT_SENT)
    assert made.take(0) == []
    due = made.next_due_ms()
    assert due == PAUSE_FIRST_MS // 2
    assert sorted(made.take(due)) == [1, 2, 3]
    end(made, 1, NOT_SENT, due)
    assert made.next_due_ms() == due + PAUSE_FIRST_MS, "the next pause is longer"
    end(made, 2, CONFIRMED, due)
    assert made.take(due) == [1], "a confirm ends it"


@pytest.mark.parametrize(("how", "wait_ms"), [(NO_SECOND, SECOND_MS), (HOME_AWAY, HOME_MS)])
def test_a_row_without_its_broker_waits_in_the_table_uncharged_and_others_go_on(
    how: End, wait_ms: int
) -> None:
    made = relayed(in_flight_max=1)
    read(made, row(1, "k", attempts=2), row(2, "k"), row(3, "other"))
    assert made.take(0) == [1]
    end(made, 1, how)
    assert made.take(0) == [3], "no pause"
    (told,) = reading(made).failures
    assert (told.id, told.attempts, told.wait_ms, told.parked) == (1, 2, wait_ms, False)
    made.exchanged([row(2, "k")], 0)
    assert (made.held, made.failed) == (1, 0), "its key waits behind it"


def test_nothing_is_due_while_as_many_are_in_flight_as_may_be() -> None:
    made = relayed(in_flight_max=1)
    reading(made)
    made.exchanged([row(1), row(2)], 0)
    (sent,) = made.take(0)
    made.ended(sent, NOT_SENT, "", 0, 0)
    later_ms = made.next_due_ms()
    assert later_ms is not None
    assert made.take(later_ms)
    due_ms = made.next_due_ms()
    assert due_ms is None or due_ms > later_ms  # else a relay asks without a pause


def test_rows_of_a_shard_are_sent_no_longer_than_its_lease() -> None:
    made = relayed()
    made.own({0: 100, 1: 100})
    read(made, row(1, "k"), row(2, "k"), row(3, shard=1))
    assert made.take(99) == [1, 3]
    end(made, 1, CONFIRMED)
    assert made.take(100) == []
    assert not made.is_quiet(0)
    reading(made)
    made.exchanged([], 0)
    assert made.is_quiet(0)
    assert not made.is_quiet(1)


def test_waiting_rows_of_a_lost_shard_are_forgotten() -> None:
    made = relayed(in_flight_max=1)
    made.own({0: FOREVER_MS, 1: FOREVER_MS})
    read(made, row(1, "k"), row(2, "k"), row(3, shard=1))
    assert made.take(0) == [1]
    made.own({1: FOREVER_MS})
    assert made.held == 2, "the one that was sent, and that of the other shard"
    end(made, 1, CONFIRMED)
    assert made.take(0) == [3]
    made.own({0: FOREVER_MS, 1: FOREVER_MS})
    asked = reading(made)
    assert asked.delete == (1,)
    assert made.exchanged([row(2, "k")], 0) == [2]


def test_rows_of_a_shard_that_was_lost_while_they_were_read_are_not_taken() -> None:
    made = relayed()
    reading(made)
    made.own({1: FOREVER_MS})
    assert made.exchanged([row(1, shard=0)], 0) == []


def test_a_full_answer_is_followed_by_another_read_and_a_short_one_by_a_pause() -> None:
    made = relayed(batch=2)
    assert reading(made).limit == 2
    made.exchanged([row(1), row(2)], 0)
    assert made.next_due_ms() == 0
    assert reading(made).held == (1, 2)
    made.exchanged([], 0)
    assert made.exchange(99) is None
    assert made.next_due_ms() == 100
    assert made.exchange(100) is not None


def test_no_more_rows_are_held_than_allowed() -> None:
    made = relayed(batch=10, held_max=12)
    assert reading(made).limit == 10
    made.exchanged([row(n) for n in range(10)], 0)
    assert made.exchange(0) is None
    made.take(0)
    for number in range(4):
        end(made, number, CONFIRMED)
    asked = reading(made)
    assert asked.limit == 2
    assert len(asked.delete) == 4


def test_no_more_bytes_are_held_than_allowed_and_one_row() -> None:
    made = relayed(held_bytes_max=100)
    assert reading(made).bytes_max == 100
    made.exchanged([row(1, size=60), row(2, size=60)], 0)
    assert made.exchange(0) is None
    made.take(0)
    end(made, 1, CONFIRMED)
    assert reading(made).limit == 0
    made.exchanged([], 0)
    assert made.exchange(0) is None
    end(made, 2, CONFIRMED)
    made.exchange(0)
    made.exchanged([], 0)
    assert reading(made).bytes_max == 100, "the answer was full, so there may be more"


def test_a_key_with_many_rows_leaves_room_for_others() -> None:
    made = relayed(batch=KEY_ROWS_MAX, held_max=1_000)
    read(made, *(row(n, "hot") for n in range(KEY_ROWS_MAX)))
    assert reading(made).full == ("hot",)


def test_no_more_rows_are_in_flight_than_allowed() -> None:
    made = relayed(in_flight_max=2)
    read(made, row(1), row(2), row(3))
    assert made.take(0) == [1, 2]
    end(made, 1, CONFIRMED)
    assert made.take(0) == [3]


def test_rows_that_wait_for_a_home_that_is_away_take_up_no_room() -> None:
    made = relayed(in_flight_max=2)
    read(made, row(1), row(2), row(3), row(4))
    assert made.take(0) == [1, 2]
    assert made.is_full
    assert made.sent() == [1, 2]
    assert made.take(0, stuck=1) == [3]
    assert made.take(0, stuck=1) == []


def test_a_stop_ends_what_was_sent_and_begins_nothing() -> None:
    made = relayed()
    read(made, row(1), row(2, "k"), row(3, "k"))
    made.take(0)
    made.stop()
    end(made, 1, CONFIRMED)
    end(made, 2, CONFIRMED)
    assert made.take(0) == []
    asked = reading(made)
    assert (asked.delete, asked.limit) == ((1, 2), 0)
    made.exchanged([], 0)
    assert made.is_settled
    assert made.next_due_ms() is None


# Several relays, transactions, a broker: the oracle is what the broker stored.
@dataclass
class InTable:
    row: Row
    visible: bool = False
    not_before_ms: int = 0
    parked: bool = False


@dataclass
class World:
    """An outbox, a broker, and relays that do not even keep out of each other's way."""

    chance: random.Random
    kills: bool
    now_ms: int = 0
    ids: int = 0
    table: dict[int, InTable] = field(default_factory=dict)
    every: dict[int, Row] = field(default_factory=dict)
    parked: set[int] = field(default_factory=set)
    stored: list[int] = field(default_factory=list)
    rolled_back: set[int] = field(default_factory=set)
    open: dict[str, list[int]] = field(default_factory=dict)
    """Key -> rows of the transaction that holds its lock."""
    relays: list[Relaying] = field(default_factory=list)

    def add(self) -> None:
        key = self.chance.choice(["", "a", "b", "c"])
        self.ids += 1
        made = Row(self.ids, 0, key, 0, 0)
        self.table[self.ids] = InTable(made)
        self.every[self.ids] = made
        self.open.setdefault(key or f"none {self.ids}", []).append(self.ids)

    def end_transaction(self) -> None:
        if not self.open:
            return
        key = self.chance.choice(sorted(self.open))
        ids = self.open.pop(key)
        commits = self.chance.random() < 0.8
        for number in ids:
            if commits:
                self.table[number].visible = True
            else:
                del self.table[number]
                self.rolled_back.add(number)

    def store(self, number: int) -> None:
        assert number not in self.rolled_back, "a rolled-back row is published"
        key = self.every[number].key
        before = [n for n, r in self.every.items() if key and r.key == key and n < number]
        for each in before:
            done = each in self.stored or each in self.rolled_back or each in self.parked
            assert done, f"{number} before {each} of {key}"
        self.stored.append(number)

    def execute(self, asked: Exchange) -> list[Row]:
        for number in asked.delete:
            assert number in self.stored, "deleted before it was stored"
            self.table.pop(number, None)
        for failure in asked.failures:
            if (there := self.table.get(failure.id)) is not None:
                there.row = there.row._replace(attempts=failure.attempts)
                there.not_before_ms = self.now_ms + failure.wait_ms
                there.parked = failure.parked
                if failure.parked:
                    self.parked.add(failure.id)
        seen = [e for n, e in sorted(self.table.items()) if e.visible and not e.parked]
        late = {e.row.key: e.row.id for e in reversed(seen) if e.not_before_ms > self.now_ms}
        found = [
            e.row
            for e in seen
            if e.not_before_ms <= self.now_ms
            and e.row.id not in asked.held
            and e.row.key not in asked.full
            and not (e.row.key and late.get(e.row.key, e.row.id) < e.row.id)
        ]
        return found[: asked.limit]


class Relaying:
    """One relay of a world, with what is on its way between it, the table and the broker."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows = relayed(batch=3, held_max=8, in_flight_max=4)
        self.sent: list[int] = []
        self.confirms: list[int] = []
        self.asked: Exchange | None = None
        self.answer: Sequence[Row] | None = None

    def step(self, faults: bool) -> None:
        chance, world = self.world.chance, self.world
        if faults and chance.random() < 0.05:
            until_ms = world.now_ms + chance.choice([0, 50, 500])
            self.rows.own(chance.choice([ALL, {}, {0: until_ms}]))
        elif not faults:
            self.rows.own(ALL)
        match chance.randrange(5):
            case 0:
                self.sent += self.rows.take(world.now_ms)
            case 1 if self.sent:
                self._publish(self.sent.pop(chance.randrange(len(self.sent))), faults)
            case 2 if self.confirms:
                number = self.confirms.pop(chance.randrange(len(self.confirms)))
                self._end(number, CONFIRMED)
            case 3 if self.asked is None:
                self.asked = self.rows.exchange(world.now_ms)
            case 4 if self.asked is not None:
                self._exchange(faults)

    def _publish(self, number: int, faults: bool) -> None:
        how = self.world.chance.random() if faults else 1
        if how < 0.1:
            self._end(number, FAILED)
        elif how < 0.15:
            self._end(number, NOT_SENT)
        else:
            self.world.store(number)
            if how < 0.2 and self.world.kills:  # stored, and the confirm is lost, or one of two
                self._end(number, self.world.chance.choice([NOT_SENT, NO_SECOND]))
            else:
                self.confirms.append(number)

    def _exchange(self, faults: bool) -> None:
        assert self.asked is not None
        if self.answer is None:
            if faults and self.world.chance.random() < 0.1:
                self.asked = None
                self.rows.exchange_failed()
                return
            self.answer = self.world.execute(self.asked)
            return
        answer, self.asked, self.answer = self.answer, None, None
        if faults and self.world.chance.random() < 0.1:
            self.rows.exchange_failed()
        else:
            self.rows.exchanged(answer, self.world.now_ms)

    def _end(self, number: int, how: End) -> None:
        self.rows.ended(number, how, "", self.world.now_ms, self.world.chance.random())


def run(seed: int, relays: int, *, kills: bool) -> World:
    chance = random.Random(seed)
    world = World(chance, kills)
    world.relays = [Relaying(world) for _ in range(relays)]
    for _ in range(600):
        world.now_ms += chance.choice([0, 0, 1, 20, 300])
        what = chance.random()
        if what < 0.08 and world.ids < 40:
            world.add()
        elif what < 0.14:
            world.end_transaction()
        elif what < 0.15 and kills:
            world.relays[chance.randrange(relays)] = Relaying(world)
        else:
            chance.choice(world.relays).step(faults=True)
    while world.open:
        world.end_transaction()
    for _ in range(4_000):
        world.now_ms += 300
        chance.choice(world.relays).step(faults=False)
    return world


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 1 << 32), relays=st.integers(1, 3))
def test_every_committed_row_is_stored_or_parked_and_each_key_in_order(
    seed: int, relays: int
) -> None:
    world = run(seed, relays, kills=True)
    committed = world.every.keys() - world.rolled_back
    assert committed - set(world.stored) <= world.parked
    assert all(each.parked for each in world.table.values()), "nothing is left behind"
    for each in world.relays:
        assert each.rows.held == 0


@settings(max_examples=examples(50), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_one_relay_that_lives_and_hears_each_confirm_stores_each_row_once(seed: int) -> None:
    world = run(seed, 1, kills=False)
    assert len(world.stored) == len(set(world.stored)) == world.relays[0].rows.published
