from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from messagebus.broker import BrokerList
from ops import checks
from ops.step import Blocked
from ops.view import Queue, View


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


class Broker:
    """Queues as a broker's statistics would show them, look by look."""

    def __init__(self, *looks: list[Queue], holds: set[str] | None = None) -> None:
        self.looks = list(looks)
        self.holds = holds or set()
        self.now = 0.0

    def queues(self, _name: str) -> list[Queue]:
        self.now += 1.0
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def holds_message(self, _name: str, queue: str) -> bool:
        return queue in self.holds

    def emptying(self, interval_s: float = 1.5) -> checks.Emptying:
        clock = lambda: self.now  # noqa: E731
        return checks.Emptying(cast(View, self), "mb2", interval_s=interval_s, clock=clock)


def test_empty_is_believed_after_an_interval_and_a_get() -> None:
    check = Broker([queue("a")]).emptying()
    assert [check(), check(), check()] == ["counted empty, looking again"] * 2 + [""]


def test_a_message_between_two_zeros_begins_the_wait_anew() -> None:
    broker = Broker([queue("a")], [queue("a", 1, consumers=1)], [queue("a")])
    check = broker.emptying()
    assert "looking again" in check()
    assert "1 messages left" in check()
    assert "looking again" in check()
    assert "looking again" in check()
    assert check() == ""


def test_a_get_that_finds_a_message_beats_the_counts() -> None:
    check = Broker([queue("a")], holds={"a"}).emptying(interval_s=0)
    check()
    assert check() == "a was counted empty and is not"
    assert "looking again" in check()


def test_an_uncounted_queue_is_not_empty() -> None:
    check = Broker([queue("a", None)]).emptying(interval_s=0)
    assert {check() for _ in range(5)} == {"counts are not there yet"}


def test_progress_has_rate_and_estimate() -> None:
    broker = Broker([queue("a", 1000, 1)], [queue("a", 900, 1)], [queue("a", 800, 1)])
    check = broker.emptying()
    assert check() == "1,000 messages left"
    assert check() == "900 messages left, 100/s, about 9 s"
    assert check() == "800 messages left, 100/s, about 8 s"


def test_a_queue_without_consumers_is_reported_not_waited_for() -> None:
    check = Broker([queue("a"), queue("parked", 7)]).emptying()
    check()
    check()
    with pytest.raises(Blocked, match=r"no consumer for parked \(7 messages\)"):
        check()


def test_a_queue_without_consumers_is_reported_when_the_others_are_empty() -> None:
    busy = [queue("a", 5, 1), queue("parked", 7)]
    check = Broker(*[busy] * 10, [queue("a", 0, 1), queue("parked", 7)]).emptying()
    assert all("left" in check() for _ in range(12))
    with pytest.raises(Blocked, match="parked"):
        check()


class Connections:
    """Who is connected to a broker by its statistics, look by look: client -> whether it consumes."""

    def __init__(self, *looks: dict[str, bool]) -> None:
        self.looks = list(looks)
        self.now = 0.0

    def client_connections(self, _name: str) -> dict[str, bool]:
        self.now += 1.0
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    @property
    def listed(self) -> BrokerList:
        return BrokerList.parse("# generation: 3\nmb1:5672\n")

    def clients(self) -> list[object]:
        return []

    def left_by(self, who: str, interval_s: float) -> Callable[[], str]:
        make = getattr(checks, f"left_by_{who}")
        return cast(
            Callable[[], str], make(self, "mb2", interval_s=interval_s, clock=lambda: self.now)
        )


@pytest.mark.parametrize("who", ["publishers", "clients"])
def test_nobody_connected_is_believed_after_an_interval(who: str) -> None:
    check = Connections({}).left_by(who, 1.5)
    answers = [check(), check(), check()]
    assert all("looking again" in answer for answer in answers[:2])
    assert answers[2] == ""


def test_a_publisher_that_statistics_show_late_begins_the_wait_anew() -> None:
    check = Connections({}, {"p": False}, {}).left_by("publishers", 1.5)
    assert "looking again" in check()
    assert check() == "1 connections that may publish"
    assert "looking again" in check()
    assert "looking again" in check()
    assert check() == ""


def test_those_that_consume_are_no_publishers_and_are_clients() -> None:
    consumers = Connections({"c": True})
    assert consumers.left_by("publishers", 0)() != "1 connections that may publish"
    assert consumers.left_by("clients", 0)() == "1 connections of clients"


# -- delayed messages


def test_delayed_messages_are_waited_for_and_told() -> None:
    held = [queue("mb.delay/7200000", 3), queue("mb.delay/1000", 2), queue("a", 1, consumers=1)]
    broker = Broker(*[held] * 9, [queue("mb.delay/7200000")])
    check = broker.emptying()
    told = [check() for _ in range(9)]
    assert told[0] == "6 messages left; 5 of them delayed, 2 h at most"
    assert "looking again" in check()


def test_a_queue_without_consumers_is_reported_while_delayed_messages_wait() -> None:
    check = Broker([queue("parked", 7), queue("mb.delay/604800000", 1)]).emptying()
    check()
    check()
    with pytest.raises(Blocked, match=r"no consumer for parked \(7 messages\)"):
        check()


def test_a_delayed_message_that_does_not_leave_is_reported() -> None:
    check = Broker([queue("mb.delay/10000", 4)]).emptying()
    assert all("4 of them delayed, 10 s at most" in check() for _ in range(71))
    with pytest.raises(Blocked, match=r"mb.delay/10000 \(4 messages\) held them for longer"):
        check()


def test_delayed_messages_are_counted_with_the_longest_step() -> None:
    assert checks.delayed([queue("a", 5), queue("mb.delay/1000", None)]) == (0, 0.0)
    held = [queue("mb.delay/1000", 2), queue("mb.delay/60000", 3), queue("mb.delay/120000")]
    assert checks.delayed(held) == (5, 60.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1.0, "1 s"), (60.0, "1 min"), (3600.0, "1 h"), (86400.0, "1 day"), (604800.0, "7 days")],
)
def test_a_step_is_told_in_its_own_unit(seconds: float, words: str) -> None:
    assert checks.in_words(seconds) == words
