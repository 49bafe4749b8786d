"""Brokers that are emptied, and brokers that are away."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inventory.errors import CommandFailed
from messagebus.errors import ConfigError
from ops.cluster import emptying
from ops.cluster.absent import dead_balancers, find_absent
from ops.cluster.emptying import Emptying
from ops.cluster.management import Connection, Queue
from ops.cluster.members import Absent
from ops.cluster.view import View
from ops.commands.supervise import LocalNodes
from ops.errors import NoAnswer, OpsError
from ops.run.plan import Blocked, Command
from tests.support.fake_view import OneForAll


def queue(name: str, messages: int | None = 0, consumers: int = 0) -> Queue:
    return Queue(name=name, messages=messages, consumers=consumers)


class Broker(OneForAll):
    """Queues as a broker's statistics would show them, look by look."""

    def __init__(self, *looks: list[Queue], holds: set[str] | None = None) -> None:
        self.looks = list(looks)
        self.holds = holds or set()
        self.now = 0.0

    def all_queues(self, _name: str) -> list[Queue]:
        self.now += 1.0
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def holds_message(self, _name: str, queue: Queue) -> bool | None:
        return None if queue.single_active else queue.name in self.holds

    def connections(self, _name: str) -> list[Connection]:
        return [Connection(name="1", user="bus", client="dead", unacked=3)]

    def emptying(self, interval_s: float = 1.5, **more: Any) -> Emptying:
        clock = lambda: self.now  # noqa: E731
        return Emptying(cast(View, self), "mb2", interval_s=interval_s, clock=clock, **more)


def test_empty_is_believed_after_an_interval_and_a_get() -> None:
    check = Broker([queue("a")]).emptying()
    assert [check(), check(), check()] == ["counted empty, checking again"] * 2 + [""]


def test_a_message_between_two_zeros_begins_the_wait_anew() -> None:
    broker = Broker([queue("a")], [queue("a", 1, consumers=1)], [queue("a")])
    check = broker.emptying()
    assert "checking again" in check()
    assert "1 message left" in check()
    assert "checking again" in check()
    assert "checking again" in check()
    assert check() == ""


def test_a_get_that_finds_a_message_beats_the_counts() -> None:
    check = Broker([queue("a")], holds={"a"}).emptying(interval_s=0)
    check()
    assert check() == "a was counted empty and is not"
    assert "checking again" in check()


def test_an_uncounted_queue_is_not_empty() -> None:
    check = Broker([queue("a", None)]).emptying(interval_s=0)
    assert {check() for _ in range(5)} == {"counts are not there yet"}


def test_progress_has_rate_and_estimate() -> None:
    broker = Broker([queue("a", 1000, 1)], [queue("a", 900, 1)], [queue("a", 800, 1)])
    check = broker.emptying()
    assert check() == "1,000 messages left"
    assert check() == "900 messages, 100/s, 9.0 s left"
    assert check() == "800 messages, 100/s, 8.0 s left"


def test_a_queue_without_consumers_is_reported_not_waited_for() -> None:
    check = Broker([queue("a"), queue("parked", 7)]).emptying()
    check()
    check()
    with pytest.raises(Blocked, match=r"no consumer for parked \(7 messages\)"):
        check()


def test_a_queue_without_consumers_is_reported_while_others_still_drain() -> None:
    check = Broker([queue("a", 5, 1), queue("parked", 7)]).emptying()
    check()
    check()
    with pytest.raises(Blocked, match=r"parked .*or run this again with --move-remaining"):
        check()


def test_what_nobody_reads_is_foreseen_and_nothing_that_moves() -> None:
    moving = [queue("a", 5, 1), queue("mb.delay/604800000", 2), queue("mb.stream/orders", 9)]
    for held, told in ((moving, ""), ([*moving, queue("mb.park/a", 7)], "(messagebus parked)")):
        fault = emptying.all_read(cast(View, Broker(held)), "mb2")()
        assert fault.startswith("no consumer for mb.park/a (7 messages)" if told else "")
        assert told in fault
        assert bool(fault) is bool(told)


def test_what_is_moved_later_is_not_waited_for() -> None:
    rest = [queue("parked", 7), queue("mb.delay/604800000", 2)]
    broker = Broker(*[[queue("a", 5, 1), *rest]] * 3, [queue("a", 0, 1), *rest])
    check = broker.emptying(moves=True)
    assert check() == "14 messages left; 2 of them delayed, 7 days at most; 7 to be moved"
    assert check()
    assert check()
    assert check() == ""


