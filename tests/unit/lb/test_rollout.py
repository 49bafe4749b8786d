from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from inventory.inventory import Balancer, Inventory
from lb import rollout
from lb.apply import Applied
from lb.errors import ApplyFailed, BalancerUnreachable
from lb.place import Place
from messagebus.errors import ConfigError
from tests.support.balancer import inventory

DONE = Applied(changed=True, reloaded=True, pid=7)


class Fronts:
    """Three balancers. away: cannot be reached; refuses: its HAProxy; fails: the new one does not serve."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = inventory()
        more = [dataclasses.replace(read.balancer, name=f"lb{number}") for number in (2, 3)]
        self.read = dataclasses.replace(read, more=tuple(more))
        self.away = self.refuses = self.fails = ""
        self.log: list[str] = []
        monkeypatch.setattr(rollout, "check", self._check)
        monkeypatch.setattr(rollout, "apply", self._apply)

    @contextmanager
    def reach(self, balancer: Balancer) -> Iterator[Place]:
        if balancer.name == self.away:
            raise BalancerUnreachable("no route")
        yield cast(Place, None)

    def _check(self, read: Inventory, _place: Place) -> None:
        self.log.append(f"check {read.balancer.name}")
        if read.balancer.name == self.refuses:
            raise ConfigError("HAProxy refuses the configuration: x")

    def _apply(self, read: Inventory, _place: Place, *, reload: bool = False) -> Applied:
        self.log.append(f"apply {read.balancer.name}")
        if read.balancer.name == self.fails:
            raise ApplyFailed("it did not serve; the one before is back")
        return DONE

    def apply_all(self) -> list[Any]:
        return list(rollout.apply_all(self.read, self.reach))


@pytest.fixture
def fronts(monkeypatch: pytest.MonkeyPatch) -> Fronts:
    return Fronts(monkeypatch)


def test_all_are_checked_before_the_first_is_touched_then_one_by_one(fronts: Fronts) -> None:
    assert [(balancer.name, done) for balancer, done in fronts.apply_all()] == [
        ("haproxy", DONE),
        ("lb2", DONE),
        ("lb3", DONE),
    ]
    assert fronts.log == [
        *("check haproxy", "check lb2", "check lb3"),
        *("apply haproxy", "apply lb2", "apply lb3"),
    ]


def test_one_that_refuses_leaves_all_as_they_were(fronts: Fronts) -> None:
    fronts.refuses = "lb3"
    with pytest.raises(ConfigError, match=r"^lb3: HAProxy refuses"):
        fronts.apply_all()
    assert not [each for each in fronts.log if each.startswith("apply")]


def test_one_that_is_away_leaves_all_as_they_were(fronts: Fronts) -> None:
    fronts.away = "lb2"
    with pytest.raises(ApplyFailed, match=r"^lb2: no route"):
        fronts.apply_all()
    with pytest.raises(ApplyFailed, match=r"^lb2: no route"):
        rollout.check_all(fronts.read, fronts.reach)
    assert not [each for each in fronts.log if each.startswith("apply")]


def test_after_one_that_does_not_serve_no_other_is_touched(fronts: Fronts) -> None:
    fronts.fails = "lb2"
    with pytest.raises(ApplyFailed, match=r"^lb2: .* is back; not touched: lb3$"):
        fronts.apply_all()
    assert "apply lb3" not in fronts.log


def test_a_fault_of_the_inventory_asks_nobody(fronts: Fronts) -> None:
    fronts.read = dataclasses.replace(fronts.read, brokers=())
    with pytest.raises(ConfigError, match="no broker in the inventory"):
        fronts.apply_all()
    assert fronts.log == []


def test_one_that_is_said_to_be_dead_gets_its_files_where_its_host_is_there(fronts: Fronts) -> None:
    second = fronts.read.find_balancer("lb2")
    assert rollout.apply_absent(fronts.read, fronts.reach, second) == DONE
    fronts.away = "lb2"
    assert rollout.apply_absent(fronts.read, fronts.reach, second) == "no route"
