"""Sifting a run says what looking at every message says."""

from __future__ import annotations

import dataclasses

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark import order
from spark.run import Run
from spark.sifted import NO_PARTIAL, Sifted, held, sifted
from tests.unit.spark.conftest import Planted

DAY, ANOTHER = "2026-09-21", "2026-09-22"


def verdicts(fates: DataFrame) -> dict[str, int]:
    rows = fates.filter("ordinal = 0").groupBy("verdict").count().collect()
    return {row["verdict"]: row["count"] for row in rows}


@pytest.fixture(scope="module")
def found(planted_run: Planted) -> Sifted:
    return sifted(planted_run.run)


def test_odd_messages_have_the_fates_that_they_have_among_all(found: Sifted) -> None:
    run, whole = found.run, found.run.fates()
    assert verdicts(found.fates) == {
        verdict: count for verdict, count in verdicts(whole).items() if verdict != "ok"
    }
    plain = found.counts().filter("of = 'verdict'").agg(F.sum("messages")).first()
    assert plain is not None
    assert plain[0] == verdicts(whole)["ok"]
    assert run.session.conf.get(NO_PARTIAL) == "false"


def test_all_arrivals_are_judged(found: Sifted) -> None:
    arrivals, every = found.arrivals(), order.arrivals(found.run.fates())
    assert arrivals.columns == every.columns
    assert arrivals.exceptAll(every).isEmpty()
    assert every.exceptAll(arrivals).isEmpty()


def test_of_a_day_only_its_own_messages_are_counted(planted_run: Planted) -> None:
    counted = {}
    for day in (DAY, ANOTHER):
        own = sifted(dataclasses.replace(planted_run.run, day=day))
        judged = own.counts().count() > 0, verdicts(own.fates) != {}
        counted[day] = (*judged, own.late().count())
    assert counted == {DAY: (True, True, 1), ANOTHER: (False, False, 0)}


def test_what_is_held_is_the_same_rows(planted_run: Planted) -> None:
    run: Run = planted_run.run
    rows = run.session.range(5)
    assert held(rows).count() == 5