def test_what_was_moved_a_moment_ago_may_still_be_counted() -> None:
    check = Broker(*[[queue("a", 5)]] * 6, [queue("a")]).emptying(unread_within_s=6)
    for _ in range(6):
        assert "5 messages left" in check()
    assert "counted empty" in check()


def test_a_consumer_that_is_counted_late_is_believed_before_anything_is_moved() -> None:
    waiting = [queue("a", 5)]
    broker = Broker(waiting, [queue("a", 5, 1)], waiting)
    check = broker.emptying(moves=True)
    assert all(check() for _ in range(4))


def test_deliveries_that_nobody_answers_are_told_with_who_keeps_them() -> None:
    check = Broker([queue("a", 3, 1)]).emptying(held_within_s=10)
    assert all(check() for _ in range(12))
    with pytest.raises(
        Blocked, match=r"nothing leaves a \(3 messages\) .* dead \(user bus, holds 3"
    ):
        check()


def test_who_was_hung_up_on_a_moment_ago_may_still_be_counted() -> None:
    held, given_back = [queue("a", 3, 1)], [queue("a", 3)]
    for lag in range(6):  # as statistics do that are up to an interval old
        broker = Broker(*[held] * lag, given_back)
        check = broker.emptying(interval_s=5, moves=True, held_within_s=1)
        while check():
            pass
        assert not check.is_held


def test_who_keeps_deliveries_may_be_left_to_be_hung_up_on() -> None:
    check = Broker([queue("a", 3, 1)]).emptying(held_within_s=10, may_be_held=True)
    assert all(check() for _ in range(12))
    assert check() == ""
    assert check.is_held


