"""Sifting a run says what looking at every message says."""

from __future__ import annotations

import dataclasses

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark import order
from spark.run import Run
from spark.sifted import NO_PARTIAL, held, sifted
from tests.unit.spark.conftest import Planted

DAY, ANOTHER = "2026-09-21", "2026-09-22"


def verdicts(fates: DataFrame) -> dict[str, int]:
    rows = fates.filter("ordinal = 0").groupBy("verdict").count().collect()
    return {row["verdict"]: row["count"] for row in rows}


def test_odd_messages_have_the_fates_that_they_have_among_all(planted_run: Planted) -> None:
    run = planted_run.run
    found, whole = sifted(run), run.fates()
    assert verdicts(found.fates) == {
        verdict: count for verdict, count in verdicts(whole).items() if verdict != "ok"
    }
    plain = found.counts().filter("of = 'verdict'").agg(F.sum("messages")).first()
    assert plain is not None
    assert plain[0] == verdicts(whole)["ok"]
    assert run.session.conf.get(NO_PARTIAL) == "false"


def test_all_arrivals_are_judged(planted_run: Planted) -> None:
    run = planted_run.run
    arrivals, every = sifted(run).arrivals(), order.arrivals(run.fates())
    assert arrivals.columns == every.columns
    assert arrivals.exceptAll(every).isEmpty()
    assert every.exceptAll(arrivals).isEmpty()


def test_of_a_day_only_its_own_messages_are_counted(planted_run: Planted) -> None:
    counted = {}
    for day in (DAY, ANOTHER):
        found = sifted(dataclasses.replace(planted_run.run, day=day))
        judged = found.counts().count() > 0, verdicts(found.fates) != {}
        counted[day] = (*judged, found.late().count())
    assert counted == {DAY: (True, True, 1), ANOTHER: (False, False, 0)}


def test_what_is_held_is_the_same_rows(planted_run: Planted) -> None:
    run: Run = planted_run.run
    rows = run.session.range(5)
    assert held(rows).count() == 5
