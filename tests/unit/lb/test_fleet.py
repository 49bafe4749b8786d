from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from inventory.inventory import Balancer, Inventory
from lb import fleet, runtime
from lb.errors import BalancerUnreachable, LbError, NotReached
from lb.fleet import Fleet
from lb.runtime import ServerState
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
    assert "lb2: HAProxy knows no server 'mb1': see `lb apply`" in seen.but(lambda state: False)


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
    return dataclasses.replace(read, more=(far,))


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
        assert reached.away == {"lb2": "SSH: no route"}
        assert list(reached.sockets) == ["haproxy"]
