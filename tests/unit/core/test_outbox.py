"""core.outbox: every accepted publish is settled exactly once, in order, within its deadline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from messagebus.core.outbox import Item, Outbox
from messagebus.core.packing import Batch, Packing

MESSAGES_MAX, BYTES_MAX = 5, 100
WINDOW, WINDOW_BYTES_MAX = 3, 60
ATTEMPTS_MAX = 3
FAR_MS = 1_000_000


def outbox(**changes: Any) -> Outbox:
    limits: dict[str, Any] = {
        "messages_max": MESSAGES_MAX,
        "bytes_max": BYTES_MAX,
        "window": WINDOW,
        "window_bytes_max": WINDOW_BYTES_MAX,
        "attempts_max": ATTEMPTS_MAX,
        "retry_unknown": True,
    }
    return Outbox(**(limits | changes))


def item(message_id: str, *, lane: str = "a", size: int = 10, deadline_ms: int = FAR_MS) -> Item:
    return Item(message_id=message_id, lane=lane, size=size, deadline_ms=deadline_ms)


def accepted(*items: Item, links: tuple[int, ...] = (1,), **changes: Any) -> Outbox:
    """All lanes open, all links opened to distinct brokers, the items in the backlog."""
    made = outbox(**changes)
    for each in items:
        made.accept(each)
        made.open_lane(each.lane)
    for link in links:
        made.link_opened(link, after=())
    return made


def ids(items: Any) -> list[str]:
    return [each.message_id for each in items]


def ends(settled: list[Item]) -> list[tuple[str, str]]:
    return [(each.message_id, each.end.outcome) for each in settled if each.end]


def reasons(settled: list[Item]) -> set[str]:
    return {each.end.reason for each in settled if each.end}


def still_open(made: Outbox) -> int:
    return len(list(made.unsettled()))


# ---------------------------------------------------------------------- accepting
def test_publishes_go_out_in_the_order_of_acceptance() -> None:
    made = accepted(item("1"), item("2"), item("3"))
    assert ids(made.take(5)) == ["1", "2", "3"]
    assert (made.waiting, made.waiting_bytes, made.in_flight, still_open(made)) == (0, 0, 3, 3)


def test_a_publish_waits_until_its_destination_is_registered() -> None:
    made = outbox()
    made.accept(item("1"))
    made.link_opened(1, after=())
    assert not made.lane_is_open("a")
    assert ids(made.take(0)) == []
    made.open_lane("a")
    assert made.lane_is_open("a")
    assert ids(made.take(0)) == ["1"]


def test_a_held_destination_does_not_hold_the_others() -> None:
    made = accepted(item("1", lane="b"))
    made.accept(item("2", lane="a"))
    made.accept(item("3", lane="b"))
    assert ids(made.take(0)) == ["1", "3"]


def test_a_refused_destination_settles_what_waits_for_it_and_nothing_else() -> None:
    made = accepted(item("1", lane="b"))
    made.accept(item("2", lane="a"))
    assert ends(made.refuse_lane("a", "not allowed")) == [("2", "refused")]
    assert (made.waiting, made.waiting_bytes, still_open(made)) == (1, 10, 1)
    assert made.refuse_lane("never seen", "why") == []


def test_a_closed_destination_holds_its_publishes_in_order_until_it_opens_again() -> None:
    made = accepted(item("1"), item("2", lane="b"), item("3"))
    made.close_lane("a")
    made.accept(item("4"))
    assert ids(made.take(0)) == ["2"]
    made.open_lane("a")
    made.answered(1, 1, multiple=False, ok=True)
    assert ids(made.take(0)) == ["1", "3", "4"]


def test_what_a_lost_link_left_open_waits_for_its_closed_destination_too() -> None:
    made = accepted(item("1"), item("2"))
    list(made.take(0))
    made.close_lane("a")
    made.accept(item("3"))
    made.link_lost(1, 1)
    made.link_opened(2, after=())
    assert ids(made.take(2)) == []
    made.open_lane("a")
    assert ids(made.take(2)) == ["1", "2", "3"]


def test_room_is_bounded_by_messages_and_by_bytes() -> None:
    made = accepted(item("1"), links=())
    assert made.has_room(90)
    assert not made.has_room(91)
    for number in range(2, 6):
        made.accept(item(str(number)))
    assert not made.has_room(0)


def test_a_message_larger_than_all_bytes_is_accepted_alone() -> None:
    made = outbox()
    assert made.has_room(BYTES_MAX * 9)
    made.accept(item("1", size=BYTES_MAX * 9))
    assert not made.has_room(1)


# ---------------------------------------------------------------------- sending
def test_the_window_bounds_what_is_in_flight_by_messages() -> None:
    made = accepted(*[item(str(number)) for number in range(5)])
    assert ids(made.take(0)) == ["0", "1", "2"]
    assert ids(made.take(0)) == []
    made.answered(1, 2, multiple=True, ok=True)
    assert ids(made.take(0)) == ["3", "4"]


def test_the_window_bounds_what_is_in_flight_by_bytes() -> None:
    made = accepted(item("1", size=50), item("2", size=11), item("3", size=10))
    assert ids(made.take(0)) == ["1"]
    made.answered(1, 1, multiple=False, ok=True)
    assert ids(made.take(0)) == ["2", "3"]


def test_nothing_goes_out_without_a_link() -> None:
    made = accepted(item("1"), links=())
    assert ids(made.take(0)) == []
    assert made.waiting == 1


def test_the_outcome_is_the_brokers_answer() -> None:
    made = accepted(item("1"), item("2"), item("3", lane="b"))
    list(made.take(0))
    made.returned(1, "b", "3")
    assert ends(made.answered(1, 1, multiple=False, ok=True)) == [("1", "confirmed")]
    settled = made.answered(1, 2, multiple=False, ok=False)
    assert ends(settled) == [("2", "refused")]
    assert reasons(settled) == {"the broker refused it"}
    assert ends(made.answered(1, 3, multiple=False, ok=True)) == [("3", "unroutable")]
    assert still_open(made) == 0


def test_answers_and_returns_of_a_link_that_is_gone_mean_nothing() -> None:
    made = accepted(item("1"))
    list(made.take(0))
    made.returned(9, "a", "1")
    assert made.answered(9, 1, multiple=False, ok=True) == []
    assert made.link_lost(9, 0) == []
    assert ends(made.answered(1, 1, multiple=False, ok=True)) == [("1", "confirmed")]


def test_what_cannot_be_sent_at_all_is_refused_and_counted() -> None:
    made, never = accepted(), item("1")
    made.refuse(never, "cannot be encoded")
    assert ends([never]) == [("1", "refused")]
    assert made.ended["refused"] == 1
    assert made.waiting == 0


def test_the_oldest_unanswered_publish_says_how_slow_the_broker_is() -> None:
    made = accepted(item("1"), item("2"), links=())
    assert made.unanswered_ms(50) == 0
    made.link_opened(1, after=())
    assert made.unanswered_ms(50) == 0
    list(made.take(100))
    assert made.unanswered_ms(1_100) == 1_000
    made.answered(1, 2, multiple=True, ok=True)
    assert made.unanswered_ms(1_200) == 0


# ---------------------------------------------------------------------- links
def test_a_retry_carries_the_same_publish_first_and_in_order() -> None:
    made = accepted(*[item(str(number)) for number in range(4)])
    sent = list(made.take(0))
    made.answered(1, 2, multiple=False, ok=True)
    assert made.link_lost(1, 10) == []
    made.link_opened(2, after=())
    again = list(made.take(20))
    assert again[:2] == [sent[0], sent[2]]
    assert ids(again) == ["0", "2", "3"]
    assert [each.attempts for each in again if isinstance(each, Item)] == [2, 2, 1]
    assert made.retried == 2


def test_after_its_last_attempt_a_publish_is_unknown() -> None:
    made = accepted(item("1"), attempts_max=2)
    for link in (2, 3):
        list(made.take(0))
        settled = made.link_lost(link - 1, 0)
        made.link_opened(link, after=())
    assert ends(settled) == [("1", "unknown")]
    assert reasons(settled) == {"the link ended"}
    assert ids(made.take(0)) == []


def test_unknown_is_told_at_once_when_retries_are_not_wanted() -> None:
    made = accepted(item("1"), retry_unknown=False)
    list(made.take(0))
    assert ends(made.link_lost(1, 0)) == [("1", "unknown")]


def test_a_publish_at_its_deadline_is_not_sent_again() -> None:
    made = accepted(item("1", deadline_ms=100), item("2", deadline_ms=101))
    list(made.take(0))
    assert ends(made.link_lost(1, 100)) == [("1", "unknown")]
    assert made.waiting == 1


REFUSED_406 = "PRECONDITION_FAILED - message size 99 is larger"


def refused_once(*names: str) -> Outbox:
    """All of them in flight when the broker ended the channel for one; the next link is open."""
    made = accepted(*(item(name) for name in names))
    made.take(0)
    assert made.link_lost(1, 0, REFUSED_406, refused=True) == []
    made.link_opened(2, after=())
    return made


def test_after_a_refused_publish_its_window_is_sent_again_one_by_one() -> None:
    made = refused_once("1", "2", "3")
    made.accept(item("4"))
    made.accept(item("5"))
    for tag, name in enumerate(["1", "2", "3"], start=1):
        assert ids(made.take(0)) == [name]
        assert made.take(0) == []
        made.answered(2, tag, multiple=False, ok=True)
    assert ids(made.take(0)) == ["4", "5"]


def test_the_publish_that_is_refused_alone_ends_and_costs_the_others_nothing() -> None:
    made = refused_once("1", "bad", "3")
    made.take(0)
    made.answered(2, 1, multiple=False, ok=True)
    assert ids(made.take(0)) == ["bad"]
    refused = made.link_lost(2, 0, REFUSED_406, refused=True)
    assert ends(refused) == [("bad", "refused")]
    assert reasons(refused) == {REFUSED_406}
    made.link_opened(3, after=())
    (last,) = made.take(0)
    assert isinstance(last, Item)
    assert (last.message_id, last.attempts) == ("3", 2)


def test_a_suspect_whose_link_ends_for_another_reason_stays_one() -> None:
    made = refused_once("1", "2")
    made.take(0)
    made.link_lost(2, 0, "reset")
    made.link_opened(3, after=())
    assert ids(made.take(0)) == ["1"]
    assert made.take(0) == []


def test_suspects_that_ended_meanwhile_hold_up_nobody() -> None:
    made = accepted(item("1", deadline_ms=5), item("2", deadline_ms=5))
    made.take(0)
    made.link_lost(1, 0, REFUSED_406, refused=True)
    made.expire(5)
    made.accept(item("3"))
    made.accept(item("4"))
    made.link_opened(2, after=())
    assert ids(made.take(5)) == ["3", "4"]


def test_an_unknown_end_says_why_the_link_ended() -> None:
    made = accepted(item("1"), attempts_max=1)
    made.take(0)
    assert reasons(made.link_lost(1, 0, "reset")) == {"the link ended: reset"}


def test_an_earlier_link_keeps_its_answers_when_a_new_one_opens() -> None:
    made = accepted(item("1"), item("2"))
    list(made.take(0))
    made.link_opened(2, after=())
    made.accept(item("3"))
    assert ids(made.take(0)) == ["3"]
    assert not made.is_answered(1)
    assert ends(made.answered(1, 2, multiple=True, ok=True)) == [
        ("1", "confirmed"),
        ("2", "confirmed"),
    ]
    assert made.is_answered(1)
    assert made.is_answered(77)
    assert ends(made.answered(2, 1, multiple=False, ok=True)) == [("3", "confirmed")]


def test_order_on_one_broker_holds_over_a_renewal_of_the_link() -> None:
    made = accepted(item("1"))
    list(made.take(0))
    made.accept(item("2"))
    made.link_opened(2, after=[1])
    assert ids(made.take(0)) == []
    made.answered(1, 1, multiple=False, ok=True)
    assert ids(made.take(0)) == ["2"]


def test_order_on_one_broker_holds_over_two_moves_in_a_row() -> None:
    made = accepted(item("1"))
    list(made.take(0))
    made.accept(item("2"))
    made.link_opened(2, after=[])
    made.link_opened(3, after=[1, 2])
    assert ids(made.take(0)) == []
    made.link_lost(1, 0)
    assert ids(made.take(0)) == ["1", "2"]


def test_a_link_that_is_lost_while_an_earlier_one_is_waited_for_sends_nothing() -> None:
    made = accepted(item("1"))
    list(made.take(0))
    made.accept(item("2"))
    made.link_opened(2, after=[1])
    made.link_lost(2, 0)
    made.answered(1, 1, multiple=False, ok=True)
    assert ids(made.take(0)) == []
    made.link_opened(3, after=[])
    assert ids(made.take(0)) == ["2"]


# ---------------------------------------------------------------------- deadlines and the end
def test_a_deadline_refuses_what_was_never_sent_and_leaves_unknown_what_was() -> None:
    made = accepted(item("sent", deadline_ms=100))
    list(made.take(0))
    made.accept(item("waiting", deadline_ms=100))
    made.accept(item("held", lane="b", deadline_ms=100))
    made.accept(item("later", deadline_ms=101))
    assert made.expire(99) == []
    settled = made.expire(100)
    assert sorted(ends(settled)) == [
        ("held", "refused"),
        ("sent", "unknown"),
        ("waiting", "refused"),
    ]
    assert reasons(settled) == {"deadline passed"}
    assert (made.waiting, made.waiting_bytes, still_open(made)) == (1, 10, 1)
    assert ids(made.take(100)) == ["later"]


def test_an_answer_after_the_deadline_settles_nothing_twice_and_tags_stay_counted() -> None:
    made = accepted(item("1", deadline_ms=100), item("2"))
    list(made.take(0))
    made.expire(100)
    assert ends(made.answered(1, 1, multiple=False, ok=True)) == []
    assert ends(made.answered(1, 2, multiple=False, ok=True)) == [("2", "confirmed")]


def test_a_publish_that_expired_in_flight_is_not_sent_again() -> None:
    made = accepted(item("1", deadline_ms=100))
    list(made.take(0))
    made.expire(100)
    assert made.link_lost(1, 100) == []
    assert made.waiting == 0


def test_deadlines_are_looked_at_again_after_the_earliest_has_passed() -> None:
    made = accepted(item("1", deadline_ms=100), item("2", deadline_ms=200))
    made.expire(100)
    made.accept(item("3", deadline_ms=150))
    assert ends(made.expire(150)) == [("3", "refused")]
    assert ends(made.expire(200)) == [("2", "refused")]
    assert made.expire(10**9) == []


def test_giving_up_settles_everything_once() -> None:
    made = accepted(item("sent"))
    list(made.take(0))
    made.accept(item("waiting"))
    made.accept(item("held", lane="b"))
    assert sorted(ends(made.give_up("stopped"))) == [
        ("held", "refused"),
        ("sent", "unknown"),
        ("waiting", "refused"),
    ]
    assert made.give_up("stopped") == []
    assert (made.waiting, made.waiting_bytes, still_open(made)) == (0, 0, 0)
    assert list(made.unsettled()) == []


# ---------------------------------------------------------------------- batches
PACKING = Packing(count_max=3, bytes_max=50, linger_ms=0)


def packed(*items: Item, packing: Packing = PACKING, **changes: Any) -> Outbox:
    """One lane "a" that packs, open; a link."""
    made = outbox(messages_max=100, bytes_max=10_000, window_bytes_max=10_000, **changes)
    made.pack("a", packing)
    made.open_lane("a")
    made.open_lane("b")
    made.link_opened(1, after=())
    for each in items:
        made.accept(each)
    return made


def packs(entries: list[Any]) -> list[list[str]]:
    return [ids(each.items) if isinstance(each, Batch) else [each.message_id] for each in entries]


def numbered(*sizes: int) -> list[Item]:
    return [item(str(number), size=size) for number, size in enumerate(sizes, start=1)]


def test_what_is_waiting_travels_together_up_to_a_batch_s_bounds() -> None:
    made = packed(*numbered(10, 10, 10, 10, 30, 30))
    assert packs(made.take(0)) == [["1", "2", "3"], ["4", "5"], ["6"]]
    assert (made.waiting, made.waiting_bytes, made.in_flight) == (0, 0, 3)


def test_a_batch_that_was_sent_takes_no_more() -> None:
    made = packed(*numbered(10))
    assert packs(made.take(0)) == [["1"]]
    made.accept(item("2"))
    assert packs(made.take(0)) == [["2"]]


def test_a_message_too_large_for_a_batch_goes_alone_and_keeps_its_place() -> None:
    made = packed(*numbered(10, 50, 10))
    taken = made.take(0)
    assert packs(taken) == [["1"], ["2"], ["3"]]
    assert isinstance(taken[1], Item)


def test_a_message_that_asks_for_it_goes_alone() -> None:
    made = packed(*numbered(10))
    made.accept(item("2"), alone=True)
    made.accept(item("3"))
    assert packs(made.take(0)) == [["1"], ["2"], ["3"]]


def test_a_batch_that_lingers_waits_for_more_but_not_longer_and_holds_up_nobody() -> None:
    made = packed(packing=PACKING._replace(linger_ms=5))
    made.accept(item("1"))
    made.accept(item("other", lane="b"))
    assert packs(made.take(100)) == [["other"]]
    assert made.lingers_until_ms() == 105
    made.accept(item("2"))
    assert packs(made.take(104)) == []
    assert packs(made.take(105)) == [["1", "2"]]
    assert made.lingers_until_ms() is None


def test_a_full_batch_does_not_linger() -> None:
    made = packed(*numbered(10, 10, 10, 10), packing=PACKING._replace(linger_ms=1_000))
    assert packs(made.take(0)) == [["1", "2", "3"]]


def test_each_message_of_a_batch_has_its_own_end() -> None:
    made = packed(*numbered(10, 10))
    made.accept(item("late", deadline_ms=100))
    made.take(0)
    assert ends(made.expire(100)) == [("late", "unknown")]
    assert ends(made.answered(1, 1, multiple=False, ok=True)) == [
        ("1", "confirmed"),
        ("2", "confirmed"),
    ]


def test_a_returned_batch_is_unroutable_as_a_whole() -> None:
    made = packed(*numbered(10, 10))
    made.take(0)
    made.returned(1, "a", "1")
    assert ends(made.answered(1, 1, multiple=False, ok=True)) == [
        ("1", "unroutable"),
        ("2", "unroutable"),
    ]


def test_a_lost_batch_is_sent_again_without_what_has_ended_meanwhile() -> None:
    made = packed(item("1", deadline_ms=100), *numbered(10, 10)[1:], item("3"))
    made.take(0)
    made.expire(100)
    made.accept(item("4"))
    assert made.link_lost(1, 100) == []
    assert (made.waiting, made.waiting_bytes) == (3, 30)
    made.link_opened(2, after=())
    assert packs(made.take(100)) == [["2", "3"], ["4"]]


def test_attempts_are_counted_for_each_message_of_a_batch() -> None:
    made = packed(*numbered(10, 10), attempts_max=1)
    made.take(0)
    assert ends(made.link_lost(1, 0)) == [("1", "unknown"), ("2", "unknown")]


@pytest.mark.parametrize("linger_ms", [0, 1_000])
def test_a_batch_loses_what_expires_while_it_waits(linger_ms: int) -> None:
    made = packed(packing=PACKING._replace(linger_ms=linger_ms))
    for number, deadline_ms in ((1, 100), (2, FAR_MS)):
        made.accept(item(str(number), deadline_ms=deadline_ms))
    assert ends(made.expire(100)) == [("1", "refused")]
    assert (made.waiting, made.waiting_bytes) == (1, 10)
    made.take(100)
    assert packs(made.take(1_100)) == ([["2"]] if linger_ms else [])


def test_a_batch_of_which_nothing_is_left_is_forgotten() -> None:
    made = packed(item("1", deadline_ms=100))
    made.expire(100)
    made.accept(item("2"))
    assert packs(made.take(100)) == [["2"]]


def test_a_refused_destination_settles_its_batches() -> None:
    made = outbox()
    made.pack("a", PACKING._replace(linger_ms=1_000))
    for each in numbered(10, 10, 10, 10):
        made.accept(each)
    assert len(made.refuse_lane("a", "not allowed")) == 4
    assert (made.waiting, made.waiting_bytes) == (0, 0)


def test_where_no_confirm_is_wanted_a_publish_ends_when_it_is_sent() -> None:
    made = accepted(item("1"), item("2"))
    first = made.take(0)[0]
    assert ends(made.unconfirmed(first)) == [("1", "unknown")]
    assert ends(made.answered(1, 2, multiple=True, ok=True)) == [("2", "confirmed")]


# ---------------------------------------------------------------------- against an oracle
LANES = ("a", "b")
HELD, BACKLOG, SETTLED = "held", "backlog", "settled"


class Record:
    """One publish as the oracle sees it. place: held, backlog, settled, or the number of its link."""

    def __init__(self, given: Item, place: str | int) -> None:
        self.item, self.place = given, place
        self.tag = self.attempts = 0
        self.returned = False


class AgainstAnOracle(RuleBasedStateMachine):
    """The oracle is one list of all publishes, and where each of them is."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = outbox()
        self.now_ms = 0
        self.queue: list[Record] = []  # in the order in which they would be sent
        self.all: list[Record] = []
        self.open_lanes: set[str] = set()
        self.links: dict[int, list[Record]] = {}  # link -> what was sent on it, by tag
        self.answered: set[tuple[int, int]] = set()
        self.after: set[int] = set()
        self.current: int | None = None
        self.last_link = 0

    def unanswered(self, link: int) -> list[Record]:
        sent = self.links.get(link, [])
        return [r for n, r in enumerate(sent, start=1) if (link, n) not in self.answered]

    def settle(self, expected: dict[int, str], settled: list[Item]) -> None:
        """expected: index into self.all -> outcome."""
        assert {
            id(each): outcome for each, (_, outcome) in zip(settled, ends(settled), strict=True)
        } == {id(self.all[index].item): outcome for index, outcome in expected.items()}
        assert len(settled) == len(expected)
        for index in expected:
            self.all[index].place = SETTLED
        self.queue = [r for r in self.queue if r.place != SETTLED]

    def index(self, record: Record) -> int:
        return next(n for n, each in enumerate(self.all) if each is record)

    @rule(
        lane=st.sampled_from(LANES),
        size=st.integers(0, 70),
        wait_ms=st.sampled_from([50, 1_000]),
        name=st.sampled_from("xyz"),
    )
    def accept(self, lane: str, size: int, wait_ms: int, name: str) -> None:
        held = [r.item.size for r in self.queue]
        fits = len(held) < MESSAGES_MAX and (not held or sum(held) + size <= BYTES_MAX)
        assert self.outbox.has_room(size) == fits
        if fits:
            given = item(name, lane=lane, size=size, deadline_ms=self.now_ms + wait_ms)
            record = Record(given, BACKLOG if lane in self.open_lanes else HELD)
            self.all.append(record)
            self.queue.append(record)
            self.outbox.accept(given)

    @rule(lane=st.sampled_from(LANES))
    def open_lane(self, lane: str) -> None:
        self.open_lanes.add(lane)
        mine = [r for r in self.queue if r.place == HELD and r.item.lane == lane]
        self.queue = [r for r in self.queue if r not in mine] + mine
        for record in mine:
            record.place = BACKLOG
        self.outbox.open_lane(lane)

    @rule(lane=st.sampled_from(LANES))
    def close_lane(self, lane: str) -> None:
        self.open_lanes.discard(lane)
        mine = [r for r in self.queue if r.item.lane == lane]
        held_before = [r for r in mine if r.place == HELD]
        back = [r for r in mine if r.place == BACKLOG]
        self.queue = [r for r in self.queue if r not in mine] + held_before + back
        for record in mine:
            record.place = HELD
        self.outbox.close_lane(lane)

    @rule(lane=st.sampled_from(LANES))
    def refuse_lane(self, lane: str) -> None:
        expected = {
            self.index(r): "unknown" if r.attempts else "refused"
            for r in self.queue
            if r.place == HELD and r.item.lane == lane
        }
        self.settle(expected, self.outbox.refuse_lane(lane, "no"))

    @rule(data=st.data())
    def link_opens(self, data: st.DataObject) -> None:
        self.last_link += 1
        self.after = (
            data.draw(st.sets(st.sampled_from(sorted(self.links)))) if self.links else set()
        )
        self.links[self.last_link] = []
        self.current = self.last_link
        self.outbox.link_opened(self.last_link, after=sorted(self.after))

    @rule(data=st.data())
    def link_ends(self, data: st.DataObject) -> None:
        if not self.links:
            return
        link = data.draw(st.sampled_from(sorted(self.links)))
        left = [r for r in self.unanswered(link) if r.place != SETTLED]
        del self.links[link]
        self.current = None if self.current == link else self.current
        again = [r for r in left if r.attempts < ATTEMPTS_MAX and self.now_ms < r.item.deadline_ms]
        for record in again:
            record.place = BACKLOG if record.item.lane in self.open_lanes else HELD
        self.queue = again + self.queue
        expected = {self.index(r): "unknown" for r in left if r not in again}
        self.settle(expected, self.outbox.link_lost(link, self.now_ms))

    @rule()
    def take(self) -> None:
        expected: list[Record] = []
        blocked = any(self.unanswered(link) for link in self.after)
        if self.current is not None and not blocked:
            flying = [r.item.size for r in self.unanswered(self.current)]
            for record in [r for r in self.queue if r.place == BACKLOG]:
                size = record.item.size
                if len(flying) >= WINDOW or (flying and sum(flying) + size > WINDOW_BYTES_MAX):
                    break
                flying.append(size)
                expected.append(record)
        assert list(self.outbox.take(self.now_ms)) == [r.item for r in expected]
        for record in expected:
            assert self.current is not None
            self.queue.remove(record)
            self.links[self.current].append(record)
            record.place, record.returned = self.current, False
            record.attempts += 1
            assert record.item.attempts == record.attempts

    @rule(data=st.data(), multiple=st.booleans(), ok=st.booleans(), routed=st.booleans())
    def broker_answers(self, data: st.DataObject, multiple: bool, ok: bool, routed: bool) -> None:
        busy = [link for link in sorted(self.links) if self.links[link]]
        if not busy:
            return
        link = data.draw(st.sampled_from(busy))
        tag = data.draw(st.integers(1, len(self.links[link])))
        record = self.links[link][tag - 1]
        if not routed and not multiple and (link, tag) not in self.answered:
            self.outbox.returned(link, record.item.lane, record.item.message_id)
            outcome = "unroutable"
        else:
            outcome = "confirmed" if ok else "refused"
        meant = range(1, tag + 1) if multiple else [tag]
        fresh = [each for each in meant if (link, each) not in self.answered]
        self.answered |= {(link, each) for each in fresh}
        records = [self.links[link][each - 1] for each in fresh]
        expected = {self.index(r): outcome for r in records if r.place == link}
        settled = self.outbox.answered(link, tag, multiple=multiple, ok=ok)
        self.settle(expected, settled)

    @rule(later_ms=st.sampled_from([0, 10, 50, 1_000]))
    def time_passes(self, later_ms: int) -> None:
        self.now_ms += later_ms
        expected = {
            n: "unknown" if r.attempts else "refused"
            for n, r in enumerate(self.all)
            if r.place != SETTLED and r.item.deadline_ms <= self.now_ms
        }
        self.settle(expected, self.outbox.expire(self.now_ms))

    @invariant()
    def everything_is_somewhere_once(self) -> None:
        open_records = [r for r in self.all if r.place != SETTLED]
        assert sum(self.outbox.ended.values()) == len(self.all) - len(open_records)
        assert {id(i) for i in self.outbox.unsettled()} == {id(r.item) for r in open_records}
        assert self.outbox.waiting == len(self.queue)
        assert self.outbox.waiting_bytes == sum(r.item.size for r in self.queue)
        assert self.outbox.in_flight == sum(len(self.unanswered(link)) for link in self.links)
        for link in self.links:
            assert self.outbox.is_answered(link) == (not self.unanswered(link))

    def teardown(self) -> None:
        expected = {
            n: "unknown" if r.attempts else "refused"
            for n, r in enumerate(self.all)
            if r.place != SETTLED
        }
        self.settle(expected, self.outbox.give_up("the end"))
        assert still_open(self.outbox) == 0


TestAgainstAnOracle = AgainstAnOracle.TestCase
TestAgainstAnOracle.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("count", [1, 200])
def test_whatever_happens_a_publish_ends_by_its_deadline(count: int) -> None:
    made = accepted(
        *[item(str(number), deadline_ms=30_000) for number in range(count)],
        messages_max=1_000,
        bytes_max=10**6,
    )
    list(made.take(0))  # the broker never answers
    assert len(made.expire(30_000)) == count
    assert still_open(made) == 0
