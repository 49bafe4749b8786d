"""Judgement of notes of readers: time for which a key stood still, and messages that ran out of order."""

from __future__ import annotations

from pathlib import Path

from bench.figures.order_faults import KEYS, Run, disorder, runs, standstill_ms

MS = 1_000_000
ONE, OTHER = KEYS[:2]


def run(key: str, number: int, at_ms: int) -> Run:
    return Run(key, number, 0, 1, at_ms * MS)


def test_the_longest_standstill_begins_at_the_moment_and_ends_with_a_first_run() -> None:
    found = [
        run(ONE, 0, 10),
        run(OTHER, 0, 20),
        run(ONE, 1, 130),
        run(ONE, 1, 400),  # again: no progress
        run(ONE, 2, 480),
        run(OTHER, 1, 90),
    ]
    assert standstill_ms(found, since_ns=100 * MS) == 350
    assert standstill_ms(found[:4], since_ns=100 * MS) == 30


def test_only_a_first_run_behind_a_later_message_of_its_key_is_out_of_order() -> None:
    found = [run(ONE, 0, 1), run(ONE, 2, 2), run(OTHER, 1, 3), run(ONE, 1, 4), run(ONE, 0, 5)]
    assert disorder(found) == 1


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    told = tmp_path / "runs"
    told.write_text(f"{ONE} 1 0 7 30\n{OTHER} 0 1 7 20\n{ONE} 2 0 7")
    assert runs(told) == [Run(OTHER, 0, 1, 7, 20), Run(ONE, 1, 0, 7, 30)]
