"""Notes of the processes of the trial, and the conditions that are waited for."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.support.trials import once as trials_once
from tests.support.trials.once import RULES, Trial, noted, noted_done, noted_happenings
from tests.support.trials.once_app import DDL, TABLES
from tests.support.trials.once_judge import (
    STOOD,
    STORE_AWAY,
    Happening,
)

S = 1_000_000_000


@pytest.mark.parametrize(
    ("bills", "is_whole"),
    [
        pytest.param([0, 1, 2, 3], True, id="until it has all"),
        pytest.param([0, 1, 1, 1, 1, 1], False, id="no longer than it moves"),
    ],
)
def test_what_is_slow_is_waited_for(
    bills: Iterable[int], is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(None, tmp_path, seconds=1, orders=3, seed=1)  # type: ignore[arg-type]
    came = iter(bills)

    def counts(_trial: Trial) -> Mapping[str, int]:
        return {"orders": 3, "bills": next(came)}

    monkeypatch.setattr(Trial, "_counts", counts)
    monkeypatch.setattr(trials_once, "LOOK_S", 0.01)
    monkeypatch.setattr(trials_once, "STALLED_S", 0.015)
    has_all = trial._wait(lambda now: now["bills"] >= now["orders"], of=("bills",), quiet_s=0)
    assert has_all is is_whole


def test_what_processes_note_of_themselves_is_read_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "stood.worker-1.2").write_text(f"{5 * S} {9 * S}\n")
    (tmp_path / "store.worker-2.1").write_text(
        f"away {20 * S}\naway {80 * S}\nback {90 * S}\naway {95 * S}\nback {96 * S}\n"
    )
    (tmp_path / "copies.worker-1.2").write_text("bills\nledger\n")
    assert noted_happenings(tmp_path) == [
        Happening(STOOD, "worker-1.2", 5 * S, 9 * S),
        Happening(STORE_AWAY, "worker-2.1", 19 * S, 90 * S),
        Happening(STORE_AWAY, "worker-2.1", 94 * S, 96 * S),
    ]
    assert noted(tmp_path, "copies") == ["bills", "ledger"]
    (tmp_path / "done.worker-1.2").write_text("ab 5\nab 9\n")
    assert noted_done(tmp_path) == {("worker-1.2", "ab"): 5}


def test_each_table_of_effects_has_its_rule_and_its_place() -> None:
    assert set(RULES) == set(TABLES)
    made = " ".join(DDL)
    assert all(f"CREATE TABLE {table} " in made for table in (*TABLES, "orders"))
