"""core.full, and PendingPublishes with `waits_when_full`: what a full destination refuses is tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.confirms import Packing
from messagebus.core.ends import FULL_TOO_LONG, REFUSED, UNKNOWN
from messagebus.core.full import REST_MS, REST_MS_MAX, FullDestinations
from messagebus.core.pending import PendingPublishes
from tests.unit.core.test_pending import accepted, ends, ids, item, reasons, still_open


def waiting(*names: str, **changes: object) -> PendingPublishes:
    return accepted(*(item(name) for name in names), waits_when_full=True, **changes)  # type: ignore[arg-type]


def test_a_refused_publish_waits_and_is_sent_again() -> None:
    made = waiting("1", "2")
    assert ids(made.take(0)) == ["1", "2"]
    assert made.answered(1, 2, multiple=True, ok=False) == []
    assert made.take(0) == []
    assert not made.try_full(0)  # the rest begins when it is first looked at
    assert made.take(REST_MS - 1) == []
    assert made.try_full(REST_MS)
    assert ids(made.take(REST_MS)) == ["1", "2"]
    assert ends(made.answered(1, 4, multiple=True, ok=True)) == [
        ("1", "confirmed"),
        ("2", "confirmed"),
    ]
    assert made.full is not None
    assert (made.full.changes(), bool(made.full)) == ((["a"], ["a"]), False)


def test_without_it_a_refused_publish_ends() -> None:
    made = accepted(item("1"))
    made.take(0)
    assert ends(made.answered(1, 1, multiple=False, ok=False)) == [("1", REFUSED)]


def test_where_order_is_kept_a_refused_publish_ends() -> None:
    made = waiting("1", ordered=True)
    made.take(0)
    assert ends(made.answered(1, 1, multiple=False, ok=False)) == [("1", REFUSED)]


def test_a_full_destination_holds_up_no_other() -> None:
    made = waiting("1")
    made.take(0)
    made.answered(1, 1, multiple=False, ok=False)
    for name, destination in (("2", "a"), ("3", "b")):
        made.backlog.accept(item(name, destination=destination))
    made.backlog.open("b")
    assert ids(made.take(0)) == ["3"]


def test_what_waits_for_room_counts_in_the_backlog() -> None:
    made = waiting(*"12345", window=5)
    made.take(0)
    assert made.backlog.has_room(10)
    made.answered(1, 5, multiple=True, ok=False)
    assert not made.backlog.has_room(10)


def test_a_full_destination_ends_its_publishes_at_their_deadline_as_refused() -> None:
    made = accepted(item("1", deadline_ms=500), waits_when_full=True)
    made.take(0)
    made.answered(1, 1, multiple=False, ok=False)
    assert made.expire(499) == []
    settled = made.expire(500)
    assert (ends(settled), reasons(settled)) == ([("1", REFUSED)], {FULL_TOO_LONG})
    assert still_open(made) == made.backlog.messages == made.backlog.bytes == 0


def test_without_a_link_a_deadline_does_not_say_that_a_queue_is_full() -> None:
    """It was full once; why there is no link is what an operator must know now."""
    made = accepted(item("1", deadline_ms=500), waits_when_full=True)
    made.take(0)
    made.answered(1, 1, multiple=False, ok=False)
    made.link_lost(1, 1)
    assert reasons(made.expire(500, "no broker answers")) == {"no broker answers"}


def test_what_may_be_stored_by_a_lost_link_stays_unknown() -> None:
    made = accepted(item("1", deadline_ms=500), waits_when_full=True)
    made.take(0)
    made.link_lost(1, 1)
    made.in_flight.opened(2, after=())
    made.take(1)
    made.answered(2, 1, multiple=False, ok=False)
    assert ends(made.expire(500)) == [("1", UNKNOWN)]


def test_refusals_are_no_attempts() -> None:
    made = waiting("1", attempts_max=2)
    now_ms = 0
    for tag in range(1, 20):
        assert ids(made.take(now_ms)) == ["1"]
        made.answered(1, tag, multiple=False, ok=False)
        made.try_full(now_ms)
        now_ms += REST_MS_MAX
        assert made.try_full(now_ms)
    made.take(now_ms)
    made.link_lost(1, now_ms)
    made.in_flight.opened(2, after=())
    assert ids(made.take(now_ms)) == ["1"]


def test_a_refused_batch_comes_back_whole_without_what_has_ended() -> None:
    made = PendingPublishes(
        messages_max=10, bytes_max=1_000, window=5, window_bytes_max=1_000, attempts_max=3,
        retry_unknown=True, waits_when_full=True,
    )  # fmt: skip
    made.backlog.pack("a", Packing(count_max=10, bytes_max=500, linger_ms=0))
    made.backlog.open("a")
    given = [item("1"), item("2", deadline_ms=50), item("3")]
    for each in given:
        made.backlog.accept(each)
    made.in_flight.opened(1, after=())
    assert ids(made.take(0)[0].items) == ["1", "2", "3"]  # type: ignore[union-attr]
    assert ends(made.expire(50)) == [("2", UNKNOWN)]
    made.answered(1, 1, multiple=False, ok=False)
    made.try_full(60)
    made.try_full(60 + REST_MS)
    assert ids(made.take(60 + REST_MS)[0].items) == ["1", "3"]  # type: ignore[union-attr]


def test_a_destination_that_is_closed_otherwise_is_not_opened_by_its_rest() -> None:
    made = waiting("1")
    made.take(0)
    made.answered(1, 1, multiple=False, ok=False)
    assert made.is_usable("a")
    made.close(["a"])
    assert not made.is_usable("a")
    assert not made.try_full(0)
    assert not made.try_full(REST_MS_MAX)
    assert made.take(REST_MS_MAX) == []


def test_a_refusal_that_comes_after_the_destination_was_closed_opens_nothing() -> None:
    made = waiting("1")
    made.take(0)
    made.close(["a"])
    made.answered(1, 1, multiple=False, ok=False)
    assert not made.try_full(0)
    assert not made.try_full(REST_MS_MAX)
    assert (made.take(REST_MS_MAX), made.backlog.messages) == ([], 1)


def test_rests_grow_and_begin_anew_with_a_confirm() -> None:
    full, now_ms, lasted = FullDestinations(), 0, []
    for _ in range(7):
        full.refused("a")
        full.refused("a")  # the rest of one window
        assert full.due(now_ms) == []
        begun_ms = now_ms
        while not full.due(now_ms):
            now_ms += 50
        lasted.append(now_ms - begun_ms)
    assert lasted == [100, 200, 400, 800, 1_600, REST_MS_MAX, REST_MS_MAX]
    assert [full.is_long] == [True]
    full.refused("a")
    full.confirmed("a")  # of the same window
    assert "a" in full
    full.due(now_ms)
    assert full.due(now_ms + REST_MS) == ["a"]
    full.confirmed("a")
    assert "a" not in full
    assert [full.is_long] == [False]
    assert full.changes() == (["a"], ["a"])


def test_a_clock_that_is_put_forward_ends_a_rest() -> None:
    made = waiting("1")
    made.take(0)
    made.answered(1, 1, multiple=False, ok=False)
    made.try_full(0)
    made.put_forward(REST_MS)
    assert made.try_full(1)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=30))
def test_every_publish_ends_once_whatever_is_refused(answers: list[tuple[bool, int]]) -> None:
    names = [str(n) for n in range(5)]
    made = waiting(*names, messages_max=5, window=3, window_bytes_max=1_000)
    now_ms, tag, confirmed = 0, 0, list[str]()
    for ok, count in [*answers, *[(True, 3)] * 10]:
        made.take(now_ms)
        window = made.in_flight.current
        assert window is not None
        tags = list(window._open)[:count]
        for tag in tags:
            confirmed += ids(made.answered(1, tag, multiple=False, ok=ok))
        now_ms += REST_MS_MAX
        made.try_full(now_ms)
        now_ms += REST_MS_MAX
        made.try_full(now_ms)
    assert sorted(confirmed) == names
    assert made.backlog.messages == made.backlog.bytes == made.in_flight.count == 0
