from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from inventory.inventory import Balancer, Inventory
from lb import fleet, runtime
from lb.apply import Applied
from lb.errors import ApplyFailed, BalancerUnreachable, LbError, NotReached
from lb.fleet import Fleet
from lb.hosts import Machine
from lb.runtime import ServerState
from messagebus.errors import ConfigError
from tests.support.balancer import UP, inventory

LONELY = dataclasses.replace(UP, agent="L4TOUT")
ONE, TWO = Path("one"), Path("two")


class Balancers:
    """Two admin sockets; the second may be gone, deaf to orders, or not know the broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shows: dict[Path, dict[str, ServerState]] = {
            ONE: {"mb1": LONELY},
            TWO: {"mb1": LONELY},
        }
        self.gone: set[Path] = set()
        self.deaf: set[Path] = set()
        self.orders: list[Path] = []
        monkeypatch.setattr(runtime, "servers", self._servers)
        monkeypatch.setattr(
            runtime, "maint", lambda s, _, *, on: self._order(s, verdict="maint" if on else "up")
        )
        monkeypatch.setattr(runtime, "set_drain", lambda s, _, *, on: self._order(s, drained=on))
        monkeypatch.setattr(runtime, "set_weight", lambda s, _, w: self._order(s, weight=w))

    def _servers(self, socket: Path) -> dict[str, ServerState]:
        if socket in self.gone:
            raise BalancerUnreachable("nobody")
        return self.shows[socket]

    def _order(self, socket: Path, **what: object) -> None:
        if socket in self.gone:
            raise BalancerUnreachable("nobody")
        self.orders.append(socket)
        if socket not in self.deaf:
            changed = dataclasses.replace(self.shows[socket]["mb1"], **what)  # type: ignore[arg-type]
            self.shows[socket] = {"mb1": changed}


@pytest.fixture
def balancers(monkeypatch: pytest.MonkeyPatch) -> Balancers:
    return Balancers(monkeypatch)


BOTH = Fleet({"lb1": ONE, "lb2": TWO})


def test_an_order_reaches_every_balancer_and_is_read_back(balancers: Balancers) -> None:
    assert fleet.set_weight(BOTH, "mb1", 7).everywhere(lambda state: state.weight == 7)
    assert fleet.maint(BOTH, "mb1", on=True).shown["lb2"].verdict == "maint"
    assert fleet.maint(BOTH, "mb1", on=False).shown["lb2"].verdict == "up"
    assert fleet.set_drain(BOTH, "mb1", on=True).shown["lb1"].drained
    assert len(balancers.orders) == 8


@pytest.mark.parametrize("fault", ["gone", "deaf"])
def test_a_balancer_that_does_not_follow_is_named_and_the_other_one_did(
    balancers: Balancers, fault: str
) -> None:
    getattr(balancers, fault).add(TWO)
    with pytest.raises(NotReached, match="mb1 is not of weight 7 on every balancer: lb2: ") as told:
        fleet.set_weight(BOTH, "mb1", 7)
    assert "lb1" not in str(told.value)
    assert balancers.shows[ONE]["mb1"].weight == 7


def test_a_balancer_that_does_not_know_the_broker_is_told(balancers: Balancers) -> None:
    balancers.shows[TWO] = {}
    seen = BOTH.look("mb1")
    assert not seen.everywhere(lambda state: True)
    assert "lb2: HAProxy knows no server 'mb1': see `lb apply`" in seen.differing(
        lambda state: False
    )


def test_nothing_is_ordered_by_hand_where_some_balancer_hears_the_agent(
    balancers: Balancers,
) -> None:
    balancers.shows[TWO] = {"mb1": UP}
    for order in (fleet.maint, fleet.set_drain):
        with pytest.raises(LbError, match="the agent of mb1 answers lb2 and would undo it"):
            order(BOTH, "mb1", on=True)
    assert balancers.orders == []


def two_balancers() -> Inventory:
    read = inventory()
    far = dataclasses.replace(read.balancer, name="lb2", host="front2")
    return dataclasses.replace(read, balancers=(read.balancer, far))


def test_a_balancer_of_another_host_is_reached_over_its_socket_here() -> None:
    @contextmanager
    def open_socket(balancer: Balancer) -> Iterator[Path]:
        assert balancer.host == "front2"
        yield TWO

    read = two_balancers()
    with fleet.opened(read, open_socket) as reached:
        assert reached == Fleet({"haproxy": read.balancer.socket, "lb2": TWO}, {})


def test_a_host_that_is_away_hides_no_other(balancers: Balancers) -> None:
    def open_socket(_: Balancer) -> AbstractContextManager[Path]:
        raise BalancerUnreachable("SSH: no route")

    with fleet.opened(two_balancers(), open_socket) as reached:
        assert reached.unreachable == {"lb2": "SSH: no route"}
        assert list(reached.sockets) == ["haproxy"]


DONE = Applied(changed=True, reloaded=True, pid=7)


class Fronts:
    """Three balancers. away: cannot be reached; refuses: its HAProxy; fails: the new one does not serve."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = inventory()
        more = [dataclasses.replace(read.balancer, name=f"lb{number}") for number in (2, 3)]
        self.read = dataclasses.replace(read, balancers=(read.balancer, *more))
        self.away = self.refuses = self.fails = ""
        self.log: list[str] = []
        monkeypatch.setattr(fleet, "check", self._check)
        monkeypatch.setattr(fleet, "apply", self._apply)

    @contextmanager
    def connect(self, balancer: Balancer) -> Iterator[Machine]:
        if balancer.name == self.away:
            raise BalancerUnreachable("no route")
        yield cast(Machine, None)

    def _check(self, read: Inventory, _place: Machine) -> None:
        self.log.append(f"check {read.balancer.name}")
        if read.balancer.name == self.refuses:
            raise ConfigError("HAProxy refuses the configuration: x")

    def _apply(self, read: Inventory, _place: Machine, *, reload: bool = False) -> Applied:
        self.log.append(f"apply {read.balancer.name}")
        if read.balancer.name == self.fails:
            raise ApplyFailed("it did not serve; the one before is back")
        return DONE

    def apply_all(self) -> list[Any]:
        return list(fleet.apply_all(self.read, self.connect))


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
        fleet.check_all(fronts.read, fronts.connect)
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
    assert fleet.apply_absent(fronts.read, fronts.connect, second) == DONE
    fronts.away = "lb2"
    assert fleet.apply_absent(fronts.read, fronts.connect, second) == "no route"
