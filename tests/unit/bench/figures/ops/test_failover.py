import json
from pathlib import Path

import pytest

from bench.errors import BenchError, InputInvalid
from bench.figures.ops.failover import failovers, figures_of


def write(folder: Path, number: int, *, steps: dict[str, float], serving_s: float = 20.0) -> None:
    found = {"steps_s": steps, "serving_s": serving_s, "resync_s": 3.0, "confirmed": 900}
    (folder / f"failover-{number}.json").write_text(json.dumps(found))


def test_each_step_has_its_median_and_the_words_of_the_first_time(tmp_path: Path) -> None:
    for number, seconds in enumerate((1.0, 3.0, 2.0)):
        host = ("db1", "db2")[number % 2]
        write(tmp_path, number, steps={f"promote {host}": seconds, "mount": 0.5})
    found = {figure.id: figure for figure in figures_of(failovers(tmp_path))}
    assert found["ops.failover.serving_s"].samples == (20.0, 20.0, 20.0)
    assert found["ops.failover.step01_s"].value == 2.0
    assert found["ops.failover.step01_s"].what.endswith("step 1: promote db1")
    assert found["ops.failover.rest_s"].value == 17.5
    assert found["ops.failover.resync_s"].value == 3.0


def test_without_a_power_off_it_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="pytest tests/hosts"):
        failovers(tmp_path)


def test_what_is_no_failover_is_told_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "failover-1.json").write_text('{"steps_s": []}')
    with pytest.raises(InputInvalid, match=r"failover-1\.json"):
        failovers(tmp_path)


def test_different_playbooks_have_no_median(tmp_path: Path) -> None:
    write(tmp_path, 1, steps={"promote": 1.0})
    write(tmp_path, 2, steps={"promote": 1.0, "mount": 0.5})
    with pytest.raises(InputInvalid, match="different playbooks"):
        list(figures_of(failovers(tmp_path)))
