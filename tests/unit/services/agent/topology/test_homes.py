"""The homes of partitions: who chooses them, what follows for a broker, and when publishes may enter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from messagebus.services.agent.broker.plan import (
    Declare,
    DeleteExchange,
    DeleteQueue,
    Seal,
    plan,
    wanted_of,
)
from messagebus.services.agent.topology.homes import chosen, expanded, homes_of, with_segments
from messagebus.services.agent.topology.register import Entry, Options, Register, Snapshot

A, B, C = BROKERS = ("a:5672", "b:5672", "c:5672")
HOMES = "a:5672 b:5672 c:5672"
REST = "c:5672 c:5672 c:5672"  # homes of partitions 1 to 3


def topic(number: int = 1, *, alive: bool = True, homes: str = HOMES) -> Entry:
    return Entry(
        wanted="orders",
        number=number,
        origin=A,
        alive=alive,
        tomb=0,
        options=(("homes", homes), ("partitions", 4)),
    )


def billing(number: int = 2, *, alive: bool = True) -> Entry:
    options = (("partitions", 4),) if alive else ()
    return Entry(
        wanted="orders/billing", number=number, origin=A, alive=alive, tomb=0, options=options
    )


def stream(number: int = 5, *, alive: bool = True) -> Entry:
    return replace(billing(number), wanted="stream:orders", alive=alive, tomb=4)


def found(me: str, *entries: Entry, is_open: bool = True) -> dict[str, Entry]:
    return dict(expanded({each.wanted: each for each in entries}, me, lambda _: is_open))


def test_all_brokers_are_homes_begun_at_a_place_of_the_name() -> None:
    firsts = {chosen(f"t{number}", BROKERS).split()[0] for number in range(20)}
    assert firsts == set(BROKERS)
    assert sorted(chosen("orders", BROKERS).split()) == sorted(BROKERS)
    assert [home.broker for home in homes_of(topic())] == [A, B, C, A]


def test_a_broker_has_the_segments_whose_home_it_is() -> None:
    names = found(A, topic(), billing())
    assert set(names) == {
        "orders",
        "orders/billing",
        "orders#0.1",
        "orders#3.1",
        "orders/billing#0.1",
        "orders/billing#3.1",
    }
    assert set(found("d:5672", topic(), billing())) == {"orders", "orders/billing"}
    assert set(with_segments(names, ["orders"])) == {"orders", "orders#0.1", "orders#3.1"}


def test_all_subscriptions_hang_on_the_one_binding_of_a_segment() -> None:
    names = found(B, topic(), billing())
    (part,) = wanted_of(names["orders#1.1"]).bindings
    assert (part.exchange, part.queue) == ("mb.part/orders", "mb.seg/orders/1.1")
    assert (part.routing_key, part.to_exchange) == ("1.1", True)
    below = wanted_of(names["orders/billing#1.1"])
    assert [queue.name for queue in below.queues] == ["mb.seg/orders/billing/1.1"]
    assert below.queues[0].arguments["x-single-active-consumer"] is True
    assert below.queues[0].arguments["x-dead-letter-routing-key"] == "mb.park/orders/billing"
    assert [each.exchange for each in below.bindings] == ["mb.seg/orders/1.1"]


def test_until_it_is_open_a_segment_has_its_queues_and_no_way_in() -> None:
    names = found(A, topic(), billing(), is_open=False)
    assert "orders#0.1" not in names
    assert "orders/billing#0.1" in names


def test_a_stream_hangs_on_each_segment_of_its_broker_and_on_nothing_else() -> None:
    names = found(A, topic(), stream())
    assert set(with_segments(names, ["stream:orders"])) == {
        "stream:orders",
        "stream:orders#0.1",
        "stream:orders#3.1",
    }
    whole = wanted_of(names["stream:orders"])
    assert [(each.name, each.type) for each in whole.exchanges] == [("mb.part/orders", "direct")]
    assert whole.bindings == ()
    for segment in ("0.1", "3.1"):
        part = wanted_of(names[f"stream:orders#{segment}"])
        assert part.queues == whole.queues
        (binding,) = part.bindings
        assert (binding.exchange, binding.queue) == (
            f"mb.seg/orders/{segment}",
            "mb.stream/orders",
        )


def test_a_stream_of_an_earlier_life_is_deleted_once_and_takes_no_exchange_along() -> None:
    names = found(A, topic(), stream())
    born: dict[str, int | None] = {"mb.stream/orders": 3}
    steps = plan(names, brought={}, births=born, floor=0)
    assert [each for each in steps if not isinstance(each, Declare)] == [
        DeleteQueue("mb.stream/orders")
    ]
    names = found(A, topic(), stream(6, alive=False))
    gone = plan(names, brought={}, births=born, floor=0)
    assert {each for each in gone if not isinstance(each, Declare)} == {
        DeleteQueue("mb.stream/orders")
    }


def test_a_subscription_without_order_is_one_queue_that_hangs_on_each_segment() -> None:
    options = (("ordered", False), ("partitions", 4))
    names = found(A, topic(), replace(billing(), options=options))
    whole = wanted_of(names["orders/billing"])
    assert [each.name for each in whole.queues] == [
        "mb.park/orders/billing",
        "mb.sub/orders/billing",
    ]
    assert [each.exchange for each in whole.bindings] == ["mb.out"]  # due messages come back
    for segment in ("0.1", "3.1"):
        part = wanted_of(names[f"orders/billing#{segment}"])
        assert [each.name for each in part.queues] == ["mb.sub/orders/billing"]
        assert [each.exchange for each in part.bindings] == [f"mb.seg/orders/{segment}"]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_subscription_made_again_without_order_or_with_it_leaves_no_queue_of_before(
    is_ordered: bool,
) -> None:
    """A queue that nobody reads, and that is still bound, would grow for ever."""
    options: tuple[tuple[str, int | bool], ...] = (("partitions", 4),)
    if not is_ordered:
        options = (("ordered", False), *options)
    again = replace(billing(6), tomb=5, options=options)
    old = ["mb.sub/orders/billing"]
    if not is_ordered:
        old = ["mb.group/orders/billing", "mb.seg/orders/billing/0.1"]
    others: dict[str, int | None] = {"mb.seg/orders/billing2/0.1": 3, "mb.sub/orders/other": 3}
    steps = plan(
        found(A, topic(), again), brought={}, births=others | dict.fromkeys(old, 3), floor=0
    )
    assert {each for each in steps if not isinstance(each, Declare)} == set(map(DeleteQueue, old))
    young = plan(
        found(A, topic(), again), brought={}, births=others | dict.fromkeys(old, 6), floor=0
    )
    assert all(isinstance(each, Declare) for each in young)


def test_what_is_deleted_takes_its_segments_along() -> None:
    names = found(A, topic(), billing(3, alive=False))
    assert not names["orders/billing#0.1"].alive
    names = found(A, topic(4, alive=False), billing())
    assert not names["orders/billing#0.1"].alive
    assert not names["orders#0.1"].alive


# Two agents that make one topic at the same time.


class Agents:
    """Agents with the real register, which read each other's maps in any order."""

    def __init__(self, rng: random.Random, opens: Callable[[Register, Entry], bool]) -> None:
        self.rng, self._opens = rng, opens
        whole = Snapshot(intact=True)
        self.registers = {name: Register(name, whole) for name in BROKERS}
        self.opened: set[str] = set()
        for register in self.registers.values():
            register.voters.listed(BROKERS)

    def read(self, reader: str, peer: str) -> None:
        register = self.registers[reader]
        register.heard(peer, self.registers[peer].snapshot, life=register.voters.life)

    def make(self, name: str) -> None:
        others = self.rng.sample([each for each in BROKERS if each != name], 1)
        self.read(name, others[0])
        own: Options = {"homes": f"{name} {HOMES}", "partitions": 4}
        self.registers[name].change(
            ["orders"], alive=True, answered=others, options={"orders": own}
        )

    def look(self, name: str) -> None:
        register = self.registers[name]
        entry = register.entries.get("orders")
        if entry is not None and self._opens(register, entry):
            self.opened.add(str(dict(entry.options)["homes"]))

    def run(self) -> set[str]:
        makers = self.rng.sample(BROKERS, 2)
        steps: list[Callable[[], None]] = []
        for _ in range(25):
            reader, peer = self.rng.sample(BROKERS, 2)
            steps += [partial(self.read, reader, peer), partial(self.look, reader)]
        for maker in makers:
            steps.insert(self.rng.randrange(12), partial(self.make, maker))
        for step in steps:
            step()
        return self.opened


