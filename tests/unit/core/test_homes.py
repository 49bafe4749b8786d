"""Partitions and homes, as docs/WIRE.md has them."""

from __future__ import annotations

import pytest

from messagebus.core.homes import (
    Chain,
    Home,
    home_of,
    joined,
    may_publish,
    partition_of,
    read_chains,
    read_homes,
    segment_of,
    write_chains,
)

# The vectors of docs/WIRE.md.
VECTORS = [("customer-17", 32, 31), ("a", 32, 3), ("grün", 7, 4), ("k" * 255, 1_024, 697)]


@pytest.mark.parametrize(("key", "partitions", "partition"), VECTORS)
def test_a_keys_partition_is_its_crc_32(key: str, partitions: int, partition: int) -> None:
    assert partition_of(key, partitions) == partition


def test_keys_spread_over_all_partitions() -> None:
    counts = [0] * 64
    for number in range(10_000):
        counts[partition_of(f"customer-{number}", 64)] += 1
    assert 120 < min(counts) <= max(counts) < 200


def test_homes_begin_anew_behind_the_last_and_have_an_epoch() -> None:
    homes = read_homes("mb1:5672 2@[::1]:5672 mb3:5672", 5)
    assert [home.broker for home in homes] == [
        "mb1:5672",
        "[::1]:5672",
        "mb3:5672",
        "mb1:5672",
        "[::1]:5672",
    ]
    assert segment_of(4, homes[4]) == "4.2"
    assert read_homes("", 5) == ()
    assert segment_of(0, Home("mb1:5672")) == "0.1"


def test_a_stored_message_goes_to_the_home_of_its_key_and_one_without_text_to_that_of_no_key() -> (
    None
):
    homes = read_homes("mb1:5672 2@mb2:5672 mb3:5672", 7)
    assert home_of("grün", homes) == (4, homes[4])
    nowhere = partition_of("", 7)
    for key in (None, "", b"gr\xfcn", 17):
        assert home_of(key, homes) == (nowhere, homes[nowhere])


def test_an_epoch_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        read_homes("x@mb1:5672", 1)


ONE, TWO, THREE = Home("mb1:5672"), Home("mb2:5672", 2), Home("mb3:5672", 3)
# Each state of a partition that moves, in its order.
MOVING = [
    (Chain((ONE,)), "mb1:5672"),
    (Chain((ONE, TWO), is_open=False), "mb1:5672>2@mb2:5672"),
    (Chain((ONE, TWO)), "mb1:5672,2@mb2:5672"),
    (Chain((ONE, TWO), done=frozenset({"a", "b"})), "mb1:5672/a/b,2@mb2:5672"),
    (Chain((TWO,)), "2@mb2:5672"),
    (Chain((TWO, THREE), is_open=False), "2@mb2:5672>3@mb3:5672"),
    (
        Chain((TWO, THREE), done=frozenset({"a"}), lost=frozenset({ONE})),
        "2@mb2:5672/a/!mb1:5672,3@mb3:5672",
    ),
    (Chain((THREE,), lost=frozenset({ONE, TWO})), "3@mb3:5672/!mb1:5672/!2@mb2:5672"),
]


@pytest.mark.parametrize(("chain", "text"), MOVING)
def test_a_partition_that_moves_is_one_word(chain: Chain, text: str) -> None:
    assert write_chains([chain]) == text
    assert read_chains(text, 1) == (chain,)


def test_what_two_know_of_a_move_is_its_later_state() -> None:
    words = [text for _, text in MOVING]
    for place, before in enumerate(words):
        for after in words[place:]:
            assert joined(before, after, 1) == joined(after, before, 1) == after


def test_what_two_know_to_be_done_is_both() -> None:
    one, two = "mb1:5672/a,2@mb2:5672", "mb1:5672/b,2@mb2:5672"
    assert joined(one, two, 1) == "mb1:5672/a/b,2@mb2:5672"
    assert joined("x:1 y:1", "x:1 2@z:1", 3) == "x:1 2@z:1 x:1"


def test_two_moves_that_were_begun_from_one_home_become_one_of_them() -> None:
    one, two = "mb1:5672>2@mb2:5672", "mb1:5672>2@mb3:5672"
    assert joined(one, two, 1) == joined(two, one, 1) == two


def test_what_all_decided_for_a_lost_home_counts_more_than_what_it_began_and_less_than_what_it_did() -> (
    None
):
    for_it, begun = "mb1:5672/!mb1:5672>2@mb2:5672", "mb1:5672>2@mb3:5672"
    assert joined(for_it, begun, 1) == joined(begun, for_it, 1) == for_it
    done = "mb1:5672,2@mb3:5672"
    assert joined(for_it, done, 1) == joined(done, for_it, 1) == done
    back = "mb1:5672/!mb1:5672,2@mb2:5672"  # came back, and made a move of it
    assert joined(back, "2@mb2:5672", 1) == joined("2@mb2:5672", back, 1) == "2@mb2:5672"


def test_a_subscription_goes_on_when_it_has_nothing_left_at_the_first_home() -> None:
    chain = Chain((ONE, TWO), done=frozenset({"a"}))
    assert (chain.first("a"), chain.first("b")) == (TWO, ONE)
    assert Chain((ONE, TWO), is_open=False, done=frozenset({"a"})).first("a") == ONE


def test_nothing_is_published_while_the_home_before_owes_an_answer() -> None:
    assert may_publish(TWO, [])
    assert not may_publish(TWO, [1])
    assert not may_publish(None, [])
