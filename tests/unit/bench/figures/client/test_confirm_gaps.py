"""Gaps of a publisher after an event at its broker."""

from __future__ import annotations

import pytest

from bench.errors import BenchError
from bench.figures.client.confirm_gaps import KINDS, S, figures_of, gaps_s


def ns(*seconds: float) -> list[int]:
    return [int(each * S) for each in seconds]


def test_a_gap_lasts_from_the_event_or_between_two_confirms_after_it() -> None:
    confirmed = ns(0.9, 1.5, 1.6, 2.4, 2.5, 9, 10.1)
    assert gaps_s(confirmed, ns(1.0), 1.4) == pytest.approx([0.8])
    assert gaps_s(confirmed, ns(1.0), 1.0) == pytest.approx([0.8])
    assert gaps_s(ns(0.9, 1.7, 1.8, 2.5), ns(1.0), 0.75) == pytest.approx([0.7])


def test_a_silence_that_ends_after_the_watch_counts_whole() -> None:
    assert gaps_s(ns(1.1, 8, 9), ns(1.0), 2.0) == pytest.approx([6.9])
    assert gaps_s(ns(0.5, 8, 9), ns(1.0), 2.0) == pytest.approx([7.0])


def test_a_silence_without_an_end_is_an_error() -> None:
    with pytest.raises(BenchError, match="no confirm"):
        gaps_s(ns(1.1, 1.2), ns(1.0), 2.0)
    with pytest.raises(BenchError, match="no confirm"):
        gaps_s([], ns(1.0), 2.0)


def test_the_worst_event_is_the_figure_and_all_are_kept() -> None:
    kill = next(kind for kind in KINDS if kind.name == "kill")
    (figure,) = figures_of(kill, [0.1, 0.3, 0.2], "again")
    assert figure.id == "client.gap.kill_s"
    assert (figure.value, figure.met) == (0.3, False)
    assert figure.samples == (0.1, 0.3, 0.2)
