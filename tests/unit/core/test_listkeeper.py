"""core.listkeeper: a list is replaced by a newer one of the same cluster, and by nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.listkeeper import Judgement, ListKeeper

NEWER, SAME, REFUSED = Judgement.NEWER, Judgement.SAME, Judgement.REFUSED


def keeper(**fields: object) -> ListKeeper:
    made = ListKeeper(cluster="prod", hosts_allowed=("mb*.example", "10.0.0.?"))
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def judge(
    made: ListKeeper,
    generation: int,
    *,
    cluster: str = "prod",
    hosts: tuple[str, ...] = ("mb1.example",),
    now_ms: int = 1_000,
) -> Judgement:
    return made.judge(generation=generation, cluster=cluster, hosts=hosts, now_ms=now_ms)[0]


@pytest.mark.parametrize(
    ("in_hand", "arrived", "expected"),
    [
        (-1, 0, NEWER),
        (-1, 1, NEWER),
        (0, 0, NEWER),
        (0, 1, NEWER),
        (5, 6, NEWER),
        (5, 5, SAME),
        (5, 4, REFUSED),
        (5, 0, REFUSED),
    ],
)
def test_only_a_newer_generation_replaces_a_list(
    in_hand: int, arrived: int, expected: Judgement
) -> None:
    made = keeper(generation=in_hand)
    assert judge(made, arrived) is expected
    assert made.generation == (in_hand if expected is REFUSED else arrived)


@pytest.mark.parametrize(
    ("cluster", "hosts", "word"),
    [
        ("test", ("mb1.example",), "cluster 'test'"),
        ("", ("mb1.example",), "cluster ''"),
        ("prod", ("mb1.example", "evil.example"), "host 'evil.example'"),
        ("prod", ("mb1.example.evil",), "host 'mb1.example.evil'"),
        ("prod", ("MB1.example",), "host 'MB1.example'"),
    ],
)
def test_a_refused_list_changes_nothing_and_says_why(
    cluster: str, hosts: tuple[str, ...], word: str
) -> None:
    made = keeper(generation=3, good_ms=500)
    before = dataclasses.asdict(made)
    judgement, reason = made.judge(generation=4, cluster=cluster, hosts=iter(hosts), now_ms=9_000)
    assert (judgement, dataclasses.asdict(made)) == (REFUSED, before)
    assert word in reason


def test_an_older_list_says_both_generations() -> None:
    _, reason = keeper(generation=7).judge(generation=3, cluster="prod", hosts=(), now_ms=0)
    assert "3" in reason
    assert "7" in reason


def test_any_cluster_and_host_will_do_when_none_is_configured() -> None:
    assert judge(ListKeeper(), 1, cluster="whatever", hosts=("anything",)) is NEWER


def test_one_allowed_pattern_is_enough() -> None:
    assert judge(keeper(), 1, hosts=("10.0.0.7", "mb22.example")) is NEWER


def test_the_age_of_the_last_good_answer_is_visible() -> None:
    made = keeper()
    assert made.age_ms(5_000) is None
    made.failed()
    assert made.age_ms(5_000) is None
    judge(made, 1, now_ms=5_000)
    assert made.age_ms(6_500) == 1_500
    made.unchanged(7_000)
    assert made.age_ms(7_000) == 0
    judge(made, 0, now_ms=8_000)  # refused: older
    assert made.age_ms(8_000) == 1_000


def test_faults_are_counted_and_a_good_answer_ends_the_row() -> None:
    made = keeper()
    made.failed()
    made.failed()
    assert (made.faults, made.faults_in_a_row) == (2, 2)
    judge(made, 1)
    assert (made.faults, made.faults_in_a_row) == (2, 0)
    made.failed()
    made.unchanged(1)
    assert (made.faults, made.faults_in_a_row) == (3, 0)


LISTS = st.tuples(
    st.integers(0, 5),
    st.sampled_from(["prod", "test"]),
    st.sets(st.sampled_from(["mb1.example", "10.0.0.1", "evil"]), min_size=1),
)


@given(st.lists(LISTS, max_size=12))
def test_the_list_in_hand_is_the_newest_of_the_acceptable_ones(
    lists: list[tuple[int, str, set[str]]],
) -> None:
    made = keeper()
    believed: list[int] = []
    for now_ms, (generation, cluster, hosts) in enumerate(lists):
        acceptable = (
            cluster == "prod"
            and hosts <= {"mb1.example", "10.0.0.1"}
            and generation >= max(believed, default=-1)
        )
        new = acceptable and (generation == 0 or generation > max(believed, default=-1))
        expected = (NEWER if new else SAME) if acceptable else REFUSED
        assert judge(made, generation, cluster=cluster, hosts=tuple(hosts), now_ms=now_ms) is (
            expected
        )
        if acceptable:
            believed.append(generation)
            assert made.good_ms == now_ms
        assert made.generation == max(believed, default=-1)
