"""Agreement of wanted entries with existing ones."""

from __future__ import annotations

from typing import Any

import pytest

from messagebus.errors import NameInvalid
from messagebus.topology import Options
from messagebus_agent.topology.agreement import resolve
from messagebus_agent.topology.register import Entry

WEAK: Options = {"durability": "page-cache"}


def there(alive: bool = True, /, **options: Any) -> dict[str, Entry]:
    return {
        name: Entry(
            wanted=name,
            number=1,
            origin="A",
            alive=alive,
            tomb=0,
            options=tuple(sorted(asked.items())),
        )
        for name, asked in options.items()
    }


def test_a_new_name_gets_what_is_asked() -> None:
    asked: dict[str, Options] = {"orders": {}, "queue:jobs": WEAK, "delay:1000": {}}
    assert resolve({}, asked) == (asked, {})


def test_what_is_dead_binds_nobody() -> None:
    taken, against = resolve(there(False, **{"queue:jobs": WEAK}), {"queue:jobs": {}})
    assert (taken, against) == ({"queue:jobs": {}}, {})


def test_what_lives_keeps_its_options() -> None:
    entries = there(**{"orders/a": {"single_active": True, "durability": "none"}})
    asked: dict[str, Options] = {"orders/a": {}}
    assert resolve(entries, asked)[0]["orders/a"] == {"single_active": True, "durability": "none"}


def test_another_level_is_told_with_both() -> None:
    taken, against = resolve(there(**{"queue:jobs": WEAK}), {"queue:jobs": {}, "orders": {}})
    assert taken == {"orders": {}}
    assert against == {"queue:jobs": "queue:jobs: durability is wanted fsync and exists page-cache"}


@pytest.mark.parametrize("at_once", [True, False])
def test_a_subscription_takes_its_topics_level(at_once: bool) -> None:
    asked: dict[str, Options] = {"orders/a": {"expires_s": 5}}
    entries = {} if at_once else there(orders=WEAK)
    if at_once:
        asked["orders"] = WEAK
    taken, against = resolve(entries, asked)
    assert taken["orders/a"] == {"expires_s": 5, "durability": "page-cache"}
    assert not against


def test_no_subscription_may_be_weaker_than_its_topic() -> None:
    _, against = resolve(there(orders={}), {"orders/a": WEAK})
    assert against == {
        "orders/a": "orders/a: durability is wanted page-cache and its topic exists fsync"
    }
    _, against = resolve(there(**{"orders/a": WEAK}), {"orders": {}})
    assert against == {
        "orders": "orders: durability is wanted fsync and its subscription orders/a exists page-cache"
    }
    assert resolve(there(**{"orders/a": {}}), {"orders": WEAK})[1] == {}
    assert resolve(there(**{"orders/a": WEAK}), {"order": {}})[1] == {}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(NameInvalid):
        resolve({}, {"orders": {"expires_s": 5}})


def test_a_delivery_limit_needs_quorum_queues_and_so_does_its_topic() -> None:
    taken, against = resolve(there(orders=WEAK), {"orders/a": {"delivery_limit": 3}})
    assert taken == {}
    assert against == {
        "orders/a": "orders/a: delivery_limit needs durability fsync and its topic exists page-cache"
    }
    assert resolve(there(orders={}), {"orders/a": {"delivery_limit": 3}})[1] == {}
