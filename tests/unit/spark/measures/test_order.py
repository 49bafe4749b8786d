"""Order, gaps, and the runs that they are looked for in."""

from __future__ import annotations

import dataclasses
import json
import random
import re

import pytest
from pyspark.sql import DataFrame, SparkSession

from messagebus.recording.manifest import Incident
from spark.lake.ingest import ingest, plan
from spark.lake.tables import Lake
from spark.measures import gaps, order
from spark.measures.gaps import longest
from spark.measures.run import Run
from tests.support.events import MONOTONIC_START_NS, write_run

Delivery = tuple[bytes, str, str, str, str, str | None, int | None, int, int, int, int]
COLUMNS = (
    "message_id binary, topic string, subscription string, first_consumer string,"
    " first_broker string, key string, sequence long, attempts int, deliveries int,"
    " first_redelivered int, first_ns long"
)


def delivery(number: int, at: int, sequence: int | None, **changed: object) -> Delivery:
    row = {
        "message_id": number.to_bytes(16, "big"),
        "topic": "orders",
        "subscription": "billing",
        "consumer": "c1",
        "broker": "mb1",
        "key": None,
        "sequence": sequence,
        "attempts": 1,
        "deliveries": 1,
        "redelivered": 0,
        "at": at,
    } | changed
    return tuple(row.values())  # type: ignore[return-value]


def late(session: SparkSession, rows: list[Delivery]) -> set[int]:
    arrivals = order.arrivals(fates_of(session, rows))
    return {int(row.message_id, 16) for row in order.out_of_order(arrivals).collect()}


def fates_of(session: SparkSession, rows: list[Delivery]) -> DataFrame:
    return session.createDataFrame(rows, COLUMNS).selectExpr("*", "'p1' AS publisher")


def test_the_one_that_comes_after_a_later_one_is_named(session: SparkSession) -> None:
    rows = [delivery(1, 10, 1), delivery(2, 12, 2), delivery(3, 11, 3), delivery(4, 13, 4)]
    assert late(session, rows) == {2}


def test_each_broker_consumer_and_key_has_an_order_of_its_own(session: SparkSession) -> None:
    rows = [
        delivery(1, 10, 9),
        delivery(2, 11, 1, broker="mb2"),
        delivery(3, 11, 2, consumer="c2"),
        delivery(4, 11, 3, key="k"),
        delivery(5, 11, 4, subscription="audit"),
    ]
    assert late(session, rows) == set()


def test_what_was_sent_again_or_redelivered_promises_no_order(session: SparkSession) -> None:
    rows = [
        delivery(1, 10, 9),
        delivery(2, 11, 1, attempts=2),
        delivery(3, 12, 2, redelivered=1),
        delivery(4, 13, None),
        delivery(5, 10, 8),
    ]
    assert late(session, rows) == set()
    assert [tuple(row) for row in order.left_out(fates_of(session, rows)).collect()] == [(2, 3)]


@pytest.mark.parametrize("seed", range(2))
def test_it_agrees_with_a_loop(session: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        delivery(n, chance.randrange(10_000), chance.randrange(500), broker=chance.choice("ab"))
        for n in range(300)
    ]
    highest: dict[str, int] = {}
    expected = set()
    for row in sorted(rows, key=lambda row: (row[10], row[6] or 0)):
        broker, sequence = row[4], row[6] or 0
        if sequence < highest.get(broker, 0):
            expected.add(int.from_bytes(row[0], "big"))
        highest[broker] = max(sequence, highest.get(broker, 0))
    assert late(session, rows) == expected


