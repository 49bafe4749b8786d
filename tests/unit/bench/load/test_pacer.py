from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.pacer import NEVER_NS, Pacer

S = 1_000_000_000


@pytest.mark.parametrize(
    ("rate_per_s", "intended_ns"),
    [
        (1.0, [0, S, 2 * S, 3 * S]),
        (1000.0, [0, 1_000_000, 2_000_000, 3_000_000]),
        # Below the number of processes: one message in 4 s, not "as fast as you can".
        (0.25, [0, 4 * S, 8 * S, 12 * S]),
        (3.0, [0, 333_333_333, 666_666_666, S]),
        (0.0001, [0, 1000 * S, 2000 * S, 3000 * S]),
    ],
)
def test_messages_are_intended_at_even_distances(rate_per_s: float, intended_ns: list[int]) -> None:
    pacer = Pacer(rate_per_s, start_ns=0)
    assert [pacer.take() for _ in range(4)] == intended_ns


def test_a_pause_has_no_next_message_and_keeps_the_rest_of_the_interval() -> None:
    pacer = Pacer(1, start_ns=0)
    pacer.take()
    pacer.change(0, now_ns=S // 4)
    assert pacer.next_ns() == NEVER_NS
    pacer.change(0.5, now_ns=10 * S)
    assert pacer.next_ns() == 10 * S + 3 * S // 2


def test_a_faster_rate_shortens_the_interval_that_runs() -> None:
    pacer = Pacer(0.01, start_ns=0)
    pacer.take()
    pacer.change(1000, now_ns=50 * S)
    assert pacer.next_ns() == 50 * S + 500_000


def test_a_late_sender_keeps_its_intended_times_when_the_rate_changes() -> None:
    pacer = Pacer(10, start_ns=0)
    pacer.change(1000, now_ns=S)
    late = [pacer.take() for _ in range(11)]
    assert late == [n * S // 10 for n in range(11)]
    assert pacer.take() == S + S // 1000


def test_a_negative_or_endless_rate_is_refused() -> None:
    for rate in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="rate"):
            Pacer(rate, start_ns=0)


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 5000), st.integers(1, 3 * S)), min_size=1, max_size=8
    ),
    late=st.booleans(),
)
def test_the_count_follows_the_integral_of_the_rate(
    changes: list[tuple[int, int]], late: bool
) -> None:
    """Oracle: an integral in exact fractions. A sender in time and a late one see one schedule."""
    pacer = Pacer(changes[0][0], start_ns=0)
    now_ns, integral, taken = 0, Fraction(0), []
    for (rate, lasts_ns), (next_rate, _) in zip(changes, [*changes[1:], (0, 0)], strict=True):
        now_ns += lasts_ns
        integral += Fraction(rate * lasts_ns, S)
        if not late:
            while pacer.next_ns() <= now_ns:
                taken.append(pacer.take())
        pacer.change(next_rate, now_ns=now_ns)
    while pacer.next_ns() <= now_ns:
        taken.append(pacer.take())
    assert taken == sorted(taken)
    assert abs(len(taken) - integral) <= 1 + Fraction(len(changes), 1000)
