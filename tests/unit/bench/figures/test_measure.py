"""Figures of measuring: made runs, DuckDB's answers about them by hand, ratios and goals of CPU times.

tests/unit/spark/test_scans.py compares DuckDB's answers with Spark's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.errors import BenchError
from bench.figures.cli import chosen
from bench.figures.measure.audit import MEMORY_GROUP, agree, growth, submit
from bench.figures.measure.made import WALL_NS, lay
from bench.figures.measure.oracle import answer, audit, opened
from bench.figures.measure.scans import (
    BACKLOG,
    DUCKDB,
    JOIN,
    MESSAGES,
    SCANS,
    SPARK,
    Both,
    agreed,
    fed,
)
from bench.figures.measure.watched import Answered, Cost, asking, watched
from bench.figures.scene import Scene
from messagebus.recording.events import EVENTS


def rows_of(lake: Path, kind: str) -> list[dict[str, Any]]:
    [path] = (lake / kind).rglob("*.parquet/*.parquet")
    return list(pq.ParquetFile(path).read().to_pylist())


def test_one_of_each_fault_is_in_the_rows_and_nothing_else(tmp_path: Path) -> None:
    planted = lay(tmp_path, 1000)
    published, delivered = (rows_of(tmp_path, kind) for kind in ("published", "delivered"))
    bodies = {row["message_id"].hex(): row["body_hash"] for row in published}
    assert (len(bodies), len(delivered)) == (1000, 1001)
    had = [row["message_id"].hex() for row in delivered]
    assert set(bodies) - set(had) == {planted.lost}
    assert set(had) - set(bodies) == {planted.orphan}
    assert {name for name in had if had.count(name) > 1} == {planted.doubled}
    wrong = [
        r for r in delivered if bodies.get(r["message_id"].hex()) not in (None, r["body_hash"])
    ]
    assert [row["message_id"].hex() for row in wrong] == [planted.altered]


def test_the_same_seed_makes_the_same_run(tmp_path: Path) -> None:
    assert lay(tmp_path / "a", 200) == lay(tmp_path / "b", 200)
    assert lay(tmp_path / "c", 200, seed=2) != lay(tmp_path / "d", 200)


@pytest.mark.parametrize("kind", ["published", "delivered"])
def test_a_lake_has_all_columns_of_the_events_by_the_wall_clock(tmp_path: Path, kind: str) -> None:
    lay(tmp_path, 1000)
    rows = rows_of(tmp_path, kind)
    assert rows[0].keys() == {c.name for c in EVENTS[kind]} - {"run_id"}
    at = "sent_ns" if kind == "published" else "received_ns"
    assert 0 <= rows[0][at] - WALL_NS < 1_000_000_000
    assert isinstance(rows[0]["message_id"], bytes)


def test_what_is_noted_of_it_is_what_there_is(tmp_path: Path) -> None:
    planted = lay(tmp_path, 1000)
    noted = json.loads((tmp_path / "runs" / "made" / "ingested.json").read_text())
    good = {file["kind"]: file["good"] for file in noted["files"].values()}
    assert good == {"published": 1000, "delivered": 1001}
    with opened(tmp_path) as database:
        assert audit(database)["late"] == [planted.late]


MADE = 20_000


def test_what_made_rows_come_to(tmp_path: Path) -> None:
    lay(tmp_path, MADE)
    with opened(tmp_path) as database:
        seconds = answer(database, "seconds")
        confirmed = [row for row in seconds if row[0] == "confirmed"]
        assert sum(row[5] for row in confirmed) == MADE
        assert sum(row[6] for row in confirmed) == MADE * 1024
        assert sum(row[3] for row in answer(database, "bins")) == MADE
        for _, _, total, *values in answer(database, "latency"):
            assert total == pytest.approx(MADE / 4, rel=0.2)
            assert values == sorted(values)
        depths = answer(database, "depths_of_events")
        assert sum(entered for *_, entered, _, _, _ in depths) == MADE
        # The lost one.
        assert sum(left for *_, left, _, _ in depths) == MADE - 1


def test_it_finds_one_of_each(tmp_path: Path) -> None:
    planted = lay(tmp_path, 5000)
    with opened(tmp_path) as database:
        found = audit(database)
    expected = {"ok": 4997, "lost": 1, "altered": 1, "unexplained": 1, "orphan": 1}
    assert found == {"verdicts": expected, "late": [planted.late]}


M = 1_000_000


def test_two_audits_agree_to_the_row_or_it_is_said() -> None:
    ours = {"verdicts": {"ok": 5, "lost": 1, "altered": 0}, "late": [{"message_id": "b"}]}
    assert agree(ours, {"verdicts": {"ok": 5, "lost": 1}, "late": ["b"]}) == []
    assert len(agree(ours, {"verdicts": {"ok": 6}, "late": []})) == 2


def test_spark_is_told_how_much_memory_it_has() -> None:
    argv = submit("1g")
    assert argv[-3:-1] == ("--driver-memory", "1g")
    assert argv[2].endswith("/spark-submit")
    assert argv[-1].endswith("/spark/jobs/audit.py")
    assert MEMORY_GROUP in chosen(["measure"])


@pytest.mark.parametrize(
    ("large_cpu_s", "ratio", "met"), [(230, 1.0, True), (257, 1.15, True), (275, 1.25, False)]
)
def test_what_a_start_costs_is_apart_from_rows(large_cpu_s: float, ratio: float, met: bool) -> None:
    cpu_s = {1 * M: 32.0, 10 * M: 50.0, 100 * M: large_cpu_s}
    costs = {messages: Cost(used, 0, "") for messages, used in cpu_s.items()}
    start, flat = growth(costs)
    assert start.value == pytest.approx(30)
    # 18 s are for 9 million: were it 180 s for 90 million, a row would cost the same.
    assert flat.value == pytest.approx(ratio)
    assert flat.met is met


def costs() -> dict[tuple[str, str], list[float]]:
    spark = {(SPARK, name): [6.0, 5.0, 7.0] for name in (*SCANS.asked, *SCANS.alone)}
    return spark | {(DUCKDB, name): [1.0, 1.0, 1.0] for name in SCANS.asked}


def test_ratios_are_of_one_round_and_the_middle_one_counts() -> None:
    made = {("cells", "percentiles"): [4000.0], **costs()}
    figures = {figure.id: figure for figure in SCANS.told(MESSAGES, made, "again")}
    assert figures["measure.scans.percentiles"].value == 4000
    assert figures["measure.scans.seconds.ratio"].value == 6
    assert figures["measure.scans.seconds.ratio"].samples == (6.0, 5.0, 7.0)
    assert figures["measure.scans.approximate.ratio"].value == 1
    assert all(figure.met for figure in figures.values() if figure.unit == "times")
    assert len(figures) == 1 + len(SCANS.asked) * 3 + len(SCANS.alone) + 1


def test_a_quick_run_has_no_goals() -> None:
    assert all(figure.met is None for figure in SCANS.told(10_000, costs(), "again"))


def test_every_publish_is_in_the_histogram_of_its_publisher_and_broker(tmp_path: Path) -> None:
    lay(tmp_path, 1000)
    found = fed(tmp_path)
    assert len({publisher for publisher, _ in found}) == 50
    assert sum(each.get_total_count() for each in found.values()) == 1000
    assert min(each.get_min_value() for each in found.values()) > 1000


def test_making_fates_is_told_apart_from_the_backlog_of_them() -> None:
    costs = {
        ("spark", "fates"): [250.0],
        ("duckdb", "depths_of_events"): [10.0],
        ("spark", "depths"): [4.0, 5.0],
        ("duckdb", "depths"): [1.0, 1.0],
    }
    figures = {figure.id: figure for figure in BACKLOG.told(MESSAGES, costs, "again")}
    assert figures["measure.backlog.depths.ratio"].value == 4.5
    assert figures["measure.backlog.depths.ratio"].met
    assert figures["measure.backlog.fates.spark.cpu_s"].value == 250
    assert len(figures) == 5


@pytest.mark.parametrize(("joined_s", "ratio", "met"), [(9.0, 1.5, True), (6.0, 1.0, False)])
def test_a_join_that_is_as_cheap_as_the_audit_misses_its_goal(
    joined_s: float, ratio: float, met: bool
) -> None:
    costs = {
        ("spark", "verdicts"): [6.0] * 3,
        ("duckdb", "verdicts"): [2.0] * 3,
        ("spark", "joined"): [joined_s] * 3,
    }
    figures = {figure.id: figure for figure in JOIN.told(MESSAGES, costs, "again")}
    assert figures["measure.join.joined.ratio"].value == ratio
    assert figures["measure.join.joined.ratio"].met is met
    assert len(figures) == 4


class FakeAsked:
    def __init__(self, name: str, log: list[str], found: Any) -> None:
        self._name, self._log, self._found = name, log, found
        self._costs: Iterator[float] = iter(range(1, 100))

    def ask(self, question: str) -> Answered:
        self._log.append(f"{self._name} {question}")
        return Answered(self._found, next(self._costs))


def both(log: list[str], ours: Any = "same", theirs: Any = "same") -> Both:
    return Both(FakeAsked(SPARK, log, ours), FakeAsked(DUCKDB, log, theirs))  # type: ignore[arg-type]


def test_both_are_asked_by_turns_and_the_first_round_does_not_count() -> None:
    log: list[str] = []
    scene = Scene(Path(), lambda _: None, repeat=2)
    costs = both(log).by_turns(scene, ["a"], ["b"])
    assert log == [
        *("duckdb a", "spark a", "spark b"),
        *("spark a", "duckdb a", "spark b"),
        *("duckdb a", "spark a", "spark b"),
    ]
    assert costs == {(SPARK, "a"): [3, 5], (DUCKDB, "a"): [2, 3], (SPARK, "b"): [4, 6]}


def test_a_difference_is_told_with_its_first_rows() -> None:
    with pytest.raises(BenchError, match=r"differ about depths: 2 and 2 rows: \(3, 4\)"):
        agreed("depths", [1, 3], [1, 4])
    with pytest.raises(BenchError, match="differ about a"):
        both([], ours=[1], theirs=[2]).by_turns(Scene(Path(), lambda _: None), ["a"])
    both([]).agree("a")


def test_a_command_is_watched_with_all_that_it_starts() -> None:
    work = "sum(range(10**7)); print('done')"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}], check=True)"
    cost = watched([sys.executable, "-c", inner])
    assert cost.said == "done\n"
    assert cost.memory_mib > 5
    assert cost.cpu_s > 0


def test_a_command_gets_its_input_and_may_say_much() -> None:
    echo = "import sys; print(sys.stdin.read() * 50_000)"
    assert watched([sys.executable, "-c", echo], asked="audit").said == "audit" * 50_000 + "\n"


def test_a_command_that_fails_says_its_last_line() -> None:
    with pytest.raises(BenchError, match="no such thing"):
        watched([sys.executable, "-c", "raise SystemExit('no such thing')"])
    assert watched([sys.executable, "-c", "raise SystemExit(3)"], may_fail=True).said == ""


ECHO = """
import sys
for line in sys.stdin:
    if line == "work\\n":
        sum(range(10**7))
    if line == "end\\n":
        raise SystemExit("had enough")
    print([line.strip()], flush=True) if line != "odd\\n" else None
""".replace("[line.strip()]", "'[\"' + line.strip() + '\"]'")


def test_each_answer_comes_with_what_it_cost() -> None:
    with asking([sys.executable, "-c", ECHO]) as asked:
        idle, busy = asked.ask("rest"), asked.ask("work")
    assert (idle.found, busy.found) == (["rest"], ["work"])
    assert busy.cpu_s > idle.cpu_s


def test_one_that_ends_says_its_last_words() -> None:
    with pytest.raises(BenchError, match="had enough"), asking([sys.executable, "-c", ECHO]) as one:
        one.ask("end")
