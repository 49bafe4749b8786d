from __future__ import annotations

import pytest

from bench.figures.cli import chosen
from bench.figures.measure.audit import MEMORY_GROUP, agree, growth, submit
from bench.figures.measure.watched import Cost

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
