"""The audit's figures: the generated run, DuckDB's answers about it by hand, and what counts as a difference.

tests/unit/spark/test_scans.py compares DuckDB's answers with Spark's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.errors import BenchError
from bench.figures.audit import MESSAGES, Cost, compared, differences, missed_faults, watched
from bench.figures.duckdb_audit import audit, opened
from bench.figures.generated_run import WALL_NS, Planted, lay
from messagebus.recording.events import EVENTS
from tests.support import duckdb_answers as answers


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
    with answers.opened(tmp_path) as database:
        seconds = answers.answer(database, "seconds")
        confirmed = [row for row in seconds if row[0] == "confirmed"]
        assert sum(row[5] for row in confirmed) == MADE
        assert sum(row[6] for row in confirmed) == MADE * 1024
        assert sum(row[3] for row in answers.answer(database, "bins")) == MADE
        for _, _, total, *values in answers.answer(database, "latency"):
            assert total == pytest.approx(MADE / 4, rel=0.2)
            assert values == sorted(values)
        depths = answers.answer(database, "depths_of_events")
        assert sum(entered for *_, entered, _, _, _, _ in depths) == MADE
        # The lost one.
        assert sum(left for *_, left, _, _, _ in depths) == MADE - 1


def test_it_finds_one_of_each(tmp_path: Path) -> None:
    planted = lay(tmp_path, 5000)
    with opened(tmp_path) as database:
        found = audit(database)
    expected = {"ok": 4997, "lost": 1, "altered": 1, "unexplained": 1, "orphan": 1}
    assert found == {"verdicts": expected, "late": [planted.late]}


def test_every_publish_is_in_the_histogram_of_its_publisher_and_broker(tmp_path: Path) -> None:
    lay(tmp_path, 1000)
    found = answers.fed(tmp_path)
    assert len({publisher for publisher, _ in found}) == 50
    assert sum(each.get_total_count() for each in found.values()) == 1000
    assert min(each.get_min_value() for each in found.values()) > 1000


def test_two_audits_agree_to_the_row_or_each_difference_is_reported() -> None:
    ours = {"verdicts": {"ok": 5, "lost": 1, "altered": 0}, "late": [{"message_id": "b"}]}
    assert differences(ours, {"verdicts": {"ok": 5, "lost": 1}, "late": ["b"]}) == []
    assert len(differences(ours, {"verdicts": {"ok": 6}, "late": []})) == 2


def test_a_planted_fault_that_is_not_named_is_reported_and_so_is_one_too_many() -> None:
    planted = Planted(lost="l", altered="a", doubled="d", orphan="o", late="t")
    suspects = [("lost", "l"), ("altered", "a"), ("unexplained", "d"), ("orphan", "o")]
    rows = [{"verdict": verdict, "message_id": id} for verdict, id in suspects]
    late = [{"message_id": "t"}]
    assert missed_faults({"suspects": rows, "late": late}, planted) == []
    assert missed_faults({"suspects": rows[1:], "late": late}, planted) == ["lost l was not found"]
    found = {"suspects": [*rows, {"verdict": "lost", "message_id": "x"}], "late": late}
    assert missed_faults(found, planted) == ["lost x was never planted"]


@pytest.mark.parametrize(("messages", "met"), [(MESSAGES, False), (MESSAGES // 10, None)])
def test_the_ratio_has_a_goal_at_the_full_size_alone(messages: int, met: bool | None) -> None:
    *_, ratio = compared(messages, Cost(60.0, 1, ""), Cost(10.0, 1, ""))
    assert (ratio.id, ratio.value, ratio.met) == ("measure.audit.ratio", 6, met)


def test_a_command_is_watched_with_all_that_it_starts() -> None:
    work = "sum(range(10**7)); print('done')"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}], check=True)"
    cost = watched([sys.executable, "-c", inner])
    assert cost.output == "done\n"
    assert cost.memory_mib > 5
    assert cost.cpu_s > 0


def test_a_command_that_fails_says_its_last_line() -> None:
    with pytest.raises(BenchError, match="no such thing"):
        watched([sys.executable, "-c", "raise SystemExit('no such thing')"])
    assert watched([sys.executable, "-c", "raise SystemExit(3)"], may_fail=True).output == ""
