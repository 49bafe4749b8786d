from __future__ import annotations

from bench.figures.cli import chosen
from bench.figures.measure.audit_memory import GROUP, submit


def test_spark_is_told_how_much_memory_it_has() -> None:
    argv = submit("1g")
    assert argv[-2:] == ["--driver-memory", "1g"]
    assert argv[2].endswith("/spark-submit")
    assert GROUP in chosen(["measure"])