def by_majority(register: Register, entry: Entry) -> bool:
    """Return whether a majority holds the entry, which is not enough."""
    others = [each for each in BROKERS if each != register.me]
    held = sum(
        entry in register.voters.maps[each].entries
        for each in others
        if each in register.voters.maps
    )
    return 1 + held >= 2


def test_never_are_two_choices_of_homes_opened() -> None:
    opened = [Agents(random.Random(seed), Register.is_unanimous).run() for seed in range(400)]
    assert max(map(len, opened)) == 1
    assert sum(map(len, opened)) > 100


def test_with_a_majority_two_choices_would_be() -> None:
    opened = [Agents(random.Random(seed), by_majority).run() for seed in range(400)]
    assert max(map(len, opened)) == 2


@pytest.mark.parametrize("lacking", ["not heard", "not intact", "another"])
def test_one_agent_that_lacks_the_very_entry_is_enough_to_wait(lacking: str) -> None:
    register = Register(A, Snapshot(intact=True, entries=(topic(),)))
    register.voters.listed(BROKERS)
    register.heard(B, Snapshot(intact=True, entries=(topic(),)), life=register.voters.life)
    if lacking == "not intact":
        register.heard(C, Snapshot(intact=False, entries=(topic(),)), life=register.voters.life)
    if lacking == "another":
        register.heard(C, Snapshot(intact=True, entries=()), life=register.voters.life)
    assert not register.is_unanimous(topic())
    register.heard(C, Snapshot(intact=True, entries=(topic(),)), life=register.voters.life)
    assert register.is_unanimous(topic())