@pytest.mark.parametrize("seed", range(2))
def test_only_streams_with_something_late_in_them_are_sorted_whole(
    session: SparkSession, seed: int
) -> None:
    """Deliveries are late within a piece of time, and over many of them."""
    chance = random.Random(seed)
    rows = []
    for stream in range(30):
        ats = sorted(chance.sample(range(0, 40 * order.PIECE_NS, order.PIECE_NS // 8), 60))
        swapped = chance.sample(range(60), 2) if stream % 3 else []
        sequences = list(range(60))
        if swapped:
            one, other = swapped
            sequences[one], sequences[other] = sequences[other], sequences[one]
        rows += [
            delivery(stream * 100 + n, at, sequence, consumer=f"c{stream}")
            for n, (at, sequence) in enumerate(zip(ats, sequences, strict=True))
        ]
    arrivals = order.arrivals(fates_of(session, rows))
    doubtful = order.of_streams(arrivals, order.shaken(arrivals))
    names = {row.first_consumer for row in doubtful.select("first_consumer").distinct().collect()}
    assert names == {f"c{stream}" for stream in range(30) if stream % 3}
    some = {row.message_id for row in order.out_of_order(doubtful).collect()}
    assert some == {row.message_id for row in order.out_of_order(arrivals).collect()}


@pytest.mark.parametrize("seed", range(2))
def test_a_key_is_broken_by_what_completed_behind_a_later_publish_of_any_publisher(
    session: SparkSession, seed: int
) -> None:
    chance = random.Random(seed)
    sent, completed = [], list[tuple[int, str, int | None]]()
    for number in range(200):
        at = 10 * number
        confirmed = at + chance.choice((1, 5, 40)) if chance.random() < 0.8 else None
        publisher = chance.choice(("p1", "p2"))
        sent.append((number, publisher, chance.choice(("a", "b", "")), number, at, confirmed))
        done = at + chance.choice((60, 60, 60, 100))
        completed.append((number, "ledger", done))
        completed.append((number, "search", chance.randrange(5_000)))
        if chance.random() < 0.2:
            completed.append((number, "ledger", done + 500))  # again, of which nothing follows
    completed += [(number, "ledger", None) for number in range(0, 200, 7)]
    published = session.createDataFrame(
        [(n.to_bytes(16, "big"), *rest) for n, *rest in sent],
        "message_id binary, publisher string, key string, sequence long, intended_ns long, confirmed_ns long",
    )
    delivered = session.createDataFrame(
        [(n.to_bytes(16, "big"), "t", name, "c", "mb1", done) for n, name, done in completed],
        "message_id binary, topic string, subscription string, consumer string, broker string,"
        " acknowledged_ns long",
    )
    first = {n: done for n, name, done in reversed(completed) if name == "ledger" and done}
    expected = {
        n
        for n, publisher, key, _, at, confirmed in sent
        if key
        and any(
            first[other] < first[n]
            and key == its_key
            and (
                (publisher == its_publisher and at < its_at)
                or (confirmed is not None and confirmed < its_at)
            )
            for other, its_publisher, its_key, _, its_at, _ in sent
        )
    }
    found = order.broken_keys(published, delivered, ["t/ledger"]).collect()
    assert expected
    assert {int(row.message_id, 16) for row in found} == expected
    assert {(row.subscription, row.after > 0) for row in found} == {("ledger", True)}


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


@pytest.mark.parametrize(("seed", "piece_ns"), [(0, gaps.PIECE_NS), (1, 70)])
def test_gaps_agree_with_the_oracle_in_pieces_of_any_length(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int, piece_ns: int
) -> None:
    monkeypatch.setattr(gaps, "PIECE_NS", piece_ns)
    chance = random.Random(seed)
    starts = [(chance.choice("ab"), chance.randrange(1_000)) for _ in range(150)]
    spans: list[Span] = [
        (who, start, None if chance.random() < 0.3 else start + chance.randrange(60))
        for who, start in starts
    ]
    assert {who: gap for who, (gap, _) in found(session, spans).items()} == oracle(spans)


def test_no_task_sorts_all_rows_of_a_publisher(session: SparkSession) -> None:
    rows = session.createDataFrame([("a", 1, 2)], "who string, begin long, done long")
    every = gaps.every(rows, ["who"], start="begin", end="done", until_ns=9)
    plan = every._jdf.queryExecution().analyzed().toString()
    windows = re.findall(r"windowspecdefinition\((.*?) (?:ASC|DESC)", plan)
    assert windows
    assert all("piece" in window for window in windows)


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


def test_a_gap_that_began_with_the_next_incident_is_not_put_on_the_one_before(
    session: SparkSession,
) -> None:
    """A kill 2 s after a broker was removed in good order costs the removal nothing."""
    spans = [
        ("p1", int(9.5 * SECOND), int(9.6 * SECOND)),
        ("p1", int(12.1 * SECOND), 15 * SECOND),
    ]
    every = session.createDataFrame(
        [(name, end, end - begin) for name, begin, end in spans],
        "publisher string, until_ns long, gap_ns long",
    )
    incidents = gaps.incident_rows(
        session,
        [
            Incident("remove", "mb1", 8 * SECOND, 10 * SECOND),
            Incident("kill", "mb2", 12 * SECOND),
        ],
    )
    found = gaps.around(every, ["publisher"], incidents).collect()
    assert {(row.kind, row.gap_ns) for row in found} == {
        ("remove", SECOND // 10),
        ("kill", int(2.9 * SECOND)),
    }


def test_no_incidents_have_no_gaps(session: SparkSession) -> None:
    every = session.createDataFrame([("p1", 5, 5)], "publisher string, until_ns long, gap_ns long")
    incidents = gaps.incident_rows(session, [])
    assert gaps.around(every, ["publisher"], incidents).count() == 0


DAY_NS = 86_400_000_000_000
BEFORE, AFTER = "2026-09-20", "2026-09-21"


@pytest.fixture(scope="module")
def run(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 20 s around midnight."""
    place = tmp_path_factory.mktemp("midnight")
    folder = place / "run"
    write_run(folder, messages=400)
    midnight = 1_790_000_000_000_000_000 // DAY_NS * DAY_NS
    wall = midnight - 10_000_000_000 - MONOTONIC_START_NS
    for path in [folder / "manifest.json", *folder.glob("*.ndjson")]:
        lines = path.read_text().split("\n") if path.suffix == ".ndjson" else [path.read_text()]
        head = json.loads(lines[0])
        head["anchor"]["wall_minus_monotonic_ns"] = wall
        path.write_text("\n".join([json.dumps(head), *lines[1:]]))
    lake = Lake(place / "lake")
    return Run(session, lake, ingest(session, lake, plan(folder, lake)))


def test_days_are_audited_with_what_came_after_midnight(run: Run) -> None:
    verdicts = {}
    for day in (BEFORE, AFTER):
        fates = dataclasses.replace(run, day=day).fates()
        verdicts[day] = {
            r["verdict"]: r["count"] for r in fates.groupBy("verdict").count().collect()
        }
    assert all(set(found) == {"ok"} for found in verdicts.values())
    assert sum(found["ok"] for found in verdicts.values()) == 800
    whole = run.fates().groupBy("date", "verdict").count().collect()
    assert {row["date"]: row["count"] for row in whole} == {
        day: found["ok"] for day, found in verdicts.items()
    }


def test_a_day_that_is_made_again_leaves_the_other_alone(run: Run) -> None:
    rows = run.session.createDataFrame([(1, BEFORE), (2, AFTER)], "n int, date string")
    assert run.keep("numbers", rows).count() == 2
    day = dataclasses.replace(run, day=AFTER)
    again = run.session.createDataFrame([(3, AFTER)], "n int, date string")
    assert [row.n for row in day.keep("numbers", again).collect()] == [3]
    files = run.lake.folder("numbers").glob(f"date={BEFORE}/run_id=run-1/*.parquet")
    assert len(list(files)) == 1


def test_fates_are_made_once_for_the_events_as_they_are(run: Run) -> None:
    run.fates()
    folder = run.lake.folder("fates")
    before = {path.name for path in folder.rglob("*.parquet")}
    run.fates()
    assert {path.name for path in folder.rglob("*.parquet")} == before
