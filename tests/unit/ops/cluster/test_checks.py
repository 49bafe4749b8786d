from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from messagebus.broker import BrokerList
from ops.cluster import checks
from ops.cluster.checks import Steady, some
from ops.cluster.management import Connection, Queue
from ops.cluster.view import View
from ops.errors import NoAnswer
from ops.run.plan import Blocked


def queue(name: str, messages: int | None = 0, consumers: int = 0) -> Queue:
    return Queue(name=name, messages=messages, consumers=consumers)


def test_a_queue_consumed_elsewhere_must_be_consumed_here() -> None:
    elsewhere = [queue("a", consumers=2), queue("b", consumers=1), queue("parked")]
    assert checks.unattached([queue("a", consumers=1), queue("b")], elsewhere) == ["b"]
    assert checks.unattached([], elsewhere) == ["a", "b"]
    assert checks.unattached([queue("a", consumers=1), queue("b", consumers=9)], elsewhere) == []


def test_an_agent_is_behind_in_what_any_other_knows_later() -> None:
    old, new = (3, "a:1", True), (4, "b:1", False)
    maps = {
        "mb1": {"orders": old, "orders/billing": new},
        "mb2": {"orders": old, "orders/billing": old, "orders/crm": old},
        "mb4": {"orders": old, "orders/billing": old},
    }
    assert checks.behind(maps, "mb4") == ["orders/billing", "orders/crm"]
    assert checks.behind(maps, "mb1") == ["orders/crm"]
    assert checks.behind({"mb4": {}}, "mb4") == []


class Connections:
    """Clients of a broker by its statistics, look by look: client -> whether it consumes."""

    def __init__(self, *looks: dict[str, bool]) -> None:
        self.looks = list(looks)
        self.now = 0.0
        self.consumed: list[Queue] = []

    def connections(self, _name: str) -> list[Connection]:
        self.now += 1.0
        return [
            Connection(name=name, user="bus", client=name, consumes=consumes)
            for name, consumes in (
                self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
            ).items()
        ]

    @property
    def listed(self) -> BrokerList:
        return BrokerList.parse("# generation: 3\nmb1:5672\n")

    def clients(self) -> list[object]:
        return []

    @property
    def brokers(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="mb1")]

    def queues(self, _name: str) -> list[Queue]:
        return self.consumed

    def left_by(self, who: str, interval_s: float) -> Callable[[], str]:
        make = checks.left_by_publishers if who == "publishers" else checks.nobody_is_connected
        view = cast(View, self)
        check = make(view, "mb2", interval_s=interval_s, clock=lambda: self.now)
        return check if who == "publishers" else checks.left_by_clients(view, check)


@pytest.mark.parametrize("who", ["publishers", "clients"])
def test_nobody_connected_is_believed_after_an_interval(who: str) -> None:
    check = Connections({}).left_by(who, 1.5)
    answers = [check(), check(), check()]
    assert all("looking again" in answer for answer in answers[:2])
    assert answers[2] == ""


def test_a_publisher_that_statistics_show_late_begins_the_wait_anew() -> None:
    check = Connections({}, {"p": False}, {}).left_by("publishers", 1.5)
    assert "looking again" in check()
    assert check() == "1 connection that may publish: p (user bus)"
    assert "looking again" in check()
    assert "looking again" in check()
    assert check() == ""


def test_those_that_consume_are_no_publishers_and_are_clients() -> None:
    consumers = Connections({"c": True})
    assert consumers.left_by("publishers", 0)() == "none that may publish, looking again"
    assert consumers.left_by("clients", 0)() == "1 connection of clients: c (user bus)"


def test_a_broker_that_answers_is_not_dead() -> None:
    class Half:
        def queues(self, _name: str) -> list[Queue]:
            raise NoAnswer("management of mb2 does not answer")

        def health(self, _name: str) -> dict[str, str]:
            return {"verdict": "down"}

    with pytest.raises(Blocked, match="the agent of mb2 answers"):
        checks.is_dead(cast(View, Half()), "mb2")()


def test_nobody_on_the_list_proves_nothing_while_somebody_consumes() -> None:
    there = Connections({})
    check = there.left_by("clients", 0.5)
    there.consumed = [queue("a", consumers=2), queue("b")]
    told = "no client asks for the list, and somebody consumes from a"
    assert [check() for _ in range(3)] == [told] * 3
    attached = checks.applied_and_attached(cast(View, there), "mb1")
    assert attached() == told
    there.consumed = [queue("a")]
    assert check() == ""
    assert attached() == ""


def test_one_look_proves_nothing_and_two_an_interval_apart_do() -> None:
    now = 0.0
    steady = Steady(1.5, lambda: now)
    assert not steady.holds()
    now = 1.5
    assert not steady.holds()
    now = 1.6
    assert steady.holds()


def test_what_was_otherwise_meanwhile_begins_anew() -> None:
    now = 0.0
    steady = Steady(1.5, lambda: now)
    steady.holds()
    steady.broken()
    now = 5.0
    assert not steady.holds()


def test_many_names_are_told_as_a_few_and_a_number() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some([str(n) for n in range(9)]) == "0, 1, 2, 3, 4 and 4 more"
