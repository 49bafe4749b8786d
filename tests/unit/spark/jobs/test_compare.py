from __future__ import annotations

import dataclasses

from spark.compare import compared, worse
from spark.jobs.compare import _measured, _page
from spark.page import render_text
from tests.unit.spark.conftest import Planted


def test_a_run_is_as_good_as_itself_and_better_than_an_empty_day(planted_run: Planted) -> None:
    measured = _measured(planted_run.run)
    same = compared(measured["numbers"], measured["numbers"])
    assert {row.ratio for row in same if row.a} == {1.0}
    assert worse(same, 0.0) == []
    text = render_text(_page(["a", "b"], same, [measured, measured], []))
    assert "The second is not worse." in text
    empty = _measured(dataclasses.replace(planted_run.run, day="2020-01-01"))
    assert empty["curves"] == {}
    rows = compared(measured["numbers"], empty["numbers"])
    text = render_text(_page(["a", "b"], rows, [measured, empty], worse(rows, 0.0)))
    assert "publish: handed over to confirmed, p99: the second has none" in text
    assert "confirm_from" not in text