def test_a_sealed_segment_is_unbound_and_keeps_its_queues() -> None:
    names = found(A, topic(homes=f"{A}>2@{B} {REST}"), billing())
    steps = plan(names, brought={}, births={}, floor=0)
    (seal,) = [each for each in steps if isinstance(each, Seal)]
    assert seal.declarations.bindings[0].routing_key == "0.1"
    declared = [each.entry.wanted for each in steps if isinstance(each, Declare)]
    assert "orders/billing#0.1" in declared
    assert "orders#0.1" not in declared
    unsealed = expanded(
        {each.wanted: each for each in (topic(homes=f"{A}>2@{B} {REST}"), billing())},
        A,
        lambda _: True,
        {"orders#0.1"},
    )
    assert unsealed["orders#0.1"].alive


def test_the_next_home_binds_its_segment_before_it_is_open() -> None:
    names = found(B, topic(homes=f"{A}>2@{B} {REST}"), billing(), is_open=False)
    assert names["orders#0.2"].alive
    assert names["orders/billing#0.2"].alive


def test_a_finished_segment_goes_with_its_queue() -> None:
    queue = "mb.seg/orders/billing/0.1"
    births: dict[str, int | None] = {queue: 2, "mb.seg/orders/billing/1.1": 2}
    names = found(A, topic(homes=f"{A},2@{B} {REST}"), billing())
    assert DeleteQueue(queue) not in plan(names, brought={}, births=births, floor=0)
    names = found(A, topic(homes=f"2@{B} {REST}"), billing())
    steps = plan(names, brought={}, births=births, floor=0)
    gone = [each for each in steps if isinstance(each, DeleteQueue | DeleteExchange)]
    assert gone == [DeleteQueue(queue), DeleteExchange("mb.seg/orders/0.1")]


def test_a_lost_home_that_is_back_is_unbound_and_emptied_of_its_segments_and_of_nothing_else() -> (
    None
):
    unordered = replace(
        billing(), wanted="orders/search", options=(("ordered", False), ("partitions", 4))
    )
    names = found(
        A, topic(homes=f"3@{B}/!{A} {REST}"), billing(), unordered, stream(), is_open=False
    )
    steps = plan(names, brought={}, births={}, floor=0)  # nobody could list its queues
    (seal,) = [each for each in steps if isinstance(each, Seal)]
    assert seal.declarations.bindings[0].routing_key == "0.1"
    gone = [each for each in steps if isinstance(each, DeleteQueue | DeleteExchange)]
    assert gone == [DeleteQueue("mb.seg/orders/billing/0.1")]
    assert not any("#0.1" in n for n in found(C, topic(homes=f"3@{B}/!{A} {REST}"), billing()))


def test_a_map_that_is_behind_takes_no_move_back() -> None:
    register = Register(A, Snapshot(intact=True, entries=(topic(homes=f"2@{B} {REST}"),)))
    register.receive(Snapshot(intact=True, entries=(topic(homes=f"{A}>2@{B} {REST}"),)))
    assert dict(register.entries["orders"].options)["homes"] == f"2@{B} {REST}"
    register.receive(Snapshot(intact=True, entries=(topic(2, homes=f"2@{B}>3@{C} {REST}"),)))
    register.receive(Snapshot(intact=True, entries=(topic(3, homes=f"{A} {REST}"),)))
    assert register.entries["orders"].number == 3
    assert dict(register.entries["orders"].options)["homes"] == f"2@{B}>3@{C} {REST}"
