"""Next steps of an agent for a partition that moves, and refused moves."""

from __future__ import annotations

import itertools

import pytest

from messagebus.core.homes import Chain, Home, joined, may_publish, write_chains
from messagebus.services.agent.topology.handover import (
    Facts,
    Step,
    abandoned,
    next_step,
    sealed,
    why_not,
)
from tests.support.move_model import Rules, World, explore

A, B, C = BROKERS = ("a:5672", "b:5672", "c:5672")
OPEN = Chain((Home(A, 3),))
MOVING = sealed(OPEN, B)
MOVED = Chain(MOVING.homes)
NOTHING = Facts(bound=(), quiet=False, next_bound=False, left={})


def test_a_sealed_segment_takes_nothing_until_the_next_is_open() -> None:
    assert OPEN.taking == Home(A, 3)
    assert MOVING.taking is None
    assert MOVED.taking == Home(B, 4)


def test_the_old_home_unbinds_passes_the_barrier_and_opens_what_is_bound() -> None:
    bound = NOTHING._replace(bound={3})
    assert next_step(OPEN, A, bound) is None
    assert next_step(MOVING, A, bound) is None
    prepared = bound._replace(next_bound=True)
    assert next_step(MOVING, A, prepared) == (Step.UNBIND, 3)
    assert next_step(MOVING, A, NOTHING) == (Step.PASS_BARRIER, 3)
    quiet = NOTHING._replace(quiet=True)
    assert next_step(MOVING, A, quiet) is None
    assert next_step(MOVING, A, quiet._replace(next_bound=True)) == (Step.OPEN, 4)


def test_the_next_home_binds_and_decides_nothing() -> None:
    assert next_step(MOVING, B, NOTHING) == (Step.BIND, 4)
    facts = Facts(bound={4}, quiet=True, next_bound=True, left={3: 0, 4: 0})
    assert next_step(MOVING, B, facts) is None
    assert next_step(MOVED, B, facts) is None


def test_a_home_that_comes_back_unbinds_what_it_no_longer_holds_before_anything_else() -> None:
    facts = Facts(bound={1, 3}, quiet=True, next_bound=True, left={3: 0})
    assert next_step(MOVED, A, facts) == (Step.UNBIND, 1)
    assert next_step(MOVED, A, facts._replace(bound={3})) == (Step.UNBIND, 3)


@pytest.mark.parametrize("left", [{}, {3: 1}, {4: 0}])
def test_a_segment_with_messages_or_of_an_unknown_number_is_not_finished(
    left: dict[int, int],
) -> None:
    assert next_step(MOVED, A, NOTHING._replace(left=left)) is None


def test_an_empty_segment_is_finished_by_its_home_once_the_next_is_open() -> None:
    empty = Facts(bound=(), quiet=True, next_bound=False, left={3: 0})
    assert next_step(MOVED, A, empty) == (Step.FINISH, 3)
    assert next_step(MOVED, C, empty) is None
    assert next_step(MOVING, A, empty) is None


def test_the_open_segment_is_never_finished() -> None:
    assert next_step(OPEN, A, Facts(bound={3}, quiet=True, next_bound=True, left={3: 0})) is None


def test_of_any_chain_one_broker_at_most_begins_a_move() -> None:
    chains = [
        Chain(tuple(Home(name, epoch + 1) for epoch, name in enumerate(names)), is_open)
        for count in (1, 2, 3)
        for names in itertools.product(BROKERS, repeat=count)
        for is_open in (True, False)
    ]
    for chain in chains:
        begin = {me for me in BROKERS for to in BROKERS if not why_not(chain, me, to, BROKERS)}
        wanted = {chain.homes[0].broker} if len(chain.homes) == 1 and chain.is_open else set()
        assert begin == wanted, chain


@pytest.mark.parametrize(
    ("chain", "me", "to", "told"),
    [
        (OPEN, B, C, "its home a:5672 decides"),
        (OPEN, A, A, "a:5672 is its home"),
        (OPEN, A, "d:5672", "d:5672 is not on the list, or drains"),
        (MOVING, A, C, "it is moving to b:5672, which goes on by itself"),
        (MOVED, B, C, "its former home a:5672 still has messages: consume these first"),
    ],
)
def test_a_move_is_refused_with_its_reason(chain: Chain, me: str, to: str, told: str) -> None:
    assert why_not(chain, me, to, BROKERS) == told


LOST_A, LOST_B = frozenset({Home(A, 3)}), frozenset({Home(B, 4)})
GIVEN_UP = Chain((Home(A, 3), Home(C, 4)), False, lost=LOST_A)
# When one of its homes is lost: what is decided, until nothing of it is left.
ABANDONED = [
    (OPEN, A, [GIVEN_UP, Chain((Home(C, 4),), lost=LOST_A)]),
    (MOVING, A, [Chain((Home(B, 4),), lost=LOST_A)]),
    (MOVED, A, [Chain((Home(B, 4),), lost=LOST_A)]),
    (MOVING, B, [Chain((Home(A, 3), Home(C, 5)), False, lost=LOST_B)]),
    (MOVED, B, [Chain((Home(A, 3), Home(C, 5)), False, lost=LOST_B)]),
]


@pytest.mark.parametrize(("chain", "lost", "states"), ABANDONED)
def test_a_lost_home_is_passed_by_and_what_it_knows_or_has_begun_is_never_the_later_state(
    chain: Chain, lost: str, states: list[Chain]
) -> None:
    for state in states:
        assert abandoned(chain, lost, C, is_bound=False) in (chain, state)
        on_its_disk = [chain]
        if chain.homes[-1].broker == lost and len(chain.homes) == 1:
            on_its_disk += [sealed(chain, to) for to in BROKERS if to != lost]
        chain = abandoned(chain, lost, C, is_bound=True)
        assert chain == state
        for stale in on_its_disk:
            words = write_chains([stale]), write_chains([state])
            assert joined(*words, 1) == joined(*words[::-1], 1) == words[1]
    assert abandoned(chain, lost, C, is_bound=True) == chain


def test_a_lost_home_that_is_back_in_time_makes_a_move_of_it() -> None:
    assert next_step(GIVEN_UP, A, NOTHING) == (Step.PASS_BARRIER, 3)
    assert next_step(GIVEN_UP, C, NOTHING) == (Step.BIND, 4)
    assert next_step(GIVEN_UP, A, NOTHING._replace(quiet=True, next_bound=True)) == (Step.OPEN, 4)


def test_a_publisher_waits_for_its_answers_from_the_old_home() -> None:
    assert may_publish(Home(B, 4), [4, 4])
    assert not may_publish(Home(B, 4), [3, 4])
    assert not may_publish(None, [])


def test_every_schedule_of_one_move_keeps_the_order_and_ends() -> None:
    fault, _, path = explore(World(), Rules())
    assert not fault, "\n".join([fault, *path])
