"""Dashboards as Grafana imports them, and the rules that they stand on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.monitoring.dashboards import BOARDS, COLUMNS, Board, command, queries, rendered

FOLDER = Path(__file__).resolve().parents[4] / "ops" / "monitoring"
boards = pytest.mark.parametrize("board", BOARDS, ids=lambda each: each.name)


@boards
def test_panels_stand_side_by_side_and_none_on_another(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    made = json.loads(rendered(board))
    for panel in made["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in made["panels"]}) == len(board.panels)


@boards
def test_every_variable_of_a_query_is_one_of_the_dashboard(board: Board) -> None:
    told = {each["name"] for each in json.loads(rendered(board))["templating"]["list"]}
    used = {
        name
        for panel in board.panels
        for q, _ in panel.queries
        for name in re.findall(r"\$(\w+)", q)
    }
    assert used <= told
    assert not any("$" in query for _, query in queries(board, queue="orders/billing"))


def test_every_recorded_series_of_a_query_has_its_rule() -> None:
    rules = set(re.findall(r"record: (\S+)", (FOLDER / "records.yml").read_text()))
    used = {
        name
        for board in BOARDS
        for _, query in queries(board, queue=".*")
        for name in re.findall(r"messagebus:\w+:\w+", query)
    }
    assert used <= rules


def test_the_command_writes_one_file_a_dashboard(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [str(tmp_path / "new")])
    assert done.exit_code == 0
    assert {path.stem for path in (tmp_path / "new").iterdir()} == {each.name for each in BOARDS}