def test_a_slow_worker_that_gets_on_is_not_taken_for_a_dead_one() -> None:
    looks = [[queue("a", 9 - at // 8, 1)] for at in range(64)]
    check = Broker(*looks).emptying(held_within_s=10)
    assert all(check() for _ in range(64))


def test_the_proof_is_what_was_counted() -> None:
    check = Broker([queue("a", 3, 1)], [queue("a", 1, 1)], [queue("a", 0, 1)]).emptying(0)
    while check():
        pass
    assert check.taken() == "3 messages taken by their consumers"
    assert check.proof() == "0 messages are left in 1 queue, counted twice and tried"


def test_delayed_messages_are_waited_for_and_told() -> None:
    held = [queue("mb.delay/7200000", 3), queue("mb.delay/1000", 2), queue("a", 1, consumers=1)]
    broker = Broker(*[held] * 9, [queue("mb.delay/7200000")])
    check = broker.emptying()
    told = [check() for _ in range(9)]
    assert told[0] == "6 messages left; 5 of them delayed, 2 h at most"
    assert "checking again" in check()


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
    assert emptying.delayed([queue("a", 5), queue("mb.delay/1000", None)]) == (0, 0.0)
    held = [queue("mb.delay/1000", 2), queue("mb.delay/60000", 3), queue("mb.delay/120000")]
    assert emptying.delayed(held) == (5, 60.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1.0, "1 s"), (60.0, "1 min"), (3600.0, "1 h"), (86400.0, "1 day"), (604800.0, "7 days")],
)
def test_a_step_is_told_in_its_own_unit(seconds: float, words: str) -> None:
    assert emptying.in_words(seconds) == words


def test_messages_of_another_virtual_host_are_named_whoever_moves() -> None:
    legacy = Queue(name="legacy", messages=10, consumers=0, vhost="other")
    for moves in (False, True):
        check = Broker([queue("a"), legacy]).emptying(interval_s=0, moves=moves)
        assert "10 messages left" in check()
        with pytest.raises(Blocked, match=r"no consumer for legacy of vhost other \(10 messages\)"):
            check()


def test_a_stream_is_told_at_once_because_it_keeps_what_is_read() -> None:
    stream = Queue(name="log", messages=3, consumers=1, kind="stream")
    with pytest.raises(Blocked, match=r"log \(3 messages\) keep what is read"):
        Broker([stream]).emptying()()


def test_where_no_get_can_be_had_counts_are_believed_and_that_is_said() -> None:
    alone = Queue(name="asac", messages=0, consumers=0, single_active=True)
    check = Broker([queue("a"), alone]).emptying(interval_s=0)
    assert [check(), check()] == ["counted empty, checking again", ""]
    assert check.proof().endswith("2 queues, counted twice and tried, 1 of them counted alone")


class Node:
    def __init__(self, name: str, host: str = "") -> None:
        self.name, self.host = name, host


class Cluster(OneForAll):
    """Cluster. answering: parts that answer. processes: part -> its supervisor's report.

    silent: balancers that do not answer -> whether their host says that they have ended.
    """

    def __init__(self, answering: set[str], processes: dict[str, str]) -> None:
        self.answering, self.processes = answering, processes
        self.nodes = tuple(map(Node, ("mb1", "mb2", "mb3")))
        self.inventory = SimpleNamespace(balancers=(Node("lb1"), Node("lb2", "hostB")))
        self.silent: dict[str, bool] = {}

    def silent_balancers(self) -> list[str]:
        return list(self.silent)

    def balancer_has_ended(self, name: str) -> bool:
        return self.silent[name]

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise ConfigError(f"no broker {name!r}")

    def overview(self, name: str) -> dict[str, object]:
        return self._ask(name)

    def health(self, name: str) -> dict[str, object]:
        return self._ask(f"{name}-agent")

    def _ask(self, part: str) -> dict[str, object]:
        if part not in self.answering:
            raise NoAnswer(part)
        return {}

    def run(self, command: Command) -> str:
        part = command.argv[5]
        if part not in self.processes:
            raise CommandFailed(command.argv, 255, "no SSH")
        return self.processes[part] + "\n"

    def absent(self, *dead: str) -> Absent:
        nodes = LocalNodes(Path("/c"))
        return find_absent(cast(View, self), lambda _: nodes, ["mb3"], dead, runner=self)


def test_who_answers_is_there_whatever_a_supervisor_says() -> None:
    cluster = Cluster({"mb1", "mb1-agent", "mb2", "mb2-agent"}, {"mb1": "failed"})
    assert cluster.absent() == Absent()


def test_who_is_silent_and_has_no_process_left_is_dead_part_by_part() -> None:
    cluster = Cluster({"mb1-agent", "mb2"}, {"mb1": "inactive", "mb2-agent": "failed"})
    assert cluster.absent() == Absent(frozenset({"mb1"}), frozenset({"mb2"}))


def test_who_is_only_silent_is_not_dead() -> None:
    silent = {"mb1": "active", "mb1-agent": "deactivating"}  # and nothing is known about mb2
    assert Cluster(set(), silent).absent() == Absent()


def test_an_operator_has_seen_that_a_host_is_off() -> None:
    assert Cluster(set(), {}).absent("mb2") == Absent(frozenset({"mb2"}), frozenset({"mb2"}))


def test_the_word_of_an_operator_is_not_believed_of_who_answers() -> None:
    with pytest.raises(OpsError, match="mb2 is not dead: it answers"):
        Cluster({"mb2-agent"}, {}).absent("mb2")
    with pytest.raises(ConfigError):
        Cluster(set(), {}).absent("mb9")


@pytest.mark.guarantee("playbooks-beside-the-dead")
@pytest.mark.parametrize(
    ("silent", "dead", "found"),
    [
        ({}, (), set()),
        ({"lb2": True}, (), {"lb2"}),
        ({"lb2": False}, (), set()),  # it is only silent
        ({"lb2": False}, ("lb2",), {"lb2"}),
        ({"lb1": True, "lb2": True}, (), set()),  # the balancers' state is unknown
    ],
)
def test_a_balancer_is_dead_by_proof_or_word_while_another_one_is_there(
    silent: dict[str, bool], dead: tuple[str, ...], found: set[str]
) -> None:
    cluster = Cluster({"mb1", "mb1-agent", "mb2", "mb2-agent"}, {})
    cluster.silent = silent
    assert cluster.absent(*dead) == Absent(balancers=frozenset(found))


def test_a_balancer_that_answers_is_not_dead_by_any_word() -> None:
    with pytest.raises(OpsError, match="lb2 is not dead: it answers"):
        Cluster(set(), {}).absent("lb2")


def test_a_balancer_is_dead_with_its_host() -> None:
    cluster = Cluster(set(), {})
    cluster.silent = {"lb2": False}
    assert dead_balancers(cast(View, cluster), ["hostB"]) == {"lb2"}


def test_who_is_left_out_is_told_in_words() -> None:
    absent = Absent(frozenset({"mb1"}), frozenset({"mb2"}), frozenset({"lb2"}))
    assert absent.in_words() == "broker mb1, agent of mb2, balancer lb2"
    assert Absent().in_words() == ""
