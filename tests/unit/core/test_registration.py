"""When a change is complete."""

from __future__ import annotations

from itertools import product

import pytest

from messagebus.core.registration import Answer, Reply, completion

HELD = Reply(answer=Answer.HELD, stored=True)
LATER = Reply(answer=Answer.LATER, stored=True)
DEAD = Reply(answer=Answer.DEAD)
NO = Reply(answer=Answer.NO, reason="agent hangs")


def test_held_by_all_is_complete() -> None:
    judged = completion("ABC", dict.fromkeys("ABC", HELD))
    assert judged.complete
    assert judged.held == ("A", "B", "C")
    assert not judged.missing


def test_a_broker_that_takes_no_publishes_yet_does_not_stand_in_the_way() -> None:
    judged = completion("ABC", {"A": HELD, "B": LATER, "C": DEAD})
    assert judged.complete
    assert judged.held == ("A",)
    assert judged.later == ("B", "C")


@pytest.mark.parametrize("replies", [{"A": HELD, "B": HELD, "C": NO}, {"A": HELD, "B": HELD}])
def test_a_broker_that_may_be_serving_is_named(replies: dict[str, Reply]) -> None:
    judged = completion("ABC", replies)
    assert not judged.complete
    assert set(judged.missing) == {"C"}


def test_the_reason_of_the_broker_is_told() -> None:
    assert completion("AC", {"A": HELD, "C": NO}).missing["C"] == "agent hangs"


def test_without_a_majority_that_stored_it_it_may_be_lost_again() -> None:
    judged = completion("ABC", {"A": HELD, "B": DEAD, "C": DEAD})
    assert not judged.complete
    assert set(judged.missing) == {"B", "C"}
    assert "1 of 3" in judged.missing["B"]


def test_held_by_a_map_that_does_not_count_is_no_vote() -> None:
    unvoted = Reply(answer=Answer.HELD)
    assert not completion("ABC", {"A": HELD, "B": unvoted, "C": unvoted}).complete


def test_of_no_brokers_nothing_is_complete() -> None:
    assert not completion([], {}).complete


def test_brokers_off_the_list_have_no_say() -> None:
    assert completion("A", {"A": HELD, "X": NO}).complete


def test_every_combination_of_three_against_the_rule_in_words() -> None:
    kinds = (HELD, LATER, DEAD, NO, Reply(answer=Answer.LATER), None)
    for three in product(kinds, repeat=3):
        replies = {name: reply for name, reply in zip("ABC", three, strict=True) if reply}
        nobody_serves_without = all(reply is not None and reply is not NO for reply in three)
        two_stored = sum(reply in (HELD, LATER) for reply in three) >= 2
        expected = nobody_serves_without and two_stored
        assert completion("ABC", replies).complete == expected, three


def test_a_refusal_without_a_reason_is_one_all_the_same() -> None:
    judged = completion("AB", {"A": HELD, "B": Reply(answer=Answer.NO, stored=True)})
    assert not judged.complete
    assert judged.missing == {"B": "refused it"}


def test_agents_off_the_list_do_not_make_a_majority() -> None:
    replies = {"A": HELD, "B": DEAD, "C": DEAD, "X": HELD, "Y": HELD}
    assert not completion("ABC", replies).complete
