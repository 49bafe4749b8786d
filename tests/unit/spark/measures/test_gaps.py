from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from messagebus.recording.manifest import Incident
from spark.measures import gaps
from spark.measures.gaps import longest

Span = tuple[str, int, int | None]
UNTIL = 1_200
SECOND = 1_000_000_000


def found(session: SparkSession, spans: list[Span]) -> dict[str, tuple[int, int]]:
    rows = session.createDataFrame(spans, "who string, begin long, done long")
    gaps = longest(rows, ["who"], start="begin", end="done", until_ns=UNTIL).collect()
    return {row.who: (row.gap_ns, row.until_ns) for row in gaps}


def oracle(spans: list[Span]) -> dict[str, int]:
    """Return, for every end, since when anything waited without an end in between."""
    gaps: dict[str, int] = {}
    for who in {span[0] for span in spans}:
        ends = [end for name, _, end in spans if name == who and end is not None]
        own = sorted(
            (
                min((each for each in ends if each > start), default=UNTIL) if end is None else end,
                start,
            )
            for name, start, end in spans
            if name == who
        )
        for place, (end, _) in enumerate(own):
            waiting_since = min(start for _, start in own[place:])
            before = own[place - 1][0] if place else waiting_since
            gaps[who] = max(gaps.get(who, 0), end - max(before, waiting_since))
    return gaps


def test_a_silence_without_anything_waiting_is_no_gap(session: SparkSession) -> None:
    assert found(session, [("p", 0, 10), ("p", 500, 520)]) == {"p": (20, 520)}


def test_a_stall_counts_from_the_end_before_it(session: SparkSession) -> None:
    spans: list[Span] = [("p", 0, 10), ("p", 5, 310), ("p", 200, 320)]
    assert found(session, spans) == {"p": (300, 310)}


def test_one_message_waits_from_its_start(session: SparkSession) -> None:
    assert found(session, [("p", 100, 140)]) == {"p": (40, 140)}


def test_what_has_no_end_waits_for_the_next_one_or_until_the_run_is_over(
    session: SparkSession,
) -> None:
    spans: list[Span] = [
        *[("next", 0, 10), ("next", 20, None), ("next", 400, 410)],
        *[("never", 0, 10), ("never", 200, None), ("never", 700, None)],
        *[("nothing", 100, None)],
        *[("late", 1_300, None)],
    ]
    assert found(session, spans) == {
        "next": (390, 410),
        "never": (1000, 1200),
        "nothing": (1100, 1200),
        "late": (0, 1300),
    }


@pytest.mark.parametrize("seed", range(2))
def test_gaps_agree_with_the_oracle(session: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    starts = [(chance.choice("ab"), chance.randrange(1_000)) for _ in range(150)]
    spans: list[Span] = [
        (who, start, None if chance.random() < 0.3 else start + chance.randrange(60))
        for who, start in starts
    ]
    assert {who: gap for who, (gap, _) in found(session, spans).items()} == oracle(spans)


def test_the_gap_around_an_incident_is_its_own(session: SparkSession) -> None:
    spans = [
        ("p1", 0, 1 * SECOND),
        ("p1", 1 * SECOND, 2 * SECOND),
        # Frozen for three seconds.
        ("p1", 2 * SECOND, 5 * SECOND),
        ("p1", 5 * SECOND, 6 * SECOND),
        ("p2", 2 * SECOND, int(2.5 * SECOND)),
        ("p1", 60 * SECOND, 69 * SECOND),
    ]
    every = gaps.every(
        session.createDataFrame(spans, "publisher string, begin long, done long"),
        ["publisher"],
        start="begin",
        end="done",
    )
    incidents = gaps.incident_rows(
        session,
        [
            Incident("start", "mb1", 40 * SECOND, 41 * SECOND),
            Incident("kill", "mb1", 2 * SECOND, 2 * SECOND),
        ],
    )
    found = gaps.around(every, ["publisher"], incidents).collect()
    assert {(row.number, row.kind, row.publisher, row.gap_ns) for row in found} == {
        (0, "kill", "p1", 3 * SECOND),
        (0, "kill", "p2", SECOND // 2),
    }


def test_no_incidents_have_no_gaps(session: SparkSession) -> None:
    every = session.createDataFrame([("p1", 5, 5)], "publisher string, until_ns long, gap_ns long")
    incidents = gaps.incident_rows(session, [])
    assert gaps.around(every, ["publisher"], incidents).count() == 0
