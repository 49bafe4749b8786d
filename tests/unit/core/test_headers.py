"""core.headers: which headers are the brokers', and which of them a broker can count on."""

from __future__ import annotations

import pytest

from messagebus.core.headers import OF_BROKERS, has_strange_deaths

DEATH = {"queue": "q", "reason": "rejected", "exchange": "", "count": 1, "routing-keys": ["q"]}


@pytest.mark.parametrize(
    "name", ["x-death", "x-first-death-queue", "CC", "BCC", "x-delivery-count"]
)
def test_what_brokers_route_or_count_by_is_theirs_by_its_whole_name(name: str) -> None:
    assert name in OF_BROKERS
    assert f"{name}s" not in OF_BROKERS
    assert name.swapcase() not in OF_BROKERS


@pytest.mark.parametrize(
    "deaths",
    [
        None,
        "a text, which a broker replaces",
        [],
        [DEATH, DEATH | {"queue": "p"}],
        # As clients write it again that publish a message with the headers with which it came.
        [{"queue": "q", "reason": "expired"}],
    ],
)
def test_a_broker_dead_letters_what_it_can_count_on(deaths: object) -> None:
    assert not has_strange_deaths({"x-death": deaths})
    assert not has_strange_deaths({})


@pytest.mark.parametrize(
    "death",
    [
        "a",
        None,
        7,
        ["q"],
        {},
        DEATH | {"queue": 7},
        DEATH | {"reason": None},
        DEATH | {"count": "1"},
    ],
)
def test_one_strange_entry_is_enough_to_stop_a_broker(death: object) -> None:
    assert has_strange_deaths({"x-death": [DEATH, death]})
