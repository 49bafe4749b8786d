"""Snapshots of a cluster: changes, rates and totals between two."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.observing.changes import changes
from messagebus.observing.rates import SPAN_MAX_MS, Rates, broker_rates, row_rates
from messagebus.observing.snapshot import (
    Answer,
    Balancer,
    Bus,
    Client,
    Consumer,
    Kind,
    Loss,
    Mirror,
    Room,
    Server,
    Totals,
    answer_to_json,
    merged,
    read_answer,
    rows_of,
)
from messagebus.observing.totals import total, totals, uncounted
from tests.support.observed import NOW_MS, answer, bus, row, seen

FULL = answer(
    "mb1:5672",
    row("orders/billing", ready=3, consumers=2, oldest_ms=420),
    row("orders/billing", "park", ready=1, unacked=None, arrived=None, departed=None),
    clients=[Client(id="a@h", subscription="orders/billing", applied=0, age_ms=5)],
    room=Room(disk_free=9, disk_limit=1, memory_used=2, memory_limit=8, connections=4),
    totals=Totals(published=7),
    consumers=(
        Consumer(
            name="orders/billing", client="a@h", peer="h:1", prefetch=9, owed=None, active=True
        ),
    ),
    mirror=Mirror(copies=2, connected=True, alone=False),
    losses=(Loss(wanted="orders", what="queue", name="mb.x", noticed_at_ms=5, repaired=True),),
)


def told(answer: Answer) -> Any:
    return json.loads(json.dumps(answer_to_json(answer, NOW_MS)))


def test_an_answer_is_read_back_as_it_was() -> None:
    assert read_answer(told(FULL), received_at_ms=NOW_MS) == FULL


def test_ages_do_not_depend_on_the_clock_of_the_agent() -> None:
    read = read_answer({**told(FULL), "at_ms": 1}, received_at_ms=NOW_MS + 9_000)
    first = read.rows["orders/billing", "sub"]
    assert first.oldest_ms(NOW_MS + 9_000) == 420
    assert read.counted_age_ms(first, NOW_MS + 10_000) == 1_000


def test_columns_may_stand_in_another_order_with_others_between() -> None:
    value = told(FULL)
    value["columns"] = ["new", *reversed(value["columns"])]
    value["queues"] = [["?", *reversed(each)] for each in value["queues"]]
    assert read_answer({**value, "more": 1}, received_at_ms=NOW_MS) == FULL


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (["broker"], 1),
        (["state"], []),
        (["state", "verdict"], ["ready"]),
        (["state", "version"], True),
        (["state", "missing"], ["a", 1]),
        (["state", "mirror", "copies"], "2"),
        (["room"], {}),
        (["columns"], ["name"]),
        (["queues"], [["orders", "sub"]]),
        (["queues", 0, 0], None),
        (["queues", 0, 1], "x"),
        (["queues", 0, 2], -1),
        (["queues", 0, 3], "0"),
        (["queues", 0, 8], None),
        (["clients", 0, "applied"], None),
        (["clients", 0, "id"], "x" * 5_000),
        (["counted_ms"], 1.5),
    ],
)
def test_an_answer_that_is_none_is_told_so(path: list[Any], wrong: Any) -> None:
    value = place = told(FULL)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    with pytest.raises(ValueError, match=r"wanted|not a |missing|not in list"):
        read_answer(value, received_at_ms=NOW_MS)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(key=st.sampled_from(sorted(answer_to_json(FULL, NOW_MS))), value=anything)
def test_no_answer_raises_anything_but_value_error(key: str, value: Any) -> None:
    with contextlib.suppress(ValueError):
        read_answer({**told(FULL), key: value}, received_at_ms=NOW_MS)


def test_rows_that_are_not_repeated_stay_within_one_life() -> None:
    part = answer("mb1:5672", row("orders/billing", ready=9), whole=False)
    assert merged(FULL, part).rows["orders/billing", "sub"].ready == 9
    assert ("orders/billing", "park") in merged(FULL, part).rows
    other = answer("mb1:5672", row("orders/billing"), whole=False, life="b")
    assert merged(FULL, other) == other
    assert merged(None, part) == part
    assert len(merged(FULL, answer("mb1:5672", row("orders/billing"))).rows) == 1


def test_an_unchanged_row_is_as_young_as_the_last_count_of_all() -> None:
    part = answer("mb1:5672", whole=False, at_ms=NOW_MS + 60_000)
    both = merged(FULL, part)
    kept = both.rows["orders/billing", "sub"]
    assert both.counted_age_ms(kept, NOW_MS + 61_000) == 1_000
    assert both.swept_at(kept) == NOW_MS + 60_000
    assert kept.oldest_ms(NOW_MS + 61_000) == 61_420


def test_the_age_of_an_empty_queue_is_0_and_one_that_is_not_known_is_none() -> None:
    assert row("orders/billing", oldest_ms=500).oldest_ms(NOW_MS) == 0
    assert row("orders/billing", ready=1).oldest_ms(NOW_MS) is None
    assert row("orders/billing", unacked=None).oldest_ms(NOW_MS) == 0


def test_a_silent_broker_is_named_and_has_no_rows() -> None:
    well = seen("mb1:5672", row("orders/billing", ready=3))
    silent = seen("mb2:5672", row("orders/audit", ready=4), fault="timed out")
    both = bus(well, silent)
    assert both.silent == ("mb2:5672",)
    assert list(both.answers) == ["mb1:5672"]
    assert rows_of(both, "orders/audit") == {}
    assert both.sources == ("orders/audit", "orders/billing")
    assert both.find("mb2:5672") is silent
    assert both.find("mb3:5672") is None


def test_clients_behind_are_those_with_an_older_list() -> None:
    assert [each.id for each in FULL.clients_behind] == ["a@h"]


BILLING = "orders/billing"
LOST = Loss(wanted=BILLING, what="queue", name="mb.sub/x", noticed_at_ms=1, repaired=False)


def told_bus(**more: Any) -> Bus:
    consumers, is_away = more.pop("consumers", 1), more.pop("away", False)
    found = seen("mb1", row(BILLING, consumers=consumers), **more)
    return bus(replace(found, is_refused_for_broker=is_away))


@pytest.mark.parametrize(
    ("old", "new", "kind", "text"),
    [
        ({}, {"fault": "timed out"}, "agent", "agent does not answer: timed out"),
        ({"fault": "timed out"}, {}, "agent", "agent answers again"),
        ({}, {"verdict": "down", "reason": "no link"}, "broker", "is down: no link"),
        ({}, {"fault": "x", "away": True}, "broker", "does not answer its agent"),
        ({"fault": "x", "away": True}, {}, "broker", "answers its agent again"),
        ({"verdict": "down"}, {}, "broker", "is ready"),
        (
            {},
            {"verdict": "drain", "draining": "x", "reason": "x"},
            "broker",
            "is draining: x",
        ),
        ({}, {"topology": "t2", "entries": 3}, "topology", "topology changed: 3 names; before: 1"),
        ({}, {"losses": (LOST,)}, "loss", "queue mb.sub/x was deleted"),
        (
            {"losses": (LOST,)},
            {"losses": (replace(LOST, repaired=True),)},
            "loss",
            "queue mb.sub/x was recreated",
        ),
        ({}, {"consumers": 0}, "consumers", "lost its last consumer on mb1"),
        ({"consumers": 0}, {}, "consumers", "got its first consumer on mb1"),
        ({}, {"consumers": 2}, "", ""),
        ({}, {}, "", ""),
    ],
)
def test_one_change_is_one_event(
    old: dict[str, Any], new: dict[str, Any], kind: str, text: str
) -> None:
    found = [(each.kind, each.text) for each in changes(told_bus(**old), told_bus(**new))]
    assert found == ([(kind, text)] if kind else [])


def test_a_new_list_says_who_came_and_who_left() -> None:
    old, new = bus(seen("mb1"), seen("mb2")), replace(bus(seen("mb2"), seen("mb3")), generation=2)
    assert [each.text for each in changes(old, new)] == [
        "consumer list generation 2: mb3 added, mb1 removed"
    ]


def test_a_balancer_that_judges_otherwise_is_told() -> None:
    old, new = (
        bus(balancers=[Balancer(url="http://lb1", servers=(Server(name="mb1", status=status),))])
        for status in ("UP", "DOWN")
    )
    (event,) = changes(old, new)
    assert (event.about, event.text) == ("mb1", "is DOWN at http://lb1; before: UP")


def test_nothing_is_told_of_a_broker_without_an_earlier_answer() -> None:
    old = bus(replace(seen("mb1"), last=None, fault="not asked yet"))
    assert [each.kind for each in changes(old, told_bus(verdict="down"))] == ["agent"]


KEY: tuple[str, str, Kind] = ("mb1:5672", "orders/billing", "sub")


def at(ms: int, arrived: int | None, departed: int | None, **more: Any) -> Bus:
    name, now_ms = "orders/billing", NOW_MS + ms
    one = row(name, arrived=arrived, departed=departed, swept_at_ms=now_ms, counted_at_ms=now_ms)
    return bus(seen("mb1:5672", one, at_ms=now_ms, **more), at_ms=now_ms)


step = st.tuples(
    st.integers(0, 50),  # come
    st.integers(0, 50),  # leave
    st.integers(1, 90_000),  # ms since the step before
    st.booleans(),  # the broker restarts before it
    st.booleans(),  # its agent is silent
)


@given(st.lists(step, min_size=2, max_size=20))
def test_a_rate_is_what_came_in_the_time_or_nothing(
    steps: list[tuple[int, int, int, bool, bool]],
) -> None:
    """The oracle has every message with its time; rates must agree with it wherever they exist."""
    now_ms, life, came, left = 0, 0, 0, 0
    last: tuple[Bus, int, bool] | None = None
    for come, leave, ms, restarts, silent in steps:
        now_ms += ms
        if restarts:
            life, came, left = life + 1, 0, 0
        came, left = came + come, left + leave
        told = at(now_ms, came, left, life=str(life), fault="timed out" if silent else "")
        if last is not None:
            old, old_life, old_silent = last
            found = row_rates(old, told).get(KEY)
            if silent or old_silent or old_life != life or ms > SPAN_MAX_MS:
                assert found is None
            else:
                assert found is not None
                assert found.came * ms / 1000 == pytest.approx(come)
                assert found.left * ms / 1000 == pytest.approx(leave)
        last = told, life, silent


def test_two_looks_at_one_sweep_have_no_rate() -> None:
    assert row_rates(at(0, 1, 1), at(0, 1, 1)) == {}


def test_counters_that_are_not_known_have_no_rate() -> None:
    assert row_rates(at(0, None, None), at(1_000, 5, 5)) == {}
    assert row_rates(at(0, 5, 5), at(1_000, 4, 5)) == {}


def test_an_unchanged_row_that_was_not_sent_again_has_a_rate_of_0() -> None:
    old = at(0, 5, 5)
    last = old.brokers[0].last
    assert last
    later = replace(last, swept_at_ms=NOW_MS + 5_000)
    new = replace(old, brokers=(replace(old.brokers[0], last=later),))
    assert row_rates(old, new) == {KEY: Rates(0.0, 0.0)}


def test_a_broker_has_rates_of_its_own() -> None:
    def told(ms: int, **totals: int) -> Bus:
        one = answer("mb1:5672", at_ms=NOW_MS + ms, totals=Totals(**totals))
        return bus(replace(seen("mb1:5672"), last=one))

    old, new = told(0, published=10, acked=5), told(2_000, published=30, acked=5)
    assert broker_rates(old, new) == {"mb1:5672": Rates(10.0, 0.0)}
    rates = broker_rates(old, new)["mb1:5672"]
    assert rates.came - rates.left == 10.0
    assert broker_rates(new, old) == {}
    assert broker_rates(bus(seen("mb1:5672")), new) == {}


NAMES = ("orders/billing", "orders/audit", "queue:jobs")
rows = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(
        st.integers(0, 9),
        st.none() | st.integers(0, 9),
        st.integers(0, 3),
        st.none() | st.integers(1, 9_000),
        st.integers(0, 4),
    ),
)
brokers = st.lists(st.tuples(rows, st.booleans(), st.booleans()), min_size=1, max_size=6)


@given(brokers)
def test_a_sum_is_of_exactly_the_brokers_that_are_counted(
    told: list[tuple[dict[str, tuple[int, int | None, int, int | None, int]], bool, bool]],
) -> None:
    """The oracle adds one by one over brokers that answer and are linked."""
    all_seen = [
        seen(
            f"mb{number}:5672",
            *(
                row(
                    name,
                    "queue" if ":" in name else "sub",
                    ready=r,
                    unacked=u,
                    consumers=c,
                    oldest_ms=age,
                )
                for name, (r, u, c, age, _) in has.items()
            ),
            *(row(name, "park", ready=parked) for name, (*_, parked) in has.items()),
            fault="timed out" if silent else "",
            linked=linked,
        )
        for number, (has, silent, linked) in enumerate(told)
    ]
    observed = bus(*all_seen)
    by_name = totals(observed)
    for name in NAMES:
        good = [has[name] for has, silent, linked in told if not silent and linked and name in has]
        found = by_name.get(name) or total(observed, [name])
        assert found.ready == sum(r for r, *_ in good)
        known = [u for _, u, *_ in good if u is not None]
        assert found.unacked == (sum(known) if known else None)
        assert found.consumers == sum(c for _, _, c, _, _ in good)
        assert found.parked == sum(parked for *_, parked in good)
        ages = [age if r + (u or 0) else 0 for r, u, _, age, _ in good]
        known_ages = [age for age in ages if age is not None]
        assert found.oldest_ms == max(known_ages, default=None)
        assert set(found.without) == {
            f"mb{number}:5672"
            for number, (_, silent, linked) in enumerate(told)
            if silent or not linked
        }
        assert len(found.unconsumed) == sum(not c for _, _, c, _, _ in good)
    everything = total(observed)
    assert everything.ready == sum(each.ready for each in by_name.values())
    assert bool(everything.coverage) == bool(uncounted(observed))


def test_a_sum_says_what_it_is_of() -> None:
    observed = bus(
        seen("mb1:5672", row("orders/billing", ready=3, oldest_ms=500)),
        seen("mb2:5672", row("orders/billing", ready=4, oldest_ms=900), linked=False),
        seen("mb3:5672", row("orders/billing", ready=5, oldest_ms=900), fault="timed out"),
    )
    found = total(observed)
    assert (found.waiting, found.oldest_ms, found.oldest_on) == (3, 500, "mb1:5672")
    assert found.coverage == "on 1 of 3 brokers, without mb2:5672, mb3:5672"
    assert found.without["mb3:5672"] == "timed out"


def test_what_only_silent_brokers_had_is_named_and_not_counted() -> None:
    observed = bus(
        seen("mb1:5672"), seen("mb2:5672", row("orders/audit", ready=5), fault="timed out")
    )
    assert totals(observed)["orders/audit"].ready == 0
    assert totals(observed)["orders/audit"].coverage
    assert totals(observed)["orders/audit"].oldest_ms is None


def test_rates_are_summed_where_they_are_known() -> None:
    observed = bus(seen("mb1:5672", row("orders/billing")), seen("mb2:5672", row("orders/billing")))
    key: tuple[str, str, Kind] = ("mb1:5672", "orders/billing", "sub")
    rates = {key: Rates(2.0, 1.0)}
    found = totals(observed, rates)["orders/billing"]
    assert (found.came, found.left) == (2.0, 1.0)
    assert total(observed).came is None
