"""Plans for a broker."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus_agent.broker.plan import Declare, DeleteExchange, DeleteQueue, Step, plan, unsure_of
from messagebus_agent.topology.register import Entry
from tests.support.examples import examples


def entry(wanted: str, number: int = 1, *, alive: bool = True, tomb: int = 0) -> Entry:
    return Entry(wanted=wanted, number=number, origin="A", alive=alive, tomb=tomb)


def steps(
    *entries: Entry,
    brought: tuple[Entry, ...] = (),
    births: dict[str, int | None] | None = None,
    floor: int = 0,
) -> list[Step]:
    by_name = {each.wanted: each for each in entries}
    done = {each.wanted: each for each in brought}
    return list(plan(by_name, brought=done, births=births or {}, floor=floor))


def declared(found: list[Step]) -> list[str]:
    return [step.entry.wanted for step in found if isinstance(step, Declare)]


def deleted(found: list[Step]) -> list[str]:
    return [step.name for step in found if isinstance(step, DeleteQueue | DeleteExchange)]


def test_what_lives_is_declared_with_its_number() -> None:
    (step,) = steps(entry("orders/billing", 7))
    assert isinstance(step, Declare)
    assert [queue.name for queue in step.declarations.queues] == [
        "mb.park/orders/billing",
        "mb.sub/orders/billing",
    ]
    assert {queue.arguments["mb-born"] for queue in step.declarations.queues} == {7}


def test_what_is_there_needs_nothing() -> None:
    assert steps(entry("orders"), brought=(entry("orders"),)) == []


def test_a_new_number_is_brought_about_again() -> None:
    assert declared(steps(entry("orders", 3), brought=(entry("orders", 1),))) == ["orders"]


def test_a_queue_of_an_earlier_life_is_deleted_before_it_is_declared() -> None:
    found = steps(entry("queue:jobs", 9, tomb=8), births={"mb.queue/jobs": 3, "mb.park/jobs": None})
    assert found[0] == DeleteQueue("mb.queue/jobs")
    assert declared(found[1:]) == ["queue:jobs"]
    assert deleted(found) == ["mb.queue/jobs"]


def test_a_queue_of_this_life_is_kept() -> None:
    births: dict[str, int | None] = {"mb.queue/jobs": 9, "mb.park/jobs": 9}
    assert deleted(steps(entry("queue:jobs", 9, tomb=8), births=births)) == []


def test_what_is_dead_is_deleted_with_its_parking_queue() -> None:
    found = steps(entry("orders/billing", 2, alive=False, tomb=2))
    assert deleted(found) == ["mb.park/orders/billing", "mb.sub/orders/billing"]


def test_an_exchange_goes_with_the_last_that_needs_it() -> None:
    topic = entry("orders", 3, alive=False, tomb=3)
    living, dead = entry("orders/a"), entry("orders/a", 4, alive=False, tomb=4)
    assert "mb.topic/orders" not in deleted(steps(topic, living))
    assert "mb.topic/orders" in deleted(steps(topic, dead, brought=(topic, living)))


def test_publishers_of_before_find_the_exchange_that_they_know_while_they_are_served() -> None:
    entries = {name: entry(name) for name in ("queue:jobs", "orders/a")}
    brought: dict[str, Entry] = {}
    for old_publishers in (False, True):
        found = plan(entries, brought=brought, births={}, floor=0, old_publishers=old_publishers)
        made = [step.declarations for step in found if isinstance(step, Declare)]
        exchanges = {exchange.name for each in made for exchange in each.exchanges}
        links = {(each.exchange, each.queue) for one in made for each in one.bindings}
        assert ("mb.queue/jobs" in exchanges) is old_publishers
        assert (("mb.queue/jobs", "mb.queue/jobs") in links) is old_publishers
        assert ("mb.to/jobs", "mb.queue/jobs") in links


def test_an_exchange_without_an_entry_of_its_own_stays() -> None:
    dead = entry("orders/a", 4, alive=False, tomb=4)
    assert "mb.topic/orders" not in deleted(steps(dead))


def test_queues_of_forgotten_names_are_deleted() -> None:
    births: dict[str, int | None] = {
        "mb.sub/orders/old": 3,
        "mb.sub/orders/new": 8,
        "mb.sub/orders/unmarked": None,
        "amq.gen-x": 1,
        "mb.queue/jobs": 2,
        "mb.park/jobs": 2,
    }
    found = steps(entry("queue:jobs", 2), births=births, floor=5)
    assert deleted(found) == ["mb.sub/orders/old"]


def test_births_are_needed_for_names_that_had_an_earlier_life() -> None:
    first, again = entry("orders"), entry("orders", 3, tomb=2)
    assert not unsure_of({"orders": first}, brought={}, held={})
    assert unsure_of({"orders": again}, brought={}, held={}) == [again]
    assert not unsure_of({"orders": again}, brought={"orders": again}, held={})
    assert not unsure_of({"orders": again}, brought={}, held={"orders": again.number})
    assert unsure_of({"orders": again}, brought={}, held={"orders": again.number - 1}) == [again]


NAMES = ("orders", "orders/a", "orders/b", "queue:jobs")
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        name: st.builds(
            entry, st.just(name), st.integers(5, 9), alive=st.booleans(), tomb=st.integers(0, 9)
        )
        for name in NAMES
    },
)
QUEUES = ("mb.sub/orders/a", "mb.park/orders/a", "mb.sub/orders/b", "mb.queue/jobs")


@settings(max_examples=examples(300), deadline=None)
@given(
    entries=ENTRIES,
    births=st.dictionaries(st.sampled_from(QUEUES), st.none() | st.integers(1, 9)),
)
def test_after_all_steps_the_broker_has_what_lives_and_nothing_of_an_earlier_life(
    entries: dict[str, Entry], births: dict[str, int | None]
) -> None:
    queues = dict(births)
    exchanges = {"mb.topic/orders"}
    for step in plan(entries, brought={}, births=births, floor=0):
        match step:
            case DeleteQueue(name):
                queues.pop(name, None)
            case DeleteExchange(name):
                exchanges.discard(name)
            case Declare(made, wanted):
                exchanges |= {exchange.name for exchange in wanted.exchanges}
                for queue in wanted.queues:
                    queues.setdefault(queue.name, made.number)
    for name, one in entries.items():
        main = f"mb.{name.replace(':', '/')}" if ":" in name else f"mb.sub/{name}"
        if "/" not in name and ":" not in name:
            continue
        assert (main in queues) == one.alive, name
        if one.alive and one.tomb <= one.number and births.get(main) is not None:
            born = queues[main]
            assert born is not None
            assert born >= one.tomb
    if any(one.alive for name, one in entries.items() if name.startswith("orders")):
        assert "mb.topic/orders" in exchanges
