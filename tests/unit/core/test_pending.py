"""core.pending: every accepted publish is settled exactly once, in order, within its deadline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from messagebus.core.confirms import Batch, Packing
from messagebus.core.ends import REFUSED, SPOOLED, UNKNOWN, End, Item
from messagebus.core.pending import PendingPublishes
from tests.support.examples import examples
from tests.support.pending_oracle import AgainstAnOracle

MESSAGES_MAX, BYTES_MAX = 5, 100
WINDOW, WINDOW_BYTES_MAX = 3, 60
ATTEMPTS_MAX = 3
FAR_MS = 1_000_000


def pending(**changes: Any) -> PendingPublishes:
    limits: dict[str, Any] = {
        "messages_max": MESSAGES_MAX,
        "bytes_max": BYTES_MAX,
        "window": WINDOW,
        "window_bytes_max": WINDOW_BYTES_MAX,
        "attempts_max": ATTEMPTS_MAX,
        "retry_unknown": True,
    }
    return PendingPublishes(**(limits | changes))


def item(
    message_id: str, *, destination: str = "a", size: int = 10, deadline_ms: int = FAR_MS
) -> Item:
    return Item(message_id=message_id, destination=destination, size=size, deadline_ms=deadline_ms)


def accepted(*items: Item, links: tuple[int, ...] = (1,), **changes: Any) -> PendingPublishes:
    """Return pending publishes of these items, with all destinations open and links to distinct brokers."""
    made = pending(**changes)
    for each in items:
        made.backlog.accept(each)
        made.backlog.open(each.destination)
    for link in links:
        made.in_flight.opened(link, after=())
    return made


def ids(items: Any) -> list[str]:
    return [each.message_id for each in items]


def ends(settled: list[Item]) -> list[tuple[str, str]]:
    return [(each.message_id, each.end.outcome) for each in settled if each.end]


def reasons(settled: list[Item]) -> set[str]:
    return {each.end.reason for each in settled if each.end}


def still_open(made: PendingPublishes) -> int:
    return len(list(made.unsettled()))


# Accepting.


# Sending.


def test_a_publish_waits_until_its_destination_is_registered() -> None:
    made = pending()
    made.backlog.accept(item("1"))
    made.in_flight.opened(1, after=())
    assert not made.backlog.is_open("a")
    assert ids(made.take(0)) == []
    made.backlog.open("a")
    assert made.backlog.is_open("a")
    assert ids(made.take(0)) == ["1"]


def test_the_outcome_is_the_brokers_answer() -> None:
    made = accepted(item("1"), item("2"), item("3", destination="b"))
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
    made.ends.settle([never], End(REFUSED, "cannot be encoded"))
    assert ends([never]) == [("1", "refused")]
    assert made.ends.counts["refused"] == 1
    assert made.backlog.messages == 0


def test_the_oldest_unanswered_publish_says_how_slow_the_broker_is() -> None:
    made = accepted(item("1"), item("2"), links=())
    assert made.in_flight.unanswered_ms(50) == 0
    made.in_flight.opened(1, after=())
    assert made.in_flight.unanswered_ms(50) == 0
    list(made.take(100))
    assert made.in_flight.unanswered_ms(1_100) == 1_000
    made.answered(1, 2, multiple=True, ok=True)
    assert made.in_flight.unanswered_ms(1_200) == 0


# Links.
def test_a_retry_carries_the_same_publish_first_and_in_order() -> None:
    made = accepted(*[item(str(number)) for number in range(4)])
    sent = list(made.take(0))
    made.answered(1, 2, multiple=False, ok=True)
    assert made.link_lost(1, 10) == []
    made.in_flight.opened(2, after=())
    again = list(made.take(20))
    assert again[:2] == [sent[0], sent[2]]
    assert ids(again) == ["0", "2", "3"]
    assert [each.attempts for each in again if isinstance(each, Item)] == [2, 2, 1]
    assert made.retried == 2


def test_a_publish_whose_deadline_has_passed_is_not_sent_again() -> None:
    made = accepted(item("late", deadline_ms=100), item("1", deadline_ms=101))
    made.take(0)
    assert ends(made.link_lost(1, 100)) == [("late", "unknown")]
    made.in_flight.opened(2, after=())
    assert ids(made.take(100)) == ["1"]


def test_unknown_is_told_at_once_when_retries_are_not_wanted() -> None:
    made = accepted(item("1"), retry_unknown=False)
    list(made.take(0))
    assert ends(made.link_lost(1, 0)) == [("1", "unknown")]


REFUSED_406 = "PRECONDITION_FAILED - message size 99 is larger"


def refused_once(*names: str) -> PendingPublishes:
    """Return pending publishes with items that were in flight when the broker ended the channel for one."""
    made = accepted(*(item(name) for name in names))
    made.take(0)
    assert made.link_lost(1, 0, REFUSED_406, refused=True) == []
    made.in_flight.opened(2, after=())
    return made


def test_the_publish_that_is_refused_alone_ends_and_costs_the_others_nothing() -> None:
    made = refused_once("1", "bad", "3")
    made.take(0)
    made.answered(2, 1, multiple=False, ok=True)
    assert ids(made.take(0)) == ["bad"]
    refused = made.link_lost(2, 0, REFUSED_406, refused=True)
    assert ends(refused) == [("bad", "refused")]
    assert reasons(refused) == {REFUSED_406}
    made.in_flight.opened(3, after=())
    (last,) = made.take(0)
    assert isinstance(last, Item)
    assert (last.message_id, last.attempts) == ("3", 2)


def test_nothing_is_sent_while_a_suspect_is_open() -> None:
    made = refused_once("1", "bad", "3")
    made.backlog.accept(item("4", destination="b"))
    made.backlog.open("b")
    assert ids(made.take(0)) == ["1"]
    assert made.take(0) == []
    made.answered(2, 1, multiple=False, ok=True)
    assert ids(made.take(0)) == ["bad"]
    assert made.take(0) == []


def test_a_suspect_whose_link_ends_for_another_reason_is_sent_alone_again() -> None:
    made = refused_once("1", "bad", "3")
    assert ids(made.take(0)) == ["1"]
    assert made.link_lost(2, 0, "reset") == []
    made.in_flight.opened(3, after=())
    assert ids(made.take(0)) == ["1"]


def test_suspects_that_have_ended_hold_up_nothing() -> None:
    made = accepted(item("1", deadline_ms=100), item("bad", deadline_ms=100))
    made.take(0)
    made.link_lost(1, 0, REFUSED_406, refused=True)
    assert ends(made.expire(100)) == [("1", "unknown"), ("bad", "unknown")]
    made.in_flight.opened(2, after=())
    for name in ("3", "4"):
        made.backlog.accept(item(name))
        assert ids(made.take(100)) == [name]


class Together(Item):
    """Three messages that were given together."""

    def __init__(self) -> None:
        super().__init__("1", "a", 30, 1_000, count=3)

    def taken_apart(self) -> list[Item]:
        parts = [Item(name, "a", 10, 1_000) for name in ("1", "bad", "3")]
        for each in parts:
            each.attempts = self.attempts
        return parts


@pytest.mark.parametrize("is_bundle", [True, False], ids=["bundle", "batch"])
def test_a_refused_batch_is_split_before_its_messages_are_refused(is_bundle: bool) -> None:
    made = pending()
    made.backlog.pack("a", Packing(10, 1_000, 0))
    if is_bundle:
        made.backlog.accept_bundle(Together())
    else:
        for name in ("1", "bad", "3"):
            made.backlog.accept(item(name))
    made.backlog.open("a")
    for link in (1, 2):  # in the window, then alone
        made.in_flight.opened(link, after=())
        (sent,) = made.take(0)
        assert is_bundle or (isinstance(sent, Batch) and len(sent.items) == 3)
        assert made.link_lost(link, 0, REFUSED_406, refused=True) == []
    assert (made.backlog.messages, made.backlog.bytes) == (3, 30)
    made.in_flight.opened(3, after=())
    assert ids(made.take(0)) == ["1"]
    made.answered(3, 1, multiple=False, ok=True)
    assert ids(made.take(0)) == ["bad"]
    assert ends(made.link_lost(3, 0, REFUSED_406, refused=True)) == [("bad", "refused")]
    made.in_flight.opened(4, after=())
    assert ids(made.take(0)) == ["3"]
    assert ends(made.answered(4, 1, multiple=False, ok=True)) == [("3", "confirmed")]
    assert made.backlog.messages == made.backlog.bytes == 0


def test_a_destination_is_forgotten_when_it_is_closed_and_empty() -> None:
    made = pending()
    made.backlog.pack("a", Packing(10, 1_000, 0))
    made.backlog.accept(item("1"))
    made.backlog.forget("a")
    assert made.backlog.holds("a"), "a message waits for it"
    made.backlog.open("a")
    made.backlog.forget("a")
    assert made.backlog.is_open("a")
    made.in_flight.opened(1, after=())
    made.take(0)
    made.backlog.close({"a"})
    made.backlog.forget("a")
    made.backlog.accept(item("2"))
    made.backlog.open("a")
    assert [type(each) for each in made.take(0)] == [Item], "it is not packed any more"


def test_a_destination_whose_batch_lingers_is_not_forgotten() -> None:
    made = pending()
    made.backlog.pack("a", Packing(10, 1_000, 5))
    made.backlog.accept(item("1"))
    made.backlog.forget("a")
    made.backlog.open("a")
    made.in_flight.opened(1, after=())
    assert made.take(0) == []
    assert packs(made.take(5)) == [["1"]]


def test_an_unknown_end_says_why_the_link_ended() -> None:
    made = accepted(item("1"), attempts_max=1)
    made.take(0)
    assert reasons(made.link_lost(1, 0, "reset")) == {"the link ended: reset"}


def test_order_on_one_broker_holds_over_a_renewal_of_the_link() -> None:
    made = accepted(item("1"))
    list(made.take(0))
    made.backlog.accept(item("2"))
    made.in_flight.opened(2, after=[1])
    assert ids(made.take(0)) == []
    made.answered(1, 1, multiple=False, ok=True)
    assert ids(made.take(0)) == ["2"]


# Deadlines and the end.
def test_a_deadline_refuses_what_was_never_sent_and_leaves_unknown_what_was() -> None:
    made = accepted(item("sent", deadline_ms=100))
    list(made.take(0))
    made.backlog.accept(item("waiting", deadline_ms=100))
    made.backlog.accept(item("held", destination="b", deadline_ms=100))
    made.backlog.accept(item("later", deadline_ms=101))
    assert made.expire(99) == []
    settled = made.expire(100)
    assert sorted(ends(settled)) == [
        ("held", "refused"),
        ("sent", "unknown"),
        ("waiting", "refused"),
    ]
    assert reasons(settled) == {"deadline passed"}
    assert (made.backlog.messages, made.backlog.bytes, still_open(made)) == (1, 10, 1)
    assert ids(made.take(100)) == ["later"]


def test_a_clock_that_is_put_forward_brings_deadlines_and_lingering_batches_nearer() -> None:
    sent, waits = item("sent", deadline_ms=1_000), item("waits", deadline_ms=2_000)
    made = accepted(sent, waits, window=1)
    assert ids(made.take(0)) == ["sent"]
    made.put_forward(900)
    assert made.expire(99) == []
    assert ends(made.expire(100)) == [("sent", "unknown")]
    made.put_forward(900)
    assert ends(made.expire(199)) == []
    assert ends(made.expire(200)) == [("waits", "refused")]
    made.put_forward(1)
    late = item("late", deadline_ms=300)
    made.backlog.accept(late)
    assert ends(made.expire(299)) == []
    assert ends(made.expire(300)) == [("late", "refused")]
    lingers = packed(item("a"), packing=Packing(10, 50, 40))
    assert lingers.take(0) == []
    lingers.put_forward(30)
    assert lingers.take(9) == []
    assert packs(lingers.take(10)) == [["a"]]


def test_a_message_larger_than_all_bytes_is_accepted_when_nothing_waits() -> None:
    made = pending()
    assert made.backlog.has_room(BYTES_MAX + 1)
    made.backlog.accept(item("1", size=1))
    assert made.backlog.has_room(BYTES_MAX - 1)
    assert not made.backlog.has_room(BYTES_MAX)


# Batches.
PACKING = Packing(count_max=3, bytes_max=50, linger_ms=0)


def packed(*items: Item, packing: Packing = PACKING, **changes: Any) -> PendingPublishes:
    """Return pending publishes with an open destination "a" that packs, and a link."""
    made = pending(messages_max=100, bytes_max=10_000, window_bytes_max=10_000, **changes)
    made.backlog.pack("a", packing)
    made.backlog.open("a")
    made.backlog.open("b")
    made.in_flight.opened(1, after=())
    for each in items:
        made.backlog.accept(each)
    return made


def packs(entries: list[Any]) -> list[list[str]]:
    return [ids(each.items) if isinstance(each, Batch) else [each.message_id] for each in entries]


def numbered(*sizes: int) -> list[Item]:
    return [item(str(number), size=size) for number, size in enumerate(sizes, start=1)]


def test_whoever_waits_for_all_ends_the_wait_of_lingering_batches() -> None:
    made = packed(*numbered(10), packing=PACKING._replace(linger_ms=1_000))
    made.backlog.accept(item("other", destination="b"))
    made.backlog.lingering.end_all()
    assert packs(made.take(0)) == [["other"], ["1"]]
    made.backlog.accept(item("2"))
    assert packs(made.take(999)) == []


def test_a_batch_is_bounded_in_messages_and_in_bytes() -> None:
    assert packs(packed(*numbered(1, 1, 1, 1), window=9).take(0)) == [["1", "2", "3"], ["4"]]
    assert packs(packed(*numbered(20, 20, 20), window=9).take(0)) == [["1", "2"], ["3"]]


def test_a_batch_that_was_sent_takes_no_more() -> None:
    made = packed(*numbered(10))
    assert packs(made.take(0)) == [["1"]]
    made.backlog.accept(item("2"))
    assert packs(made.take(0)) == [["2"]]


def test_a_batch_that_goes_again_carries_only_what_has_no_end_yet() -> None:
    made = packed(item("late", deadline_ms=100), item("2", size=20), item("3"))
    assert packs(made.take(0)) == [["late", "2", "3"]]
    assert ends(made.expire(100)) == [("late", "unknown")]
    assert made.link_lost(1, 100) == []
    assert (made.backlog.messages, made.backlog.bytes, made.retried) == (2, 30, 2)
    made.in_flight.opened(2, after=())
    (again,) = made.take(100)
    assert packs([again]) == [["2", "3"]]
    assert (again.message_id, again.size) == ("2", 30)


def bundle(message_id: str, count: int, *, deadline_ms: int = FAR_MS) -> Item:
    return Item(message_id, "a", 10 * count, deadline_ms, count)


def test_a_bundle_is_a_batch_of_its_own_and_counts_as_its_messages() -> None:
    made = packed(*numbered(1))
    assert made.backlog.has_room(10, 99)
    assert not made.backlog.has_room(10, 100)
    made.backlog.accept_bundle(bundle("b", 3))
    made.backlog.accept(item("2"))
    assert made.backlog.messages == 5
    assert packs(made.take(0)) == [["1"], ["b"], ["2"]]
    assert made.backlog.messages == made.backlog.bytes == 0
    settled = made.answered(1, 0, multiple=True, ok=True)
    assert ids(settled) == ["1", "b", "2"]
    assert made.ends.counts["confirmed"] == 5


def test_publishes_that_enter_together_are_publishes_of_their_own() -> None:
    made = accepted(item("1"))
    made.backlog.accept_all([item("2", deadline_ms=90), item("3", deadline_ms=90)], 20)
    assert (made.backlog.messages, made.backlog.bytes) == (3, 30)
    assert ids(made.take(0)) == ["1", "2", "3"]
    assert ids(made.answered(1, 2, multiple=False, ok=True)) == ["2"]
    assert ids(made.expire(90)) == ["3"]


# Against an oracle.
TestAgainstAnOracle = AgainstAnOracle.TestCase
TestAgainstAnOracle.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)


def test_what_is_withdrawn_is_in_order_and_leaves_the_places_of_its_tags() -> None:
    made = accepted(item("1"), item("2"), item("3"), window=2)
    assert ids(made.take(0)) == ["1", "2"]
    made.backlog.accept(other := item("4", destination="other"))
    made.backlog.accept(item("5"))
    taken = made.take_out(lambda each: each is not other)
    assert ids(taken) == ["1", "2", "3", "5"]
    assert ids(made.unsettled()) == ["4"]
    assert (made.backlog.messages, made.in_flight.count) == (1, 2)
    assert made.answered(1, 1, multiple=False, ok=True) == [], "its answer no longer counts"
    assert made.link_lost(1, 0) == []
    assert made.retried == 0
    assert ends(made.ends.settle(taken[:1], End(SPOOLED))) == [("1", "spooled")]
    assert made.ends.settle(taken[:1], End(REFUSED)) == []
    assert made.ends.counts["spooled"] == 1


def test_a_batch_is_withdrawn_message_by_message() -> None:
    made = accepted(item("1"))
    made.backlog.pack("a", Packing(10, 1_000, 50))
    made.backlog.accept(item("2"))
    made.backlog.accept(item("3"))
    assert ids(made.take_out(lambda _: True)) == ["1", "2", "3"]
    assert (made.backlog.messages, made.backlog.bytes, made.backlog.lingering.until_ms()) == (
        0,
        0,
        None,
    )
    made.backlog.accept(item("4"))
    made.backlog.lingering.end_all()
    assert ids(made.unsettled()) == ["4"]


def test_in_order_what_was_told_unknown_goes_again_before_all_that_follows() -> None:
    """It may be read late, from a link that has ended; behind another one it would break the order."""

    def after_a_loss(*, ordered: bool) -> list[str]:
        pending = PendingPublishes(
            messages_max=9,
            bytes_max=999,
            window=5,
            window_bytes_max=999,
            attempts_max=2,
            retry_unknown=True,
            ordered=ordered,
        )
        pending.backlog.open("t")
        pending.in_flight.opened(1, after=())
        for number, deadline_ms in (("1", 10), ("2", 90)):
            pending.backlog.accept(Item(number, "t", 1, deadline_ms))
        assert len(pending.take(0)) == 2
        (told,) = pending.expire(20)
        assert (told.message_id, told.end and told.end.outcome) == ("1", UNKNOWN)
        pending.link_lost(1, 30)
        pending.backlog.accept(Item("3", "t", 1, 90))
        pending.expire(40)
        pending.in_flight.opened(2, after=())
        return [entry.message_id for entry in pending.take(50)]

    assert after_a_loss(ordered=True) == ["1", "2", "3"]
    assert after_a_loss(ordered=False) == ["2", "3"]


def test_what_comes_back_from_a_sealed_destination_waits_in_its_place() -> None:
    first, second, third = item("1"), item("2"), item("3")
    made = accepted(first, second)
    made.seals = True
    assert ids(made.take(0)) == ["1", "2"]
    made.backlog.accept(third)
    made.returned(1, "a", "2")
    made.backlog.accept(item("4"))
    assert (made.backlog.sealed, made.in_flight.has("a"), made.take(0)) == ({"a"}, True, [])
    assert made.answered(1, 2, multiple=False, ok=True) == []
    made.returned(1, "a", "1")
    made.answered(1, 1, multiple=False, ok=True)
    assert not made.in_flight.has("a")
    assert ids(made.backlog.move_out("a")) == ["1", "2", "3", "4"]
    assert made.backlog.messages == made.backlog.bytes == 0


def test_what_a_lost_link_left_at_a_sealed_destination_goes_first() -> None:
    made = accepted(item("1"), item("2"))
    made.seals = True
    made.take(0)
    made.backlog.accept(item("3"))
    made.seal("a")
    made.link_lost(1, 0)
    assert ids(made.backlog.move_out("a")) == ["1", "2", "3"]


def test_what_was_sent_and_came_back_ends_and_the_rest_goes_on() -> None:
    made = accepted(item("1"))
    made.seals = True
    made.take(0)
    made.returned(1, "a", "1")
    made.answered(1, 1, multiple=False, ok=True)
    made.backlog.accept(item("2"))
    assert ids(made.backlog.move_out("a", only_sent=True)) == ["1"]
    made.backlog.unseal("a")
    assert (made.backlog.sealed, ids(made.take(0))) == (set(), ["2"])


def test_what_comes_back_late_waits_in_its_order_before_all_else() -> None:
    made = accepted(item("1"), item("2"))
    made.seals = True
    made.take(0)
    for each in ("1", "2"):
        made.returned(1, "a", each)
    made.backlog.unseal("a")
    made.backlog.accept(item("3"))
    made.answered(1, 2, multiple=True, ok=True)
    made.backlog.accept(item("4"))
    assert ids(made.backlog.move_out("a")) == ["1", "2", "3", "4"]


def test_another_thread_may_count_what_is_in_flight_while_a_link_opens() -> None:
    """`Publisher.stats` is called by any thread, between any two instructions of the loop."""
    made = accepted(item("a"))

    class Interrupted:
        """A window during whose count the loop's thread goes on."""

        def __len__(self) -> int:
            made.in_flight.opened(2, after=())
            return 3

    made.in_flight.windows[1] = Interrupted()  # type: ignore[assignment]
    assert made.in_flight.count == 3
