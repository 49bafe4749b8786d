from __future__ import annotations

from typing import Any

from messagebus.topology import LADDER, declarations, parse_wanted
from ops.cluster.topology import Difference, differences, foreign, latest, newer_than, wanted_items


def entry(wanted: str, number: int, *, alive: bool = True, **options: Any) -> dict[str, Any]:
    return {
        "wanted": wanted,
        "number": number,
        "origin": "a:1",
        "alive": alive,
        "tomb": 0,
        "changed_at_ms": 0,
        **options,
    }


def test_the_newest_word_counts_also_when_it_is_a_deletion() -> None:
    maps = {
        "mb1": {"orders": entry("orders", 3), "jobs": entry("jobs", 1)},
        "mb2": {"orders": entry("orders", 4, alive=False)},
    }
    assert {name: each["number"] for name, each in latest(maps).items()} == {"orders": 4, "jobs": 1}
    assert newer_than(maps["mb1"], maps["mb2"]) == ["orders"]
    assert newer_than(maps["mb2"], maps["mb1"]) == ["jobs"]
    assert differences(maps, {}, {}) == [
        Difference("mb1", "orders", "is deleted: its agent has an older word"),
        Difference("mb2", "jobs", "is wanted: its agent does not know"),
    ]


def test_agents_that_know_the_same_and_brokers_that_have_it_differ_in_nothing() -> None:
    maps = {name: {"orders": entry("orders", 3)} for name in ("mb1", "mb2")}
    settled = {name: {"mb.sub/orders/a": True} for name in maps}
    queues = {name: {"mb.sub/orders/a": 5, "mine": 1, "mb.settle": 0} for name in maps}
    assert differences(maps, settled, queues) == []


def test_a_queue_that_is_missing_and_one_that_nobody_wants_are_told() -> None:
    found = differences(
        {}, {"mb1": {"mb.sub/orders/a": False}}, {"mb1": {"mb.sub/orders/old": 1200}}
    )
    assert [str(each) for each in found] == [
        "mb1: mb.sub/orders/a is not there, or not settled",
        "mb1: mb.sub/orders/old is wanted by nobody; it holds 1,200 messages",
    ]


def test_agents_are_asked_for_what_is_alive_with_its_options() -> None:
    entries = [entry("orders/a", 1, single_active=True), entry("gone", 2, alive=False)]
    assert wanted_items(entries) == [{"name": "orders/a", "single_active": True}]


def test_a_binding_that_nobody_wants_is_told() -> None:
    entries = {name: entry(name, 1) for name in ("orders", "orders/a", "queue:jobs", "delay:1000")}
    wanted = [
        (each.exchange, each.queue, each.routing_key)
        for name in entries
        for each in (*declarations(parse_wanted(name)).bindings, *LADDER.bindings)
    ]
    others = [("", "mb.sub/orders/a", "mb.sub/orders/a"), ("mine", "my.queue", "")]
    marked = [("mb.settled/mb.queue/jobs", "mb.queue/jobs", "")]
    assert list(foreign("mb1", entries, [*wanted, *others, *marked])) == []
    strange = [("mb.topic/orders", "mb.queue/jobs", ""), ("mb.out", "mb.sub/orders/a", "mb.to/x")]
    before = [("mb.queue/jobs", "mb.queue/jobs", "")]
    assert list(foreign("mb1", entries, [*wanted, *before], old_publishers=True)) == []
    assert [str(each) for each in foreign("mb1", entries, [*wanted, *strange, *before])] == [
        "mb1: exchange mb.out leads to mb.sub/orders/a under mb.to/x, and nobody wants that",
        "mb1: exchange mb.queue/jobs is of an earlier version: "
        "delete it when no publisher needs it any more",
        "mb1: exchange mb.topic/orders leads to mb.queue/jobs, and nobody wants that",
    ]
