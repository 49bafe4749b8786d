"""One answer and one bus: read from JSON, merged, and asked."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus_tools.observing.snapshot import (
    Answer,
    Client,
    Consumer,
    Loss,
    Mirror,
    Room,
    Totals,
    answer_to_json,
    bus_to_json,
    merged,
    read_answer,
    rows_of,
)
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


def test_the_json_of_a_bus_names_silence_and_keeps_the_last_answer() -> None:
    value = bus_to_json(bus(seen("mb1:5672", row("orders/billing", ready=3), fault="timed out")))
    (only,) = json.loads(json.dumps(value))["brokers"]
    assert (only["fault"], only["silent_ms"]) == ("timed out", 0)
    assert only["last"]["queues"][0][:3] == ["orders/billing", "sub", 3]


def test_clients_behind_are_those_with_an_older_list() -> None:
    assert [each.id for each in FULL.clients_behind] == ["a@h"]
